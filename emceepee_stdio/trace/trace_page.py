"""The page of requests: its data as a stream, its files, its routes, and who may open it here.

The feed has the last records and marks, and new ones as they come. Everything is encoded once,
numbered, and kept up to a bound, so that each page that is opened or comes back is told all of it,
or goes on where it was. The oldest goes first.

`trace_reply` is what both servers answer: the one on this machine here, and the HTTP front.
"""

import re
import secrets
from base64 import b64encode
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from hashlib import sha256
from itertools import islice
from math import inf
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import Listener, SocketStream

from emceepee_stdio import __version__
from emceepee_stdio.clock import HOUR_S
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.journal.journal_reader import JournalReader, Line
from emceepee_stdio.storage import private_file
from emceepee_stdio.trace.request import DroppedRecords, RequestRecord
from emceepee_stdio.trace.trace_reader import (
    MARKS_BEFORE_S,
    MAX_MARKS,
    Mark,
    RequestLine,
    RequestReader,
    mark_of,
)
from emceepee_stdio.wire.loopback_http import (
    EVENT_STREAM,
    LOOPBACK,
    NO_SOURCES,
    OPEN_PATH,
    TEXT_ONLY,
    Entrance,
    LoopbackServer,
    PageReply,
    PageRequest,
    page_file,
    page_reply,
)

MAX_RECORDS = 20_000  # half of what a page keeps, so that a day of following does not thin it out
_MAX_ENTRIES = 100_000
_MAX_BYTES = 64 << 20  # of what is kept; payloads make records long
_BATCH = 500  # entries in one message: a page draws between two of them
_MAX_DIGITS = 16  # of a place; Python reads longer numbers slowly
_POLL_S = 0.2  # a person takes this for at once
_KEEP_ALIVE_POLLS = 75  # 15 s
_KEEP_ALIVE = b": \n\n"

FeedEntry = tuple[str, bytes]  # the list of the message that it belongs to, and its JSON

_encode = msgspec.json.Encoder().encode


