"""A raw client for a test: every message that the proxy sends is judged by the SDK's types.

What must hold in every test is checked here: each request is answered once and never after it was
cancelled, each event is told once, progress comes under a token that somebody waits with, the
proxy ends well and leaves nothing behind.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from mcp_types import methods

from emceepee_stdio.state.event_types import EventType
from tests.e2e.clients.raw import is_context, own_first
from tests.e2e.harness import json_lines, signs_in
from tests.e2e.official_schema import Judge
from tests.in_process import memory_proxy
from tests.peers import SERVERS, plain
from tests.proxy_entry import proxy_command
from tests.virtual_time import refuse_virtual_time

# Whether a conversation has a process of its own: see the mark `real`.
is_real = bool(os.environ.get("EMCEEPEE_TEST_REAL"))
WAIT_S = 20.0
LEGACY = "2025-11-25"
MODERN = "2026-07-28"
P = "io.modelcontextprotocol/"
ENVELOPE: dict[str, Any] = {
    f"{P}protocolVersion": MODERN,
    f"{P}clientInfo": {"name": "raw", "version": "1"},
    f"{P}clientCapabilities": {},
}
_FRAME = {"jsonrpc", "id", "method", "params", "result", "error"}

Message = dict[str, Any]

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
both_backends = pytest.mark.parametrize(
    "era", ["legacy", "modern"], ids=lambda era: f"{era}-server"
)


class Answer:
    """The result of a tool call: the tool's own blocks, and the context before or after them."""

    def __init__(self, result: Message) -> None:
        self.result = result
        self.blocks = own_first(result)
        self.events: list[Message] = []
        self.remaining = 0
        self.pending: Message = {}
        while self.blocks and is_context(self.blocks[-1]):
            context = json.loads(self.blocks.pop()["text"])
            self.events = context.get("events_since_last_response", self.events)
            self.remaining = context.get("events_remaining", self.remaining)
            self.pending = context.get("pending_client_action", self.pending)

    def __repr__(self) -> str:
        return json.dumps(self.result)[:2000]

    @property
    def is_error(self) -> bool:
        return self.result.get("isError", False)

    @property
    def text(self) -> str:
        """What the tool's own text blocks say."""
        return "\n".join(block["text"] for block in self.blocks if block["type"] == "text")

    @property
    def json(self) -> Any:
        """The facts: the last of the tool's own blocks."""
        assert not self.is_error, self.text
        return json.loads(self.blocks[-1]["text"])

    @property
    def task(self) -> str:
        """The id of the task that the call became."""
        return self.json["proxy_task"]["task_id"]

    @property
    def questions(self) -> list[str]:
        """The ids of everything that waits on the client, by whichever tool it was told."""
        pending = self.pending or (self.json.get("pending_client", {}) if self._waited else {})
        return [
            item["request_id"]
            for kind in ("elicitations", "sampling_requests")
            for item in pending.get(kind, [])
        ]

    @property
    def told(self) -> list[Message]:
        """The events of this answer, in whichever way it tells them."""
        if not self._waited:
            return self.events
        return [event for group in self.json["events"] for event in group["events"]]

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.told]

    @property
    def _waited(self) -> bool:
        return (
            not self.is_error
            and len(self.blocks) == 1
            and self.blocks[0].get("text", "").startswith('{"triggers"')
        )


def check_event_data(events: Iterable[Message]) -> None:
    """The data of an event is what the page of event types says."""
    for event in events:
        fields = EventType(event["type"]).fields
        if "truncated" not in event:
            assert event["data"].keys() <= fields.keys(), event
            required = {name for name, field in fields.items() if not field.optional}
            assert required <= event["data"].keys(), event


