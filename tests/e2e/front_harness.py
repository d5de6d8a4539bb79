"""The HTTP front as a process, a client that speaks raw HTTP to it, and what must be gone."""

import json
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2

from emceepee_stdio.wire.orphans import descendants
from tests.e2e.clients.raw import INITIALIZE, MODERN, PROXY, WAIT_S, Message, surroundings, until
from tests.e2e.harness import alive

LEGACY_VERSION, MODERN_VERSION = "2025-11-25", "2026-07-28"
ACCEPT = "application/json, text/event-stream"


@dataclass(kw_only=True)
class RunningFront:
    """One front. `family` is everything that it has started."""

    process: subprocess.Popen[str]
    url: str
    token: str | None
    tmp_path: Path
    family: set[int] = field(default_factory=set)

    @property
    def base(self) -> str:
        return self.url.removesuffix("/mcp")

    @property
    def authorization(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def look(self) -> set[int]:
        """Who is below it now, kept for the end."""
        now = set(descendants(self.process.pid))
        self.family |= now
        return now


@contextmanager
def running_front(
    tmp_path: Path,
    *options: str,
    servers: Mapping[str, Message] | None = None,
    settings: Mapping[str, Any] | None = None,
    python: Sequence[str] | None = None,
) -> Generator[RunningFront]:
    """Run a front to its orderly end; nothing of it is left when this returns."""
    command = [*(python or PROXY), "serve", "--http", "127.0.0.1:0", *options]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=surroundings(tmp_path, servers, settings),
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    found = re.search(r"https?://\S+", first)
    assert found, first + process.stderr.read()
    process.stderr.readline()
    token = None
    if "--no-token" not in options:
        token = (tmp_path / "state" / "http-tokens").read_text().split()[1]
    front = RunningFront(process=process, url=found[0], token=token, tmp_path=tmp_path)
    try:
        yield front
        front.look()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.communicate()
    until(lambda: not any(alive(pid) for pid in front.family), "the end of all that it started")


def write_tokens(tmp_path: Path, *lines: str) -> None:
    """All at once: a front that looks often must not find the file while it is still empty."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    written = state / "http-tokens.new"
    written.write_text("".join(f"{line}\n" for line in lines))
    written.chmod(0o600)
    written.replace(state / "http-tokens")


def write_two_tokens(tmp_path: Path) -> None:
    """Those of `one` and `two`, of which `one` is the one that a front shows."""
    write_tokens(tmp_path, f"one {'1' * 32}", f"two {'2' * 32}")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream."""

    id: str | None
    message: Message | None


class HttpClient:
    """A client of the front that does just what it is told."""

    def __init__(self, front: RunningFront, http: httpx2.AsyncClient, path: str = "") -> None:
        self.front = front
        self.http = http
        self.url = front.url + path
        self.session: str | None = None
        self.last_id = 0

    def headers(self, **extra: str) -> dict[str, str]:
        own = {"accept": ACCEPT, "mcp-protocol-version": LEGACY_VERSION, **self.front.authorization}
        if self.session is not None:
            own["mcp-session-id"] = self.session
        return own | {name.replace("_", "-"): value for name, value in extra.items()}

    async def initialize(self, **params: Any) -> httpx2.Response:
        message = {"method": "initialize", "params": {**INITIALIZE, **params}}
        response = await self.http.post(
            self.url, json=self._request(message), headers=self.headers()
        )
        self.session = response.headers.get("mcp-session-id")
        if self.session is not None:
            await self.tell({"method": "notifications/initialized"})
        return response

    async def tell(self, message: Message) -> httpx2.Response:
        body = {"jsonrpc": "2.0", **message}
        return await self.http.post(self.url, json=body, headers=self.headers())

    def _request(self, message: Message) -> Message:
        self.last_id += 1
        return {"jsonrpc": "2.0", "id": self.last_id, **message}

    @asynccontextmanager
    async def post(self, message: Message) -> AsyncGenerator[httpx2.Response]:
        body = self._request(message)
        async with self.http.stream(
            "POST", self.url, json=body, headers=self.headers()
        ) as response:
            yield response

    @asynccontextmanager
    async def get(self, last_event_id: str | None = None) -> AsyncGenerator[httpx2.Response]:
        extra = {} if last_event_id is None else {"last_event_id": last_event_id}
        async with self.http.stream("GET", self.url, headers=self.headers(**extra)) as response:
            yield response

    async def call(self, tool: str, /, **arguments: Any) -> Message:
        """The result of a tool of ours."""
        async with self.post(calling(tool, **arguments)) as response:
            events = [event async for event in events_of(response)]
        answer = events[-1].message
        assert answer is not None
        return answer["result"]

    async def execute(self, tool: str, /, server: str = "plain", **arguments: Any) -> Message:
        return await self.call("execute_tool", server=server, tool=tool, args=arguments)


def calling(tool: str, /, *, token: str | None = None, **arguments: Any) -> Message:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return {"method": "tools/call", "params": {"name": tool, "arguments": arguments, **meta}}


def executing(tool: str, /, *, token: str | None = None, **arguments: Any) -> Message:
    return calling("execute_tool", token=token, server="plain", tool=tool, args=arguments)


async def events_of(response: httpx2.Response) -> AsyncIterator[Event]:
    """As they come; comments are left out."""
    assert response.status_code == 200, await response.aread()
    assert response.headers["content-type"] == "text/event-stream"
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            data = fields["data"]
            yield Event(fields.get("id"), json.loads(data) if data.strip() else None)
        fields = {}


@asynccontextmanager
async def http_client(front: RunningFront, path: str = "") -> AsyncGenerator[HttpClient]:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=WAIT_S, limits=limits, verify=False) as http:
        with anyio.fail_after(WAIT_S):
            yield HttpClient(front, http, path)


@asynccontextmanager
async def session(front: RunningFront, path: str = "") -> AsyncGenerator[HttpClient]:
    async with http_client(front, path) as client:
        response = await client.initialize()
        assert response.status_code == 200, response.text
        yield client
        front.look()


def modern_body(request_id: int, method: str, **params: Any) -> Message:
    meta = {**MODERN, **params.pop("_meta", {})}
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": method,
        "params": {**params, "_meta": meta},
    }


def modern_headers(front: RunningFront, body: Message) -> dict[str, str]:
    named = {"tools/call": "name", "resources/read": "uri"}.get(body["method"])
    name = {} if named is None else {"mcp-name": body["params"][named]}
    return {
        "accept": ACCEPT,
        "mcp-protocol-version": MODERN_VERSION,
        "mcp-method": body["method"],
        **name,
        **front.authorization,
    }
