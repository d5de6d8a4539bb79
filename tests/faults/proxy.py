"""The real proxy process and a raw client of it: every line either way goes through the model."""

import array
import fcntl
import json
import os
import subprocess
import termios
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio

from tests.e2e.client import ENVELOPE, LEGACY, Answer, Setting
from tests.faults import processes
from tests.faults.model import Entry, Message, Model
from tests.proxy_entry import proxy_command

_CHUNK = 1 << 20
# A hang guard: every answer comes within the client's ceiling, which is far below this.
WAIT_S = 60.0
_STALLED_BYTES = 48 << 10


class HangError(Exception):
    """Something that must come in time did not come at all."""


class GoneError(HangError):
    """The proxy ended before we hung up."""


class Pending:
    """A request under way; `message` is its answer, None when there will be none."""

    def __init__(self, request: Message) -> None:
        self.request = request
        self.message: Message | None = None
        self.is_lost = False
        self.done = anyio.Event()

    async def response(self) -> Message | None:
        with anyio.move_on_after(WAIT_S) as scope:
            await self.done.wait()
        if scope.cancelled_caught:
            raise HangError(f"no answer to {json.dumps(self.request)[:500]}")
        if self.is_lost:
            raise GoneError("the proxy has ended")
        return self.message

    async def answer(self) -> Answer | None:
        """The tool's answer; None for an error of the protocol, or no answer at all."""
        message = await self.response()
        if message is None or "error" in message:
            return None
        return Answer(message["result"])