@dataclass(eq=False)
class Pending:
    """One request under way."""

    id: int | str
    method: str
    version: str
    token: int | str | None = None
    cancelled: bool = False
    progress: list[Message] = field(default_factory=list)
    message: Message | None = None
    done: anyio.Event = field(default_factory=anyio.Event)

    async def response(self) -> Message:
        with anyio.fail_after(WAIT_S):
            await self.done.wait()
        assert self.message is not None, "the proxy ended before it answered"
        return self.message

    async def result(self) -> Message:
        message = await self.response()
        assert "error" not in message, message
        return message["result"]

    async def error(self) -> Message:
        return (await self.response())["error"]

    async def answer(self) -> Answer:
        return Answer(await self.result())


class Client:
    """Speaks to one proxy, in the era of its choice; requests may overlap."""

    def __init__(self, process: anyio.abc.Process, home: Path, *, modern: bool) -> None:
        self.process = process
        self.home = home
        self.modern = modern
        self.version = MODERN if modern else LEGACY
        self.notifications: list[Message] = []
        self.complaints: list[Message] = []
        self.events: list[Message] = []
        self.told_twice_is_fine = False
        self.exposes = False  # whether tools of servers are called by themselves
        self.stderr = bytearray()
        self._official = Judge()
        self._pending: dict[int | str, Pending] = {}
        self._judged: set[tuple[str, str, str]] = set()
        self._last_id = 0
        self._news = anyio.Event()
        self._reading = anyio.Event()
        self._reading.set()
        self.failure: Exception | None = None

    # What we say

    async def send(self, *messages: object) -> None:
        """Lines as they are; objects as JSON."""
        for message in messages:
            if isinstance(message, dict):
                self._official.hear(message)
        lines = [m if isinstance(m, bytes) else json.dumps(m).encode() + b"\n" for m in messages]
        assert self.process.stdin is not None
        await self.process.stdin.send(b"".join(lines))

    def prepare(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: int | str | None = None,  # noqa: A002 - the name on the wire
        token: int | str | None = None,
        modern: bool | None = None,
    ) -> tuple[Pending, Message]:
        """A request that is waited for, and the message that makes it."""
        self._last_id += 1
        modern = self.modern if modern is None else modern
        meta = dict(ENVELOPE) if modern and method != "initialize" else {}
        if token is not None:
            meta["progressToken"] = token
        full = dict(params or {}) | ({"_meta": meta} if meta else {})
        request_id = f"r-{self._last_id}" if id is None else id
        version = MODERN if modern else self.version
        pending = Pending(request_id, method, version, token)
        assert request_id not in self._pending or self._pending[request_id].message is not None
        self._pending[request_id] = pending
        message: Message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        return pending, message | ({"params": full} if full else {})

    async def begin(
        self, method: str, params: Mapping[str, Any] | None = None, **how: Any
    ) -> Pending:
        pending, message = self.prepare(method, params, **how)
        await self.send(message)
        return pending

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, **how: Any
    ) -> Message:
        return await (await self.begin(method, params, **how)).result()

    async def refused(
        self, method: str, params: Mapping[str, Any] | None = None, **how: Any
    ) -> Message:
        return await (await self.begin(method, params, **how)).error()

    def calling(
        self, tool: str, /, *, token: int | str | None = None, **arguments: Any
    ) -> tuple[Pending, Message]:
        return self.prepare("tools/call", {"name": tool, "arguments": arguments}, token=token)

    async def begin_call(
        self, tool: str, /, *, token: int | str | None = None, **arguments: Any
    ) -> Pending:
        pending, message = self.calling(tool, token=token, **arguments)
        await self.send(message)
        return pending

    async def call(
        self, tool: str, /, *, token: int | str | None = None, **arguments: Any
    ) -> Answer:
        return await (await self.begin_call(tool, token=token, **arguments)).answer()

    async def execute(self, tool: str, server: str = "s", /, **more: Any) -> Answer:
        """Run a tool of a server; arguments in `args`."""
        return await self.call("execute_tool", server=server, tool=tool, **more)

    async def begin_execute(self, tool: str, server: str = "s", /, **more: Any) -> Pending:
        return await self.begin_call("execute_tool", server=server, tool=tool, **more)

    async def cancel(self, pending: Pending) -> None:
        await self.send(self.cancelling(pending))

    def cancelling(self, pending: Pending, *, in_time: bool = True) -> Message:
        """The message; when it may cross the answer, that is no fault."""
        pending.cancelled = in_time
        params = {"requestId": pending.id, "reason": "test"}
        return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}

    async def greet(self, version: str | None = None, **params: Any) -> Message:
        """The handshake of the legacy era; nothing in the modern one."""
        if self.modern:
            return {}
        info = {"name": "raw", "version": "1"}
        result = await self.request(
            "initialize",
            {
                "protocolVersion": version or self.version,
                "capabilities": {},
                "clientInfo": info,
                **params,
            },
        )
        self.version = result["protocolVersion"]
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    # What we wait for

    async def until_event(self, kind: str, **data: Any) -> Message:
        """Wait with await_activity until an event of that kind has been told."""

        def found() -> Message | None:
            for event in self.events:
                if event["type"] == kind and data.items() <= event["data"].items():
                    return event
            return None

        with anyio.fail_after(WAIT_S):
            while (event := found()) is None:
                await self.call("await_activity", timeout_ms=5000)
        return event

    async def connected(self, *names: str) -> None:
        """Wait until these servers are connected, and everything about it has been told."""
        with anyio.fail_after(WAIT_S):
            while True:
                servers = (await self.call("list_servers")).json["servers"]
                phases = {server["name"]: server["phase"] for server in servers}
                if all(phases.get(name) == "connected" for name in names or ("s",)):
                    return
                await self.call("await_activity", timeout_ms=200)

    async def status(self) -> Message:
        result = await self.request("resources/read", {"uri": "emceepee://status"})
        return json.loads(result["contents"][0]["text"])

    async def drain(self) -> list[Message]:
        """Fetch events until there are none; those that this brought."""
        before = len(self.events)
        while (await self.call("await_activity", timeout_ms=0)).told:
            pass
        return self.events[before:]

    async def quiet(self) -> None:
        """Nothing is in flight, no place is taken, and no event is left or stuck on its way."""
        await self.drain()
        status = await self.status()
        assert status["calls_in_flight"] == 0, status
        assert status["events"]["waiting"] == 0, status

    def stop_reading(self) -> None:
        self._reading = anyio.Event()

    def read_again(self) -> None:
        self._reading.set()

    # What we hear

    async def listen(self) -> None:
        assert self.process.stdout is not None
        buffer = bytearray()
        try:
            async for chunk in self.process.stdout:
                buffer += chunk
                if b"\n" in chunk:
                    *lines, rest = buffer.split(b"\n")
                    buffer = bytearray(rest)
                    for line in lines:
                        message = json.loads(line)
                        self._official.judge(message)
                        self._take(message)
                await self._reading.wait()
            assert not buffer, "the last line has no end"
        except Exception as error:  # noqa: BLE001 - raised where the test waits
            self.failure = error
        finally:
            for pending in self._pending.values():
                pending.done.set()

    async def listen_to_stderr(self) -> None:
        assert self.process.stderr is not None
        async for chunk in self.process.stderr:
            self.stderr += chunk

    def _take(self, message: Message) -> None:
        assert message["jsonrpc"] == "2.0"
        assert set(message) <= _FRAME
        if "method" in message:
            self._take_notification(message)
        elif "id" in message:
            self._take_response(message)
        else:
            assert isinstance(message["error"]["code"], int)
            self.complaints.append(message)
        news, self._news = self._news, anyio.Event()
        news.set()

    def _take_response(self, message: Message) -> None:
        pending = self._pending.get(message["id"])
        assert pending is not None, f"nobody asked: {message}"
        assert pending.message is None, f"answered twice: {message}"
        assert not pending.cancelled, f"answered after the cancel: {message}"
        assert type(message["id"]) is type(pending.id)
        if "error" in message:
            assert "result" not in message
            assert isinstance(message["error"]["code"], int)
            assert isinstance(message["error"]["message"], str)
        else:
            self._judge(pending, message["result"])
            if pending.method == "tools/call" and "content" in message["result"]:
                assert self.exposes or "structuredContent" not in message["result"]
                told = Answer(message["result"]).told
                check_event_data(told)
                self.events += told
        pending.message = message
        pending.done.set()

    def _judge(self, pending: Pending, result: Message) -> None:
        """By the types of its version; the same again needs no second look."""
        case = (pending.method, pending.version, json.dumps(result))
        if case not in self._judged:
            methods.validate_server_result(pending.method, pending.version, result)
            self._judged.add(case)

    def _take_notification(self, message: Message) -> None:
        assert "id" not in message, "we are asked nothing"
        params = message.get("params")
        version = MODERN if "subscriptions" in message["method"] else self.version
        methods.parse_server_notification(message["method"], version, params)
        self.notifications.append(message)
        if message["method"] == "notifications/progress":
            waiting = [
                pending
                for pending in self._pending.values()
                if pending.token == params["progressToken"]
                and type(pending.token) is type(params["progressToken"])
            ]
            assert waiting, f"nobody asked for this progress: {message}"
            assert waiting[-1].message is None, f"progress after the answer: {message}"
            waiting[-1].progress.append(params)

    async def received(self, condition: Callable[[], object]) -> None:
        """Wait until something that was received makes the condition true."""
        with anyio.fail_after(WAIT_S):
            while not condition():
                assert self.failure is None, self.failure
                await self._news.wait()

    def check(self) -> None:
        """What holds at the end of every conversation."""
        if self.failure is not None:
            raise self.failure
        ids = [event["id"] for event in self.events]
        assert self.told_twice_is_fine or len(ids) == len(set(ids)), "an event was told twice"
        lines = self.stderr.decode(errors="replace").splitlines()
        assert not [line for line in lines if line.startswith("Traceback")], lines


