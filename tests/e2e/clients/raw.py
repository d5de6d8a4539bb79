"""The real proxy, spoken to in raw lines, and all the processes that must be gone after it."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.e2e.harness import alive, argv_of, json_lines
from tests.e2e.official_schema import Judge
from tests.proxy_entry import proxy_command

WAIT_S = 60.0
ROOT = Path(__file__).resolve().parents[3]
PROXY = tuple(proxy_command())

CONTEXT = ('{"events_since_last_response"', '{"pending_client_action"')
POINTER = (
    *("The result has ", "Only both ends are left of "),
    *('{"stored_result"', '{"chars"', '{"offset"'),
)
_META = "io.modelcontextprotocol/"
MODERN = {
    f"{_META}protocolVersion": "2026-07-28",
    f"{_META}clientCapabilities": {},
    f"{_META}clientInfo": {"name": "raw", "version": "1"},
}
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}

Message = dict[str, Any]


def entry(argv: Sequence[str], tmp_path: Path, name: str, **fields: Any) -> Message:
    """A server as the configuration has it, which writes down what it hears."""
    env = {"FIXTURE_LOG": str(tmp_path / f"received-{name}.jsonl")}
    return {"command": argv[0], "args": list(argv[1:]), "env": env, **fields}


def own_first(result: Message) -> list[Message]:
    """The blocks of an answer: what the tool says, where more of it is, and the context.

    Clients that are not known to show the end of an answer get them in the opposite order.
    """
    return sorted(result.get("content", []), key=lambda one: (is_context(one), is_pointer(one)))


def is_pointer(block: Message) -> bool:
    return block.get("text", "").startswith(POINTER)


def is_context(block: Message) -> bool:
    return block.get("text", "").startswith(CONTEXT)


def surroundings(
    tmp_path: Path,
    servers: Mapping[str, Message] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The environment of a proxy whose configuration and journal are in `tmp_path`."""
    own = {"policy": {"mode": "allow"}, **(settings or {})}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": dict(servers or {}), "emceepee": own}))
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "EMCEEPEE_CONFIG": str(config),
        "EMCEEPEE_LOG_DIR": str(tmp_path / "journal"),
        "EMCEEPEE_STATE_DIR": str(tmp_path / "state"),
        "EMCEEPEE_PAGE": "off",
    }


