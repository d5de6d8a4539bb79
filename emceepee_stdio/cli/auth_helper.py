"""The helper process for sign-in and token refresh: `python -m emceepee_stdio.cli.auth_helper`.

`refresh` needs no person and no SDK; `sign-in` waits for a person, and for as long as the process
that started it is there. The order is one line of JSON on stdin. The answer is the exit code: 0 a
token is stored, 3 a person is needed, anything else: try again.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from emceepee_stdio.auth.orders import (
    ConsentNeeded,
    HelperExit,
    RefreshOrder,
    SignInFailed,
    SignInOrder,
)
from emceepee_stdio.auth.refresh import refresh
from emceepee_stdio.auth.token_store import TokenStore, Visit
from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.own_process import protect_memory

_LOCK_S = 1.0  # another one that signs in is not waited for: it leads the person already


def main(what: str) -> int:
    protect_memory()
    line = sys.stdin.buffer.readline()
    try:
        if what == "refresh":
            return anyio.run(_refresh, msgspec.json.decode(line, type=RefreshOrder))
        return _sign_in(msgspec.json.decode(line, type=SignInOrder))
    except OSError:  # a lock that another one holds, or a disk that is full
        return HelperExit.TRY_AGAIN


async def _refresh(order: RefreshOrder) -> HelperExit:
    store = TokenStore(Path(order.directory), order.server, client_id=order.oauth.client_id)
    return await refresh(order, store, Clock())


def _sign_in(order: SignInOrder) -> int:
    store = TokenStore(Path(order.directory), order.server, client_id=order.oauth.client_id)
    with store.person(within=_LOCK_S):
        store.end_visit()
        try:
            anyio.run(_led, order, store)
        except SignInFailed as error:
            host = error.host if isinstance(error, ConsentNeeded) else None
            store.tell(Visit(failed=str(error), other_host=host))
            return HelperExit.PERSON_NEEDED
        store.end_visit()
    return HelperExit.STORED


async def _led(order: SignInOrder, store: TokenStore) -> None:
    from emceepee_stdio.auth.sign_in import sign_in  # noqa: PLC0415 - takes a second

    async def show(visit: str) -> None:
        store.tell(Visit(url=visit))

    back = anyio.Event()
    failure: SignInFailed | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_with_owner, store, back)
        try:
            await sign_in(order, store, Clock(), show=show, on_return=back.set)
        except SignInFailed as error:
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _end_with_owner(store: TokenStore, back: anyio.Event) -> None:
    """Whoever started us is gone; what the person has brought is still exchanged."""
    await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
    if back.is_set():
        return
    with suppress(OSError):
        store.end_visit()
    os._exit(HelperExit.TRY_AGAIN)


if __name__ == "__main__":
    code = main(sys.argv[1])
    # Not by returning: a thread may still wait for stdin.
    os._exit(code)