@dataclass(kw_only=True)
class Setting:
    """Where a proxy runs, and what it is configured with."""

    home: Path
    servers: dict[str, Any] = field(default_factory=dict)
    timeouts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    fixed: dict[str, float] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    text: str | None = None

    @property
    def config(self) -> Path:
        return self.home / "config.json"

    @property
    def ours(self) -> dict[str, Any]:
        """Our part of the file. What a test adds, a person has agreed to: see test_policy."""
        policy = {"mode": "allow", **self.more.get("policy", {})}
        return {"timeouts": self.timeouts, "limits": self.limits, **self.more, "policy": policy}

    def write(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        whole = json.dumps({"mcpServers": self.servers, "emceepee": self.ours})
        self.config.write_text(whole if self.text is None else self.text)

    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "EMCEEPEE_CONFIG": str(self.config),
            "EMCEEPEE_LOG_DIR": str(self.home / "logs"),
            "EMCEEPEE_STATE_DIR": str(self.home / "state"),
            "EMCEEPEE_PAGE": "off",
        }

    def journal(self) -> list[Message]:
        return self._lines("emceepee-*.jsonl")

    def records(self) -> list[Message]:
        """Of every request that has ended, by their beginning."""
        return sorted(self._lines("requests-*.jsonl"), key=lambda record: record["id"])

    def _lines(self, name: str) -> list[Message]:
        paths = sorted((self.home / "logs").glob(name))
        return [line for path in paths for line in json_lines(path)]

    def left_over(self) -> list[int]:
        """Processes that live in this home: children of the proxy, wherever they went."""
        mark = f"HOME={self.home}".encode()
        return [pid for pid, environ in _environs() if mark in environ.split(b"\0")]


