"""`emceepee trace --web` and `--export FILE.html`: the requests as a page for a browser.

The page is served until Ctrl-C, and opened where a person sits.

The port and the cookie of the last page are taken again where the port is free, so that a page
which is still open comes back by itself.
"""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from emceepee_stdio.auth.browser import open_browser
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.trace.page_access import LOOPBACK, PageAccess, PageIdentity, identity_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.abc import Listener, SocketStream

    from emceepee_stdio.trace.page_feed import PageFeed
    from emceepee_stdio.trace.request_records import RequestRecord

__all__ = ["show_page", "whole_page"]

_STDERR_FD = 2


def show_page(
    directory: Path,
    *,
    wanted: "Callable[[RequestRecord], bool]",
    since: float,
    port: int | None,
    opens_browser: bool,
) -> None:
    """Until Ctrl-C, which is how it ends well."""
    from emceepee_stdio.trace.page_feed import PageFeed  # noqa: PLC0415 - only for the page

    feed = PageFeed(directory, wanted=wanted, since=since)
    opens = opens_browser and os.isatty(_STDERR_FD)
    try:
        with suppress(KeyboardInterrupt):
            interrupts.run(partial(_serve, feed, port, opens=opens))
    finally:
        feed.close()


def whole_page(directory: Path, records: "Sequence[RequestRecord]", *, dropped: int) -> str:
    """The page with these requests in it, and with what the journal says of their time."""
    from emceepee_stdio.trace.page_files import exported_page  # noqa: PLC0415 - only for the page
    from emceepee_stdio.trace.server_marks import marks_beside  # noqa: PLC0415 - see above

    clock = Clock()
    return exported_page(
        records,
        marks_beside(directory, records),
        dropped=dropped,
        exported_at=clock.iso(clock.now()),
    )


async def _serve(feed: "PageFeed", port: int | None, *, opens: bool) -> None:
    from emceepee_stdio.trace.page_server import PageServer  # noqa: PLC0415 - only for the page

    clock = Clock()
    listener, identity = await _listener(port, now=clock.epoch(clock.now()))
    identity.save(identity_file(os.environ))
    access = PageAccess(identity)
    terminal = Terminal()
    terminal.line(access.address)
    typer.echo("", nl=False)  # writes nothing, and flushes
    opened = opens and open_browser(access.address, os.environ)
    how = "It opens in your browser" if opened else "Open it in a browser on this machine"
    terminal.note(f"{how}; the address is good for one use. Ctrl-C ends it.")
    await PageServer(access, feed).run(listener)


async def _listener(
    port: int | None, *, now: float
) -> "tuple[Listener[SocketStream], PageIdentity]":
    """Where the last page was, if it can be had; else anywhere."""
    saved = PageIdentity.saved(identity_file(os.environ), now=now)
    if saved is not None and port in (None, saved.port):
        with suppress(OSError):
            return (await _bound(saved.port))[0], saved
    try:
        listener, bound = await _bound(port or 0)
    except OSError as error:
        why = error.strerror or type(error).__name__
        Terminal().note(f"emceepee: Port {port} of this machine cannot be used: {why}.")
        Terminal().note("Choose another one, or leave --port out.")
        raise typer.Exit(FAILED) from None
    return listener, PageIdentity.new(bound, now=now)


async def _bound(port: int) -> "tuple[Listener[SocketStream], int]":
    import anyio  # noqa: PLC0415 - only for the page
    from anyio.abc import SocketAttribute  # noqa: PLC0415 - see above

    made = await anyio.create_tcp_listener(local_host=LOOPBACK, local_port=port)
    listener = made.listeners[0]
    return listener, listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
