"""The files of the catalogue: one for each server, for their owner alone.

A file is known by what the server is started with and by emceepee's version, so that versions do
not meet in one. Several proxies share the directory: each change reads, adds to and writes one file
under a lock, whole or not at all. Whatever is wrong with a file, it is as good as none, and the
server is started to be known. The files that were used longest ago make room.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from emceepee_stdio import __version__
from emceepee_stdio.backends.catalogue_record import CatalogueRecord, Seen, added_to
from emceepee_stdio.config.edit import write_whole
from emceepee_stdio.config.file_lock import file_lock
from emceepee_stdio.config.regular_file import make_private, read_own
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.session.catalogue_files import (
    MAX_SERVER_BYTES,
    catalogue_identity,
    catalogue_path,
)

__all__ = ["CatalogueStore"]

_MAX_BYTES = 64 << 20  # of all servers: a thousand with 40 tools each
_MAX_FILES = 1_000  # nobody configures as many: those of years of editing go
_LOCK_TIMEOUT_S = 5.0  # whoever holds it does so for milliseconds
_decode_record = envelope_decoder(CatalogueRecord)


class CatalogueStore:
    """The files in one directory. Blocking: the session calls it in a thread."""

    def __init__(
        self,
        directory: Path,
        *,
        max_server_bytes: int = MAX_SERVER_BYTES,
        max_bytes: int = _MAX_BYTES,
        version: str = __version__,
    ) -> None:
        self.directory = directory
        self._max_server_bytes = max_server_bytes
        self._max_bytes = max_bytes
        self._version = version

    def __repr__(self) -> str:
        return f"<CatalogueStore {self.directory}>"

    def identity(self, config: ServerConfig, key: bytes) -> str:
        """The same for the same server started in the same way; tells nothing of its secrets."""
        return catalogue_identity(config, key, self._version)

    def read(self, identity: str) -> CatalogueRecord | None:
        """What is known of a server; that it was looked up keeps it from making room."""
        record = self._record(identity)
        if record is not None:
            with suppress(OSError):
                os.utime(self._path(identity))
        return record

    def add(self, identity: str, seen: Sequence[Seen]) -> bool:
        """Put down what a server listed; False where it is too much, OSError where it fails."""
        make_private(self.directory)
        with file_lock(self.directory / "lock", within=_LOCK_TIMEOUT_S):
            record = self._record(identity) or CatalogueRecord(identity=identity)
            for one in seen:
                record = added_to(record, one)
            data, path = msgspec.json.encode(record), self._path(identity)
            fits = len(data) <= self._max_server_bytes
            _clear_directory(path)
            if fits:
                write_whole(path, data.decode())
            else:
                path.unlink(missing_ok=True)  # half of it would be told as all of it
            self._make_room(path)
        return fits

    def _record(self, identity: str) -> CatalogueRecord | None:
        try:
            data = read_own(self._path(identity), most=self._max_server_bytes)
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
        room = self._max_bytes - (written.lstat().st_size if written.exists() else 0)
        for count, (_, size, path) in enumerate(sorted(found, reverse=True), start=2):
            room -= size
            if room < 0 or count > _MAX_FILES:
                with suppress(OSError):
                    path.unlink()


def _clear_directory(path: Path) -> None:
    """An empty directory in the place of a file makes way; what is in another is not ours."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