def _environs() -> Iterable[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield int(entry.name), (entry / "environ").read_bytes()
            except OSError:
                continue


@asynccontextmanager
async def proxy(
    setting: Setting,
    *,
    modern: bool = False,
    arguments: Sequence[str] = (),
    greet: bool = True,
    code: int = 0,
    program: Sequence[str] = (),
    real: bool = False,
) -> AsyncIterator[Client]:
    """Run the proxy, in this process unless it has to be a real one; it ends well."""
    setting.write()
    if not (real or is_real or program or code):
        async with _in_process(setting, arguments, modern=modern, greet=greet) as client:
            yield client
        return
    process = await anyio.open_process(
        [
            *(program or proxy_command(setting.fixed)),
            "serve",
            "--config",
            setting.config,
            *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=setting.home,
        env=setting.environ(),
    )
    client = Client(process, setting.home, modern=modern)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.listen)
            tasks.start_soon(client.listen_to_stderr)
            try:
                if greet:
                    await client.greet()
                yield client
            except BaseException as error:
                error.add_note(f"{client.failure!r} {client.stderr.decode(errors='replace')}")
                with suppress(ProcessLookupError):
                    process.kill()
                raise
            assert process.stdin is not None
            client.read_again()
            await process.stdin.aclose()
            with anyio.fail_after(WAIT_S):
                assert await process.wait() == code, client.stderr.decode()
    finally:
        with anyio.CancelScope(shield=True):
            await process.aclose()
    client.check()
    await until(lambda: not any(signs_in(pid) for pid in setting.left_over()))
    assert setting.left_over() == []


@asynccontextmanager
async def _in_process(
    setting: Setting, arguments: Sequence[str], *, modern: bool, greet: bool
) -> AsyncIterator[Client]:
    said = bytearray()
    async with memory_proxy(
        setting.config,
        setting.environ(),
        fixed=setting.fixed,
        arguments=arguments,
        stderr=said.extend,
    ) as process:
        client = Client(process, setting.home, modern=modern)
        client.stderr = said
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.listen)
            try:
                if greet:
                    await client.greet()
                yield client
            except BaseException as error:
                error.add_note(f"{client.failure!r} {said.decode(errors='replace')}")
                tasks.cancel_scope.cancel()
                raise
            client.read_again()
            await process.stdin.aclose()
            with anyio.fail_after(WAIT_S):
                await process.wait()
    client.check()
    await until(lambda: not any(signs_in(pid) for pid in setting.left_over()))
    assert setting.left_over() == []