@dataclass(eq=False)
class PageFeed:
    """Reads one directory; `wanted` says which requests a person asked for.

    Of a session that `shows` says no to, nothing is told at all.
    """

    directory: Path
    _: KW_ONLY
    wanted: Callable[[RequestRecord], bool] = lambda _: True
    shows: Callable[[str], bool] = lambda _: True
    since: float = -inf

    def __post_init__(self) -> None:
        self.id = secrets.token_hex(8)
        self._records = RequestReader(self.directory)
        self._journal = JournalReader(self.directory)
        self._entries: deque[FeedEntry] = deque()
        self._bytes = 0
        self._first = 0  # number of the oldest entry that is kept
        self._began = False
        self._oldest_s = inf  # when the first request that is known began
        self._looking = anyio.Lock()

    async def events(
        self, after: str, *, is_over: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[bytes]:
        """What a page has not been sent yet, then the rest as it comes, until `is_over` says so.

        The files are read while a page is open, in a thread; each page goes on from where it is.
        """
        yield _event("hello", _encode({"version": __version__, "feed": self.id}))
        place = self._place(after)
        await self._look()
        caught_up, quiet_polls = False, 0
        while not is_over():
            batch, place = self._batch(place)
            if batch:
                quiet_polls = 0
                yield _event("batch", batch, f"{self.id}:{place}")
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
            entries = await anyio.to_thread.run_sync(self._read)
            self._entries.extend(entries)
            self._bytes += sum(len(entry) for _, entry in entries)
            while len(self._entries) > _MAX_ENTRIES or self._bytes > _MAX_BYTES:
                self._bytes -= len(self._entries.popleft()[1])
                self._first += 1

    def _read(self) -> list[FeedEntry]:
        """What has come since, in a thread, once at a time; nothing else here reads files."""
        if self._began:
            return [*self._new_records(), *self._new_marks()]
        self._began = True
        self._records.rewind(MAX_RECORDS, self._is_wanted, since=self.since)
        records = list(self._new_records())
        since = max(self.since, self._oldest_s - MARKS_BEFORE_S)
        self._journal.rewind(MAX_MARKS, lambda line: self._mark(line) is not None, since=since)
        return [*records, *self._new_marks()]

    def close(self) -> None:
        self._records.close()
        self._journal.close()

    def _place(self, given: str) -> int:
        """Where a page goes on that was told so much; another feed's place is none of ours."""
        feed, _, number = given.partition(":")
        known = (
            feed == self.id and number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS
        )
        return int(number) if known else 0

    def _batch(self, place: int) -> tuple[bytes, int]:
        """The entries from there on, as one JSON object, and the place behind them."""
        start = min(max(place - self._first, 0), len(self._entries))
        chosen = list(islice(self._entries, start, start + _BATCH))
        parts = {
            name: b",".join(entry for kind, entry in chosen if kind == name)
            for name in ("records", "marks")
        }
        lists = b",".join(b'"%s":[%s]' % (name.encode(), part) for name, part in parts.items())
        return (b"{%s}" % lists if chosen else b""), self._first + start + len(chosen)

    def _is_wanted(self, line: RequestLine) -> bool:
        record = line.record
        return (
            isinstance(record, RequestRecord) and self.shows(record.session) and self.wanted(record)
        )

    def _new_records(self) -> Iterator[FeedEntry]:
        for line in self._records.read():
            is_loss = isinstance(line.record, DroppedRecords) and self.shows(line.record.session)
            if line.record is not None and (is_loss or self._is_wanted(line)):
                self._oldest_s = min(self._oldest_s, line.record.start_ms / 1000)
                yield "records", _encode(line.record)

    def _new_marks(self) -> Iterator[FeedEntry]:
        for line in self._journal.read():
            if (mark := self._mark(line)) is not None:
                yield "marks", _encode(mark)

    def _mark(self, line: Line) -> Mark | None:
        mark = mark_of(line)
        return mark if mark is not None and self.shows(mark.session) else None


def _event(name: str, data: bytes, place: str = "") -> bytes:
    number = f"id: {place}\n" if place else ""
    return f"event: {name}\n{number}data: ".encode() + data + b"\n\n"


# The page as one file for an export. Nothing on it runs but its own files, by their hash.


PAGE = "trace.html"
_STYLE = re.compile(r'<link rel="stylesheet" href="([a-z.]+)">')
_SCRIPT = re.compile(r'<script src="([a-z.]+)"></script>')
_ICON = re.compile(r'<link rel="icon"[^>]*>\n')
_HEAD = '<meta charset="utf-8">\n'


def exported_page(
    records: Sequence[RequestRecord],
    marks: Sequence[Mark],
    *,
    exported_at: str,
    dropped: int = 0,
) -> str:
    """One file with the page and its data, which needs nothing else and reaches nothing."""
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inlined(tag: str, name: str) -> str:
        text = _text(name)
        hashes[tag].append(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")
        return f"<{tag}>{text}</{tag}>"

    page = _ICON.sub("", _text(PAGE))
    page = _STYLE.sub(lambda found: inlined("style", found[1]), page)
    page = _SCRIPT.sub(lambda found: inlined("script", found[1]), page)
    policy = (
        f"{NO_SOURCES}; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; {TEXT_ONLY}"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    lost = [{"kind": "dropped", "count": dropped}] if dropped else []
    data = {"records": [*records, *lost], "marks": marks, "exported_at": exported_at}
    # JSON that ends no element and opens no comment, whatever its strings hold.
    text = _encode(data).decode().replace("<", "\\u003c")
    block = f'<script type="application/json" id="exported">{text}</script>\n'
    before, after = page.replace(_HEAD, _HEAD + meta, 1).split("<script>", 1)
    return f"{before}{block}<script>{after}"


def _text(name: str) -> str:
    return (page_file("trace", name) or b"").decode()


# The routes of the page.


_EVENTS = "events"


def trace_reply(name: str, after: str, read: Callable[[str], AsyncGenerator[bytes]]) -> PageReply:
    """The feed from `read`, for a page that was given it up to `after`; else a file of the page."""
    if name == _EVENTS:
        return PageReply(read(after), EVENT_STREAM)
    return page_reply("trace", name or PAGE)


# The cookie of the page outlives its server, so that an open page comes back by itself when the
# server is started again; it does so for half a day.


_COOKIE = "emceepee_trace"
_MAX_AGE_S = 12 * HOUR_S  # a working day; a page that is older is opened anew
_FILE_NAME = "trace-page.json"
_MAX_FILE_BYTES = 4 << 10  # it has a port, two short secrets and a time
_AGAIN = "Run emceepee trace --web, and open the address that it prints."


class PageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page is, and the cookie that opens it."""

    port: int
    path: str
    cookie: str
    made_at: float

    @classmethod
    def new(cls, port: int, *, now: float) -> "PageIdentity":
        path, cookie = secrets.token_urlsafe(9), secrets.token_urlsafe(32)
        return cls(port=port, path=path, cookie=cookie, made_at=now)

    @classmethod
    def saved(cls, file: Path, *, now: float) -> "PageIdentity | None":
        """That of the last page; None where it is too old or cannot be read."""
        try:
            found = decoded(private_file.read_own(file, most=_MAX_FILE_BYTES), cls)
        except OSError:
            return None
        return found if found is not None and 0 <= now - found.made_at < _MAX_AGE_S else None

    def save(self, file: Path) -> None:
        """For its owner alone; a page that cannot be remembered is opened anew."""
        with suppress(OSError):
            private_file.make_private(file.parent)
            private_file.write_whole(file, msgspec.json.encode(self))


def identity_file(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place for what a program remembers."""
    return private_file.state_directory(environ) / _FILE_NAME


class PageServer:
    """One page, for those who have its address; `address` is what a person is given."""

    def __init__(self, identity: PageIdentity, feed: PageFeed) -> None:
        self.identity = identity
        self._feed = feed
        self._entrance = Entrance(_COOKIE, path=identity.path, cookie=identity.cookie, again=_AGAIN)
        token = self._entrance.new_token()
        self.address = f"http://{LOOPBACK}:{identity.port}{OPEN_PATH}?token={token}"

    async def run(self, listener: Listener[SocketStream]) -> None:
        """Until it is cancelled."""
        await LoopbackServer(self.identity.port, self._reply).accept(listener)

    async def _reply(self, request: PageRequest) -> PageReply:
        if request.path == OPEN_PATH:
            return self._entrance.opened(request.query.get("token", ""), request)
        name = self._entrance.within(request)
        return trace_reply(name, request.query.get("after", ""), self._feed.events)
