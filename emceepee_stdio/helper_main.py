"""Where helper processes begin: `python -m emceepee_stdio.helper_main WHAT`.

`refresh` gets a token without a person, and without the SDK. `sign-in` gets one with a person, and
ends with the process that started it. Both answer by the exit code: 0 a token is stored, 3 a person
is needed, anything else: try again. `keyring` reads and changes the keyring, and answers in one
line on stdout. The order is one line of JSON on stdin.
"""

import os
import sys
import threading
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from emceepee_stdio.auth.keyring_access import KeyringOrder, carry_out
from emceepee_stdio.auth.orders import (
    ConsentNeeded,
    HelperExit,
    RefreshOrder,
    SignInFailed,
    SignInOrder,
)
from emceepee_stdio.auth.token_store import TokenStore, Visit
from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.own_process import protect_memory

_LOCK_S = 1.0  # another one that signs in is not waited for: it leads the person already


def main(what: str) -> int:
    protect_memory()
    if what == "keyring":
        return _ask_keyring()
    line = sys.stdin.buffer.readline()
    try:
        if what == "refresh":
            return anyio.run(_refresh, msgspec.json.decode(line, type=RefreshOrder))
        return _sign_in(msgspec.json.decode(line, type=SignInOrder))
    except OSError:  # a lock that another one holds, or a disk that is full
        return HelperExit.TRY_AGAIN


async def _refresh(order: RefreshOrder) -> HelperExit:
    from emceepee_stdio.auth.refresh import refresh  # noqa: PLC0415 - the HTTP client takes 0.1 s

    return await refresh(order, _store(order), Clock())


def _sign_in(order: SignInOrder) -> int:
    store = _store(order)
    with store.person(within=_LOCK_S):
        store.end_visit()
        try:
            anyio.run(_lead, order, store)
        except SignInFailed as error:
            host = error.host if isinstance(error, ConsentNeeded) else None
            store.tell(Visit(failed=str(error), other_host=host))
            return HelperExit.PERSON_NEEDED
        store.end_visit()
    return HelperExit.STORED


def _store(order: RefreshOrder | SignInOrder) -> TokenStore:
    return TokenStore(Path(order.directory), order.server, client_id=order.oauth.client_id)


async def _lead(order: SignInOrder, store: TokenStore) -> None:
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
    """The process that started this one is gone; what the person brought is still exchanged."""
    await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
    if back.is_set():
        return
    with suppress(OSError):
        store.end_visit()
    os._exit(HelperExit.TRY_AGAIN)


def _ask_keyring() -> int:
    """Programs that a keyring starts inherit neither pipe."""
    orders, answers = BufferedReader(_taken(0)), _taken(1)
    order = msgspec.json.decode(orders.readline(), type=KeyringOrder)
    threading.Thread(target=_end_at_eof, args=(orders,), daemon=True).start()
    with BufferedWriter(answers) as out:
        out.write(msgspec.json.encode(carry_out(order)) + b"\n")
    return 0


def _taken(descriptor: int) -> FileIO:
    """The pipe under another number, which no child inherits; nothing is left in its place."""
    taken = FileIO(os.dup(descriptor), "wb" if descriptor else "rb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return taken


def _end_at_eof(orders: BufferedReader) -> None:
    """A thread, not the event loop: the keyring package blocks."""
    orders.read()
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1])
    # Not by returning: a thread may still wait for stdin.
    os._exit(code)
