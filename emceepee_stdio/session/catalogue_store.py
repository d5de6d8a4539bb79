"""The files of the catalogue: one for each server, for their owner alone.

A file is known by what the server is started with and by emceepee's version, so that versions do
not meet in one. Several proxies share the directory: each change reads, adds to and writes one file
under a lock, whole or not at all. Whatever is wrong with a file, it is as good as none, and the
server is started to be known. The files that were used longest ago make room.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from emceepee_stdio import __version__
from emceepee_stdio.backends.catalogue_record import CatalogueRecord, Seen, added_to
from emceepee_stdio.config.edit import write_whole
from emceepee_stdio.config.file_lock import file_lock
from emceepee_stdio.config.regular_file import make_private, read_own
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.trust.targets import target_id

__all__ = ["CatalogueStore", "default_catalogue_directory"]

_MAX_SERVER_BYTES = 4 << 20  # thousands of tools; a server with more is started to be known
_MAX_BYTES = 64 << 20  # of all servers: a thousand with 40 tools each
_MAX_FILES = 1_000  # nobody configures as many: those of years of editing go
_LOCK_TIMEOUT_S = 5.0  # whoever holds it does so for milliseconds
_NAME_CHARS = 32  # of a digest: no two servers are alike in as many


def default_catalogue_directory(environ: Mapping[str, str]) -> Path:
    """Beside what people agreed to."""
    if chosen := environ.get("EMCEEPEE_STATE_DIR"):
        return Path(chosen).expanduser() / "catalogue"
    from platformdirs import user_state_path  # noqa: PLC0415 - often not needed

    return user_state_path("emceepee", appauthor=False) / "catalogue"


class CatalogueStore:
    """The files in one directory. Blocking: the session calls it in a thread."""

    def __init__(
        self,
        directory: Path,
        *,
        max_server_bytes: int = _MAX_SERVER_BYTES,
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
        started_with = [
            target_id(config, key),
            sorted(config.env.items()),
            sorted(config.pass_env),
            config.cwd,
            sorted(config.headers.items()),
            self._version,
        ]
        text = json.dumps(started_with, separators=(",", ":"))
        return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def read(self, identity: str) -> CatalogueRecord | None:
        """What is known of a server; that it was looked up keeps it from making room."""
        record = self._record(identity)
        if record is not None:
            with suppress(OSError):
                os.utime(self._path(identity))
        return record

    def add(self, identity: str, seen: Sequence[Seen]) -> None:
        """Put down what a server listed; OSError where that cannot be done."""
        make_private(self.directory)
        with file_lock(self.directory / "lock", within=_LOCK_TIMEOUT_S):
            record = self._record(identity) or CatalogueRecord(identity=identity)
            for one in seen:
                record = added_to(record, one)
            data, path = msgspec.json.encode(record), self._path(identity)
            if len(data) > self._max_server_bytes:
                path.unlink(missing_ok=True)  # half of it would be told as all of it
            else:
                write_whole(path, data.decode())
            self._make_room(path)

    def _record(self, identity: str) -> CatalogueRecord | None:
        try:
            data = read_own(self._path(identity), most=self._max_server_bytes)
            record = msgspec.json.decode(data, type=CatalogueRecord)
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
        return record if record.identity == identity else None

    def _path(self, identity: str) -> Path:
        return self.directory / f"{identity[:_NAME_CHARS]}.json"

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
