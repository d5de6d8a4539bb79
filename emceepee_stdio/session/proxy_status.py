"""The status file of each running proxy, as `status_writer` writes it and commands read it.

The files are in the state directory, for their owner alone. A proxy that was killed leaves its own
behind: it counts only while its process is there, and is removed by the next proxy or command that
finds it. So is one that is damaged, after a minute: a proxy that runs has written its own anew by
then. What is not a plain file of ours, is too large or of another version is left alone.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from emceepee_stdio.clock import DAY_S, Clock
from emceepee_stdio.storage.private_file import read_own, state_directory
from emceepee_stdio.wire import system

SCHEMA_VERSION = 1
MAX_CHARS = 200  # of what a client says of itself
_MAX_BYTES = 1 << 20  # thousands of servers; nothing larger is ours
_MAX_FILES = 1_000  # more proxies than a machine runs
_HALF_WRITTEN_AGE_S = 60.0  # it is there for a millisecond, unless its writer was killed
_FOREIGN_AGE_S = 7 * DAY_S  # of a file from another machine or container, of which nobody can tell

_Name = Annotated[str, Meta(max_length=MAX_CHARS)]
_Path = Annotated[str, Meta(max_length=5_000)]  # the longest that systems take is 4,096
_Count = Annotated[int, Meta(ge=0)]
_Moment = Annotated[float, Meta(ge=0, le=1e11)]  # seconds since 1970; dates go a little further


class OpenQuestions(Struct, frozen=True, kw_only=True):
    """How many questions of servers wait, by who is to answer them."""

    person: _Count = 0
    tools: _Count = 0


class ServerStatus(Struct, frozen=True, kw_only=True):
    """One server of a proxy. `target` is the same for the same command line or address.

    `start` says when it is started; with `from_catalogue` it was not, and is known since then.
    `in_file` is false of one that only the command line or a model gave.
    """

    name: _Name
    phase: _Name
    target: _Name = ""
    transport: _Name = ""
    start: _Name = ""
    in_file: bool = True
    from_catalogue: _Name | None = None
    pid: _Count | None = None
    calls: _Count = 0
    tasks: _Count = 0
    questions: OpenQuestions = OpenQuestions()


class ProxyStatus(Struct, frozen=True, kw_only=True):
    """One proxy. `host` tells whose process numbers `pid` is one of.

    `http_session` is how the id begins that a client over HTTP has for its session.
    """

    schema_version: int = SCHEMA_VERSION
    pid: Annotated[int, Meta(gt=0, lt=1 << 31)]
    process_started: _Name
    host: _Path
    session: _Name
    http_session: _Name = ""
    version: _Name
    client_name: _Name
    client_version: _Name
    started_at: _Moment
    directory: _Path
    config: _Path
    servers: tuple[ServerStatus, ...] = ()

    @property
    def file_name(self) -> str:
        return f"{self.pid}-{self.session}.json"


class _Versioned(Struct):
    schema_version: int


_decode = msgspec.json.Decoder(ProxyStatus).decode


def status_directory(environ: Mapping[str, str]) -> Path:
    """With the rest of what proxies remember."""
    return state_directory(environ) / "running"


def here() -> str:
    """Name this machine, or this container of it."""
    return f"{socket.gethostname()}:{system.namespace()}"


def read_running(directory: Path) -> list[ProxyStatus]:
    """The proxies that run on this machine, the oldest first."""
    found = [status for _, status in _read_all(directory) if status is not None]
    running = [one for one in found if one.host == here() and _lives(one)]
    return sorted(running, key=lambda one: (one.started_at, one.pid))


def sweep(directory: Path, *, clock: Clock) -> None:
    """Remove what proxies left behind that were killed."""
    now = clock.epoch(clock.now())
    for half_written in directory.glob(".*"):
        with suppress(OSError):
            if half_written.lstat().st_mtime < now - _HALF_WRITTEN_AGE_S:
                half_written.unlink()
    oldest = now - _FOREIGN_AGE_S
    for path, status in _read_all(directory):
        with suppress(OSError):
            if status is None:
                is_left = path.lstat().st_mtime < now - _HALF_WRITTEN_AGE_S and _is_damaged(path)
            elif status.host == here():
                is_left = not _lives(status)
            else:
                is_left = path.stat().st_mtime < oldest
            if is_left:
                path.unlink()


def _is_damaged(path: Path) -> bool:
    """Whether it is a file of ours in which nobody reads anything, not even a later version."""
    try:
        text = read_own(path, most=_MAX_BYTES)
    except OSError:
        return False
    try:
        return msgspec.json.decode(text, type=_Versioned).schema_version == SCHEMA_VERSION
    except (msgspec.MsgspecError, RecursionError):
        return True


def _lives(status: ProxyStatus) -> bool:
    return system.is_running(status.pid, status.process_started)


def _read_all(directory: Path) -> Iterator[tuple[Path, ProxyStatus | None]]:
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json"))
    except OSError:
        return
    for name in names[:_MAX_FILES]:
        yield directory / name, _read(directory / name)


def _read(path: Path) -> ProxyStatus | None:
    try:
        status = _decode(read_own(path, most=_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    is_right = status.schema_version == SCHEMA_VERSION and status.file_name == path.name
    return status if is_right else None
