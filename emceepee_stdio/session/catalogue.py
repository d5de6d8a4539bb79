"""The catalogue: what servers listed when they ran, known before they run again.

Looking up and writing happen in threads. What cannot be read is not known, and what cannot be
written is known for this session only: neither is worse than starting the server.

What a person has not seen yet is not believed either: a server whose remembered tools differ from
its pins is started, so that the difference is told. Entries of one command that differ in their
variables share its pins: the difference of one that lists what it always listed was told at once.
"""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from emceepee_stdio import __version__
from emceepee_stdio.backends.interface import Item, Kind, Seen
from emceepee_stdio.backends.lists import (
    CatalogueRecord,
    Remembered,
    added_to,
    listed_in,
    recalled,
)
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.catalogue_files import (
    MAX_SERVER_BYTES,
    catalogue_identity,
    catalogue_path,
)
from emceepee_stdio.storage.file_lock import file_lock
from emceepee_stdio.storage.private_file import make_private, read_own, write_whole
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.trust.targets import target_id, target_id_of_version_1
from emceepee_stdio.trust.tool_pins import Changes, Pins, compare_pins, pin_all, pin_key, pin_text

# The files of the catalogue: one for each server, for their owner alone.
#
# A file is known by what the server is started with and by emceepee's version, so that versions do
# not meet in one. Several proxies share the directory: each change reads, adds to and writes one
# file under a lock, whole or not at all. Whatever is wrong with a file, it is as good as none, and
# the server is started to be known. The files that were used longest ago make room.


_MAX_BYTES = 64 << 20  # of all servers: a thousand with 40 tools each
_MAX_FILES = 1_000  # nobody configures as many: those of years of editing go
_LOCK_TIMEOUT_S = 5.0  # whoever holds it does so for milliseconds
_decode_record = envelope_decoder(CatalogueRecord)


class CatalogueStore(Struct, eq=False, dict=True):
    """The files in one directory. Blocking: the session calls it in a thread."""

    directory: Path
    max_server_bytes: int = MAX_SERVER_BYTES
    max_bytes: int = _MAX_BYTES
    version: str = __version__

    def identity(self, config: ServerConfig, key: bytes) -> str:
        """The same for the same server started in the same way; tells nothing of its secrets."""
        return catalogue_identity(config, key, self.version)

    def read(self, identity: str) -> CatalogueRecord | None:
        """What is known of a server; that it was looked up keeps it from making room."""
        record = self._record(identity)
        if record is not None:
            with suppress(OSError):
                os.utime(self._path(identity))
        return record

    def add(self, identity: str, seen: Sequence[Seen]) -> bool:
        """Put down what a server listed; False where it is too much, OSError where it fails."""
        with self._locked():
            record = self._record(identity) or CatalogueRecord(identity=identity)
            for one in seen:
                record = added_to(record, one)
            data = msgspec.json.encode(record)
            fits = len(data) <= self.max_server_bytes
            # Half of it would be told as all of it.
            self._put(self._path(identity), data if fits else None)
        return fits

    def put_greeting(self, path: Path, data: bytes) -> None:
        """The greeting of a configuration file is a file of the catalogue, too."""
        with suppress(OSError):
            if read_own(path, most=len(data)) == data:
                return
        with self._locked():
            self._put(path, data)

    @contextmanager
    def _locked(self) -> Generator[None]:
        make_private(self.directory)
        with file_lock(self.directory / "lock", within=_LOCK_TIMEOUT_S):
            yield

    def _put(self, path: Path, data: bytes | None) -> None:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()  # an empty directory makes way; what is in another is not ours
        if data is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, data)
        self._make_room(path)

    def _record(self, identity: str) -> CatalogueRecord | None:
        try:
            data = read_own(self._path(identity), most=self.max_server_bytes)
            record = _decode_record(data)
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
        return record if record.identity == identity else None

    def _path(self, identity: str) -> Path:
        return catalogue_path(self.directory, identity)

    def _make_room(self, written: Path) -> None:
        """Only with the lock: then a file that is half written is nobody's any more."""
        found: list[tuple[float, int, Path]] = []
        for path in self.directory.iterdir():
            with suppress(OSError):
                if path.name.startswith("."):
                    path.unlink()
                elif path.suffix == ".json" and path != written:
                    status = path.lstat()
                    found.append((status.st_mtime, status.st_size, path))
        room = self.max_bytes - (written.lstat().st_size if written.exists() else 0)
        for count, (_, size, path) in enumerate(sorted(found, reverse=True), start=2):
            room -= size
            if room < 0 or count > _MAX_FILES:
                with suppress(OSError):
                    path.unlink()


TOO_LARGE = "Its lists take over 4 MB: they are not remembered, and it starts with each session."

_MINUTE_CHARS = 16  # of a time: lists that are fetched at every use are written once a minute
_FLUSH_S = 1.0  # at the end of a session: the files are small, and the client waits for our end


