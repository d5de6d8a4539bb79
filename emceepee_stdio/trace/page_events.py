"""What pages are told while they are open: all of a feed, then the rest as it comes.

The files are read while a page is open, in a thread; each page goes on from where it is.
"""

from collections.abc import AsyncGenerator, Callable

import anyio
import anyio.to_thread
import msgspec

from emceepee_stdio import __version__
from emceepee_stdio.trace.page_feed import PageFeed

__all__ = ["PageEvents"]

_POLL_S = 0.2  # a person takes this for at once
_KEEP_ALIVE_POLLS = 75  # 15 s
_KEEP_ALIVE = b": \n\n"


class PageEvents:
    """One feed, for as many pages as read it."""

    def __init__(self, feed: PageFeed) -> None:
        self._feed = feed
        self._looking = anyio.Lock()

    def __repr__(self) -> str:
        return f"<PageEvents {self._feed!r}>"

    async def read(
        self, after: str, *, is_over: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[bytes]:
        """What a page has not been told yet, until `is_over` says so."""
        yield _event("hello", msgspec.json.encode({"version": __version__, "feed": self._feed.id}))
        place = self._feed.place(after)
        await self._look()
        caught_up, quiet_polls = False, 0
        while not is_over():
            batch, place = self._feed.batch(place)
            if batch:
                quiet_polls = 0
                yield _event("batch", batch, f"{self._feed.id}:{place}")
            elif not caught_up:
                caught_up = True
                yield _event("caught_up", b"{}")
            else:
                await anyio.sleep(_POLL_S)
                await self._look()
                quiet_polls += 1
                if quiet_polls % _KEEP_ALIVE_POLLS == 0:
                    yield _KEEP_ALIVE

    async def _look(self) -> None:
        async with self._looking:
            self._feed.keep(await anyio.to_thread.run_sync(self._feed.read))


def _event(name: str, data: bytes, place: str = "") -> bytes:
    number = f"id: {place}\n" if place else ""
    return f"event: {name}\n{number}data: ".encode() + data + b"\n\n"