def command(argv: Sequence[str], **fields: Any) -> Message:
    """A server entry of the configuration."""
    return {"command": argv[0], "args": list(argv[1:]), **fields}


def server(*options: str, era: str = "legacy", log: Path | None = None, **fields: Any) -> Message:
    """The well-behaved server, in one era, writing down what it hears."""
    env = {} if log is None else {"FIXTURE_LOG": str(log)}
    env |= fields.pop("env", {})
    return command(plain("--era", era, *options), env=env, era=era, **fields)


def received_by_server(log: Path, event: str = "received") -> list[Message]:
    return [line for line in json_lines(log) if line["event"] == event]


async def until(condition: Callable[[], object]) -> None:
    """Look again until it holds: what happens in other processes and files tells nobody."""
    with anyio.fail_after(WAIT_S):
        while not condition():
            await anyio.sleep(0.005)


@asynccontextmanager
async def http_server(*options: str, log: Path | None = None) -> AsyncIterator[str]:
    """The well-behaved server behind a URL."""
    refuse_virtual_time()
    env = dict(os.environ) | ({} if log is None else {"FIXTURE_LOG": str(log)})
    process = await anyio.open_process(
        [sys.executable, SERVERS / "plain_http.py", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env=env,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with anyio.fail_after(WAIT_S):
            port = (await process.stdout.receive()).decode().strip()
        yield f"http://127.0.0.1:{port}/mcp"
        await process.stdin.aclose()
        with anyio.fail_after(WAIT_S):
            await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                process.kill()
            await process.aclose()
