"""Where helper processes begin: `python -m emceepee_stdio.helper_main WHAT`.

`refresh` gets a token without a person, and without the SDK. `sign-in` gets one with a person, and
ends with the process that started it. Both answer by the exit code: 0 a token is stored, 3 a person
is needed, anything else: try again. `keyring` reads and changes the keyring, and answers in one
line on stdout. `page` serves the person's page to their browser while its session lives: lines of
commands on stdin, lines of reports on stdout. The order is one line of JSON on stdin.
"""

import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from emceepee_stdio.auth.bearer import (
    ConsentNeeded,
    HelperExit,
    SignInFailed,
    SignInOrder,
)
from emceepee_stdio.auth.keyring_access import KeyringOrder, carry_out
from emceepee_stdio.auth.token_store import TokenStore, Visit
from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.wire.own_process import protect_memory

_LOCK_S = 1.0  # another one that signs in is not waited for: it leads the person already


def main(what: str) -> int:
    protect_memory()
    if what == "keyring":
        return _ask_keyring()
    line = sys.stdin.buffer.readline()
    if what == "page":
        return anyio.run(_serve_page, line)
    try:
        order = msgspec.json.decode(line, type=SignInOrder)
        return anyio.run(_refresh, order) if what == "refresh" else _sign_in(order)
    except OSError:  # a lock that another one holds, or a disk that is full
        return HelperExit.TRY_AGAIN


async def _refresh(order: SignInOrder) -> HelperExit:
    from emceepee_stdio.auth.refresh import refresh  # noqa: PLC0415 - the HTTP client takes 0.1 s

    return await refresh(order, order.store, Clock())


def _sign_in(order: SignInOrder) -> int:
    store = order.store
    with store.person(within=_LOCK_S):
        store.end_visit()
        try:
            anyio.run(_lead, order, store)
        except SignInFailed as error:
            visit = Visit(failed=str(error))
            if isinstance(error, ConsentNeeded):
                visit = replace(visit, other_host=error.host, code_from=error.code_from)
            store.tell(visit)
            return HelperExit.PERSON_NEEDED
        store.end_visit()
    return HelperExit.STORED


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


async def _serve_page(line: bytes) -> int:
    from emceepee_stdio.auth.browser import reads_private_files  # noqa: PLC0415 - see below
    from emceepee_stdio.trust.approval_page import (  # noqa: PLC0415 - not for the other helpers
        PageCommand,
        PageOrder,
        PageReport,
        SessionPage,
    )

    async def commands() -> AsyncGenerator[PageCommand]:
        read = sys.stdin.buffer.readline
        while line := await anyio.to_thread.run_sync(read, abandon_on_cancel=True):
            if command := decoded(line, PageCommand):  # with what servers ask
                yield command

    def report(said: PageReport) -> None:
        with suppress(OSError):
            out.write(msgspec.json.encode(said) + b"\n")
            out.flush()

    order = msgspec.json.decode(line, type=PageOrder)
    reads_files = await anyio.to_thread.run_sync(reads_private_files, os.environ)
    with BufferedWriter(_taken(1)) as out:
        await SessionPage(order, reads_files=reads_files).run(commands(), report)
    return 0


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