class Catalogue(Struct, eq=False, dict=True):
    """Shared with every other proxy of this person, by files. `run` writes."""

    store: CatalogueStore
    trust: TrustStore
    pin_mode: Callable[[], str]
    journal: Journal

    def __post_init__(self) -> None:
        self._unwritten: list[tuple[ServerConfig, Seen]] = []
        self._news = anyio.Event()
        self._writing = anyio.Lock()
        self._problem: str | None = None
        self._too_large: dict[str, set[str]] = {}  # the lists that did not fit, by server
        self._written: dict[tuple[str, str], Seen] = {}
        self.changes = 0  # how often something was written

    async def recall(self, config: ServerConfig) -> Remembered | None:
        """All that can be said of a server without starting it; None where it has to be started."""
        return await anyio.to_thread.run_sync(partial(self.look_up, config), abandon_on_cancel=True)

    def is_too_large(self, server: str) -> bool:
        """Whether nothing is kept of this server, because it lists more than there is room for."""
        return bool(self._too_large.get(server))

    def note(self, config: ServerConfig, seen: Seen) -> None:
        """A server has listed something: it is written down soon."""
        self._unwritten.append((config, seen))
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await self._write()

    async def flush(self, within: float = _FLUSH_S) -> None:
        """Write what is left, in bounded time."""
        with anyio.move_on_after(within):
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            self._news = anyio.Event()
            unwritten, self._unwritten = self._unwritten, []
            if unwritten:
                problem = await anyio.to_thread.run_sync(
                    self._put_down, unwritten, abandon_on_cancel=True
                )
                if problem is not None and problem != self._problem:
                    self.journal.record(JournalEvent.CATALOGUE_UNWRITABLE, error=problem)
                self._problem = problem

    # In threads

    def _put_down(self, unwritten: list[tuple[ServerConfig, Seen]]) -> str | None:
        """The problem with writing it, if there is one."""
        key, problem = self.trust.key(), None
        seen: dict[str, list[Seen]] = {}
        names: dict[str, str] = {}
        for config, one in unwritten:
            identity = self.store.identity(config, key)
            names[identity] = config.name
            if not _says_the_same(self._written.get((identity, one.kind)), one):
                seen.setdefault(identity, []).append(one)
        for identity, lists in seen.items():
            try:
                kinds = {one.kind.value for one in lists}
                left_out = self._too_large.setdefault(names[identity], set())
                if self.store.add(identity, lists):
                    left_out -= kinds
                else:
                    left_out |= kinds
                self._written |= {(identity, one.kind): one for one in lists}
                self.changes += 1
            except OSError as error:
                problem = str(error.strerror)
        return problem

    def identity(self, config: ServerConfig) -> str:
        return self.store.identity(config, self.trust.key())

    def record(self, config: ServerConfig) -> CatalogueRecord | None:
        return self.store.read(self.identity(config))

    def known(self, identity: str) -> CatalogueRecord | None:
        """A record by its identity, as it was noted elsewhere."""
        return self.store.read(identity) if identity.isalnum() else None

    def look_up(self, config: ServerConfig) -> Remembered | None:
        """As `recall`, where nobody else waits."""
        record = self.record(config)
        remembered = None if record is None else recalled(record)
        if record is None or remembered is None or remembered.unchanged:
            return remembered
        try:
            differs = self.pin_mode() != "off" and self._changes(config, record)
        except OSError:
            differs = True
        return None if differs else remembered  # a person has to see what it lists

    def unpinned(self, config: ServerConfig, record: CatalogueRecord) -> frozenset[str]:
        """The tools of a record that differ from their pins, or of which that is not known."""
        keys = {str(tool.get("name")): pin_key(tool) for tool in _tools_of(record)}
        if self.pin_mode() == "off":
            return frozenset(keys)
        try:
            changes = self._changes(config, record)
        except OSError:
            return frozenset(keys)
        return frozenset(
            name for name, key in keys.items() if key in changes.changed or key in changes.added
        )

    def _changes(self, config: ServerConfig, record: CatalogueRecord) -> Changes:
        """How what it listed differs from what is pinned."""
        key = self.trust.key()
        agreed = self.trust.pinned(target_id(config, key), target_id_of_version_1(config, key))
        said = "" if record.hello is None else record.hello.instructions or ""
        now = Pins(tools=pin_all(_tools_of(record)), instructions=pin_text(said))
        return compare_pins(agreed, now)


def _tools_of(record: CatalogueRecord) -> Sequence[Item]:
    return listed_in(record).get(Kind.TOOLS, ())


def _says_the_same(before: Seen | None, now: Seen) -> bool:
    return (
        before is not None
        and not now.first
        and before.at[:_MINUTE_CHARS] == now.at[:_MINUTE_CHARS]
        and before.items == now.items
    )