def until(condition: Callable[[], object], what: str = "it") -> None:
    """Look again until it is so; only files and processes, which cannot tell, are waited for so."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)


class Proxy:
    """One proxy process. Everything it says is kept; `family` is what it has started."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        servers: Mapping[str, Message] | None = None,
        settings: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        fixed: Mapping[str, float] | None = None,
        python: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.tmp_path = tmp_path
        self.said: list[Message] = []
        self.over = False
        self.last_id = 0
        self.family: set[int] = set()
        self.owners: set[str] = set()
        self._buffer = b""
        self.judge = Judge()
        self._errors = tmp_path / "stderr.txt"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*(python or proxy_command(fixed)), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=tmp_path,
                env={**surroundings(tmp_path, servers, settings), **(env or {})},
                bufsize=0,
            )

    # What the client says

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        while data:
            data = data[self.process.stdin.write(data) :]

    def send(self, message: Message) -> None:
        self.judge.hear(message)
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def ask(self, method: str, params: Message | None = None) -> int:
        """Send a request and do not wait."""
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params or {}})
        return self.last_id

    def begin(self, name: str, /, **arguments: Any) -> int:
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def greet(self) -> Message:
        answer = self.answer(self.ask("initialize", INITIALIZE))
        self.send({"method": "notifications/initialized"})
        return answer["result"]

    # What it answers

    def answers(self, request_id: int) -> list[Message]:
        return [message for message in self.said if message.get("id") == request_id]

    def answer(self, request_id: int) -> Message:
        self.read_until(lambda: self.answers(request_id), f"the answer to request {request_id}")
        (answer,) = self.answers(request_id)
        if isinstance(answer.get("result", {}).get("content"), list):
            answer["result"]["content"] = own_first(answer["result"])
        return answer

    def request(self, method: str, params: Message | None = None) -> Message:
        return self.answer(self.ask(method, params))["result"]

    def call(self, name: str, /, **arguments: Any) -> Message:
        result = self.answer(self.begin(name, **arguments))["result"]
        assert not result.get("isError"), result
        return result

    def run(self, server: str, tool: str, /, **args: Any) -> str:
        result = self.call("execute_tool", server=server, tool=tool, args=args)
        return result["content"][0]["text"]

    def phases(self) -> dict[str, str]:
        servers = json.loads(self.call("list_servers")["content"][0]["text"])["servers"]
        return {server["name"]: server["phase"] for server in servers}

    def read_until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert not self.over, f"it ended before {what}; stderr: {self.errors()}"
            left = deadline - time.monotonic()
            assert left > 0, f"waited in vain for {what}; stderr: {self.errors()}"
            self._read(left)

    def read_to_the_end(self) -> None:
        self.read_until(lambda: self.over, "its end")

    def _read(self, seconds: float) -> None:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if not select.select([fd], [], [], seconds)[0]:
            return
        data = os.read(fd, 1 << 16)
        self.over = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        said = [json.loads(line) for line in lines]
        for message in said:
            self.judge.judge(message)
        self.said += said

    # What can be seen from outside

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def received(self, server: str, event: str = "received") -> list[Message]:
        """What a fixture server wrote down."""
        path = self.tmp_path / f"received-{server}.jsonl"
        return [line for line in json_lines(path) if line["event"] == event]

    def messages(self, server: str, method: str) -> list[Message]:
        received = [line["message"] for line in self.received(server)]
        return [message for message in received if message.get("method") == method]

    def journal(self) -> list[Message]:
        """Every line of the journal; whole lines only is itself a part of the promise."""
        (path,) = (self.tmp_path / "journal").glob("emceepee-*.jsonl")
        text = path.read_text()
        assert text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    def meet_family(self) -> set[int]:
        """Remember every process that there is now because of the proxy, and their mark."""
        for pid, parent in _parents().items():
            if parent == self.process.pid:
                self.family.add(pid)
                if mark := _mark(pid):
                    self.owners.add(mark.partition(".")[0])
        self.family |= self.marked()
        return self.family

    def marked(self) -> set[int]:
        """Living processes that carry the mark of this proxy."""
        return {
            pid
            for pid in _parents()
            if (mark := _mark(pid)) and mark.partition(".")[0] in self.owners
        }

    def watchdog(self) -> int:
        (pid,) = self.watchdogs()
        return pid

    def watchdogs(self) -> list[int]:
        return [pid for pid in self.family if b"emceepee-watchdog" in argv_of(pid)]

    def left_over(self) -> set[int]:
        return {pid for pid in self.family if alive(pid)} | self.marked()

    # Its end

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def close_stdout(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait(self) -> int:
        """Its exit code; what it says meanwhile is read."""
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.read_to_the_end()
        return self.process.wait(WAIT_S)

    def clear_away(self) -> None:
        """Whatever a failed test left."""
        if self.process.poll() is None:
            self.meet_family()
            self.process.kill()
            self.process.wait()
        for pid in self.left_over():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def proxy(tmp_path: Path, **options: Any) -> Iterator[Proxy]:
    """A proxy, of which nothing is left after the test, whatever the test found."""
    made = Proxy(tmp_path, **options)
    try:
        yield made
    finally:
        made.clear_away()


def _parents() -> dict[int, int]:
    """Every process that does not just wait to be buried, and its parent."""
    found: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            fields = _read(int(path.name), "stat").rpartition(b")")[2].split()
            if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
                found[int(path.name)] = int(fields[1])
    return found


def _mark(pid: int) -> str:
    for variable in _read(pid, "environ").split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == b"EMCEEPEE_OWNER":
            return value.decode()
    return ""


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