class Proxy:
    """One proxy and its client. `entries`, where wanted, keeps what the model was told."""

    def __init__(self, setting: Setting, model: Model, *, modern: bool) -> None:
        self.setting = setting
        self.model = model
        self.step = 0
        self.doing: ContextVar[int] = ContextVar("the step on whose behalf something is sent")
        self._stderr = b""
        self.entries: list[Entry] | None = None
        self._modern = modern
        self._last_id = 0
        self.calls_sent: list[int] = []
        self._pending: dict[int | str, Pending] = {}
        self._is_gone = False
        self._stalls = 0
        self._may_read = anyio.Event()
        self._may_read.set()
        self._writing = anyio.Lock()
        self._journal: dict[int, int] = {}
        self._process = self._start()

    def __repr__(self) -> str:
        return f"<Proxy pid={self.pid} waiting={len(self._pending)}>"

    def _start(self) -> subprocess.Popen[bytes]:
        paths = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        process = subprocess.Popen(
            [*proxy_command(self.setting.fixed), "serve", "--config", self.setting.config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.setting.home,
            env=self.setting.environ() | paths,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        return process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def home(self) -> Path:
        return self.setting.home

    def note(self, what: str, body: Any) -> None:
        """Tell the model; what it thinks of it is in its violations."""
        step = self.doing.get(self.step) if what == "sent" else self.step
        if self.entries is not None:
            self.entries.append((step, what, body))
        if what == "sent" and body.get("method") == "tools/call":
            self.calls_sent.append(body["id"])
        self.model.take(step, what, body)

    # What the client says

    async def greet(self) -> None:
        """The handshake, and a first call that shows that we stay."""
        if not self._modern:
            info = {"name": "faults", "version": "1"}
            params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
            await (await self.begin("initialize", params)).response()
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self.call("list_servers")

    def prepare(self, method: str, params: Mapping[str, Any] | None = None) -> Pending:
        """A request with an id of its own, not sent yet."""
        self._last_id += 1
        full = dict(params or {})
        if self._modern:
            full["_meta"] = ENVELOPE
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": full}
        return self.expect(request)

    def expect(self, request: Message) -> Pending:
        pending = self._pending[request["id"]] = Pending(request)
        return pending

    def calling(self, tool: str, /, **arguments: Any) -> Pending:
        return self.prepare("tools/call", {"name": tool, "arguments": arguments})

    def cancelling(self, pending: Pending) -> Message:
        params = {"requestId": pending.request["id"]}
        return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}

    async def begin(self, method: str, params: Mapping[str, Any] | None = None) -> Pending:
        pending = self.prepare(method, params)
        await self.send(pending)
        return pending

    async def call(self, tool: str, /, **arguments: Any) -> Answer | None:
        pending = self.calling(tool, **arguments)
        await self.send(pending)
        return await pending.answer()

    async def send(self, *messages: Pending | Message | bytes) -> None:
        """All in one go. Bytes are noise and go as they are."""
        if self._is_gone:
            raise GoneError("the proxy has ended")
        lines: list[bytes] = []
        async with self._writing:
            for message in messages:
                if isinstance(message, bytes):
                    self.note("noise", message.decode(errors="replace"))
                    lines.append(message)
                else:
                    body = message.request if isinstance(message, Pending) else message
                    self.note("sent", body)
                    lines.append(json.dumps(body).encode() + b"\n")
            await self._write(b"".join(lines))

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with anyio.move_on_after(WAIT_S) as scope:
            while view:
                await anyio.wait_writable(self._in)
                try:
                    view = view[os.write(self._in.fileno(), view) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    return
        if scope.cancelled_caught:
            raise HangError("the proxy does not read what it is sent")

    def forget(self, pending: Pending) -> None:
        """Cancelled: nobody waits for it any more."""
        self._pending.pop(pending.request["id"], None)
        pending.done.set()

    # What the client hears

    async def listen(self) -> None:
        buffer = bytearray()
        while data := await self._read(self._out.fileno()):
            buffer += data
            if b"\n" in data:
                *lines, rest = buffer.split(b"\n")
                buffer = bytearray(rest)
                for line in lines:
                    self._take(line.decode(errors="replace"))
            await self._may_read.wait()
        self._is_gone = True
        for pending in list(self._pending.values()):
            pending.is_lost = True
            pending.done.set()

    async def listen_to_stderr(self) -> None:
        while data := await self._read(self._err.fileno()):
            self._stderr += data

    async def _read(self, fd: int) -> bytes:
        while True:
            await anyio.wait_readable(fd)
            try:
                return os.read(fd, _CHUNK)
            except BlockingIOError:
                continue

    def _take(self, line: str) -> None:
        self.note("received", line)
        try:
            message = json.loads(line)
        except ValueError:
            return
        pending = self._pending.pop(message.get("id"), None)
        if pending is not None and "method" not in message:
            pending.message = message
            pending.done.set()

    async def stall(self, messages: list[Pending]) -> None:
        """Send these and read nothing until the pipe is nearly full, or they are all answered."""
        self._stalls += 1
        if self._stalls == 1:
            self._may_read = anyio.Event()
        try:
            await self.send(*messages)
            with anyio.move_on_after(2):
                while not self._is_full() and not all(m.done.is_set() for m in messages):
                    await anyio.sleep(0.01)
        finally:
            self._stalls -= 1
            if self._stalls == 0:
                self._may_read.set()

    def _is_full(self) -> bool:
        waiting = array.array("i", [0])
        fcntl.ioctl(self._out.fileno(), termios.FIONREAD, waiting)
        return waiting[0] >= _STALLED_BYTES

    # What is seen from outside

    def bugs_in_journal(self) -> list[str]:
        """New lines of the journal that tell of a bug."""
        found: list[str] = []
        for path in (self.home / "logs").glob("emceepee-*.jsonl*"):
            with path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                file.seek(self._journal.get(inode, 0))
                lines = file.read()
                self._journal[inode] = self._journal.get(inode, 0) + len(lines)
            found += [
                line
                for line in lines.decode(errors="replace").splitlines()
                if '"unexpected_error"' in line or "because of an unexpected error" in line
            ]
        return found

    def new_stderr(self) -> str:
        """What it wrote to stderr since the last look."""
        said, self._stderr = self._stderr, b""
        return said.decode(errors="replace")

    def holdings(self) -> Message:
        return {
            "descriptors": dict(processes.descriptors(self.pid)),
            "resident_kb": processes.resident_kb(self.pid),
        }

    async def hang_up(self) -> None:
        """Close stdin and see the end of it."""
        self.note("hung_up", None)
        self._in.close()
        code = await self._exit_code()
        survivors = {*processes.at_home(self.home), *processes.hidden(self.home)}
        self.note(
            "ended",
            {
                "code": code,
                "survivors": sorted(survivors),
                "stderr": self.new_stderr(),
                "bugs": self.bugs_in_journal(),
            },
        )

    async def _exit_code(self) -> int | None:
        with anyio.move_on_after(WAIT_S):
            while (code := self._process.poll()) is None:
                await anyio.sleep(0.01)
            return code
        return None

    def close(self) -> None:
        """Whatever happened: nothing of it stays."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._in, self._out, self._err):
            pipe.close()
