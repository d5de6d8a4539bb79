"""The process behind an HTTP session: its own `emceepee serve`, with JSON-RPC lines.

It ends by the end of its input, and so do its servers, however this process ends. One that hangs or
is stopped cannot, and is killed by the watchdog.
"""

import os
import secrets
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import anyio
import msgspec

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.json_values import mapping
from emceepee_stdio.versions import CLIENT_CAPABILITIES, MODERN_VERSION, PROTOCOL_VERSION
from emceepee_stdio.visible_text import on_one_line
from emceepee_stdio.wire.codec import (
    Message,
    Response,
    RpcError,
    decode,
    encode_request,
    to_json,
)
from emceepee_stdio.wire.environment import BEHIND_HTTP, JOURNAL_SESSION, OWNER
from emceepee_stdio.wire.framing import Lines, Oversized
from emceepee_stdio.wire.orphans import owner_mark
from emceepee_stdio.wire.process import Listener, Process, Spawn, StopTimes
from emceepee_stdio.wire.process_guard import Watchdog

# Stderr for a server that outlives whoever reads it: a line that nobody takes ends no session.


@contextmanager
def lasting_stderr() -> Generator[None]:
    """Write to stderr in it; where that fails, all that is written later goes nowhere."""
    if sys.stderr is None:  # it was closed before we began
        sys.stderr = _nowhere()
    try:
        yield
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


SHOWN_CHARS = 8  # of a session's id, which is half of what its client proves itself by
_STOP = StopTimes(term=10.0, kill=15.0)  # it ends its own servers first, each within its time
_PREFIX_BYTES = 8  # of our own request ids: no client guesses them
_STATUS_WAIT_S = 5.0  # it is read from memory
_STATUS_PARAMS = to_json(
    {
        "uri": "emceepee://status",
        "_meta": {PROTOCOL_VERSION: MODERN_VERSION, CLIENT_CAPABILITIES: {}},
    }
)
_MAX_UNREAD_BYTES = 16 << 20  # of its input: it reads all the time, unless it hangs


class SessionGuard:
    """What all processes of a front have in common: a mark, and a watchdog that outlives us."""

    def __init__(self, unique: str, *, note: Callable[[str], None]) -> None:
        self._mark = owner_mark(unique)
        self.watchdog = Watchdog(
            self._mark,
            warn=lambda reason: note(f"a crash may leave processes: {reason}"),
            grace=_STOP.kill,
        )

    def mark(self, journal: str) -> str:
        return f"{self._mark}.{journal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a session's process is started with.

    `name` is the id that its client has, of which the process knows the beginning; its requests are
    recorded under the id `journal`. `owner` is whose token began it. `options` are those of
    `emceepee serve`.
    """

    name: str
    owner: str
    journal: str
    options: Sequence[str]
    guard: SessionGuard


class _Text(msgspec.Struct):
    text: str = "{}"


class _Told(msgspec.Struct):
    contents: list[_Text]


class SessionProcess:
    """One running child. `on_message` hears what it says, `on_end` once that it is over."""

    def __init__(
        self,
        spec: SessionSpec,
        *,
        on_message: Callable[[Message, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._shown = spec.name[:SHOWN_CHARS]
        self._lines = Lines()
        self._on_message = on_message
        self._statuses: dict[object, anyio.Event | Response] = {}
        self._asked = 0
        self._prefix = secrets.token_hex(_PREFIX_BYTES)
        self._on_end = on_end
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<SessionProcess {self._shown} {self._process!r}>"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        spec, watchdog = self._spec, self._spec.guard.watchdog
        owner = spec.guard.mark(spec.journal)
        own = {BEHIND_HTTP: self._shown, JOURNAL_SESSION: spec.journal}
        listener = Listener(on_stdout=self._take, on_stderr=self._note, on_end=self._ended)
        spawn = Spawn(
            argv=(sys.executable, "-m", "emceepee_stdio", "serve", *spec.options),
            env={**os.environ, **own, OWNER: owner},
            cwd=Path.cwd(),
            owner=owner,
        )
        watchdog.start()
        self._process = await Process.start(spawn, listener)
        watchdog.add(self._process.pid)

    def write(self, line: bytes) -> None:
        """A message, which has no line ends."""
        if self._process is None:
            return
        if self._process.stdin.pending > _MAX_UNREAD_BYTES:
            raise CallFailed("The session's process does not read what it is sent.")
        self._process.stdin.write(line + b"\n")

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(_STOP)

    def _ended(self) -> None:
        if self._process is not None:
            self._spec.guard.watchdog.remove(self._process.pid)
        self._on_end()

    async def is_busy(self) -> bool:
        """Whether something goes on inside that nobody outside waits for."""
        self._asked += 1
        request_id = f"{self._prefix}:{self._asked}"
        try:
            self.write(encode_request(request_id, "resources/read", _STATUS_PARAMS).strip())
        except CallFailed:  # it hangs: nothing goes on
            return False
        answered = self._statuses[request_id] = anyio.Event()
        with anyio.move_on_after(_STATUS_WAIT_S):
            await answered.wait()
        status = _status(self._statuses.pop(request_id))
        return bool(status.get("working_tasks")) or bool(status.get("active_timers"))

    def _take(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            for message in () if isinstance(line, Oversized) else decode(line):
                self._hear(message, cast("bytes", line))

    def _hear(self, message: Message, line: bytes) -> None:
        asked = self._statuses.get(message.id) if isinstance(message, Response) else None
        if isinstance(message, Response) and isinstance(asked, anyio.Event):
            self._statuses[message.id] = message
            asked.set()
        else:
            self._on_message(message, line)

    def _note(self, text: str) -> None:
        with lasting_stderr():
            line = on_one_line(text.removeprefix("emceepee: "))
            sys.stderr.write(f"emceepee [{self._shown}]: {line}\n")


def _status(answer: object) -> Mapping[str, object]:
    """The status in the contents of a resource; nothing where there is none."""
    if not isinstance(answer, Response) or isinstance(answer.outcome, RpcError):
        return {}
    try:
        told = msgspec.json.decode(answer.outcome, type=_Told)
        return mapping(decode_value(told.contents[0].text)) if told.contents else {}
    except msgspec.MsgspecError:
        return {}
