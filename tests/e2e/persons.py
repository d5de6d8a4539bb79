"""A client whose person is asked what servers ask, in either era and in either mode."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.clients.raw import Message, entry
from tests.e2e.hosts import Host, Said, host
from tests.peers import SERVERS, plain

ADA = {"name": "Ada", "age": 36}
NOT_AUTOMATIC = {"automatic_answer_s": 0.0}  # a test answers as fast as it can


class Person(Host):
    """Declares forms and pages; every question is answered when the test says so."""

    @property
    def capabilities(self) -> Message:
        return {"elicitation": {"form": {}, "url": {}}} if self.elicits else {}

    def begin(self, tool: str, server: str = "s", /, **how: Any) -> int:
        args = how.pop("args", {})
        return self.start("execute_tool", server=server, tool=tool, args=args, **how)

    def asked(self, call: int, number: int = 0) -> Message:
        """The params of the question that a call has raised."""
        if not self.modern:
            return self.question(number)["params"]
        [question] = self.said_to(call).result["inputRequests"].values()
        assert question["method"] == "elicitation/create"
        return question["params"]

    def say(self, call: int, answer: Message, number: int = 0) -> int:
        """Answer the question; the call that waits for the result."""
        if not self.modern:
            self.send({"id": self.question(number)["id"], "result": answer})
            return call
        said = self.said_to(call)
        replies = dict.fromkeys(said.result["inputRequests"], answer)
        return self.again(call, replies, said.result["requestState"])

    def again(self, call: int, replies: Message, state: str) -> int:
        """Make a call again as it was."""
        [sent] = [params for number, params in self.made if number == call]
        more = {"inputResponses": replies, "requestState": state}
        return self.ask("tools/call", {**sent, **more})

    @property
    def made(self) -> list[tuple[int, Message]]:
        return self.__dict__.setdefault("_made", [])

    def ask(self, method: str, params: Message | None = None) -> int:
        number = super().ask(method, params)
        kept = {k: v for k, v in (params or {}).items() if k in ("name", "arguments", "_meta")}
        self.made.append((number, kept))
        return number

    def accept(self, asked: Message, **content: Any) -> None:
        self.send({"id": asked["id"], "result": {"action": "accept", "content": content}})

    def withdrawn(self) -> list[int]:
        """The questions of which the client was told that nobody waits for the answer."""
        return [
            m["params"]["requestId"]
            for m in self.said
            if m.get("method") == "notifications/cancelled"
        ]

    def pending(self) -> list[Message]:
        return self.use("get_elicitations").json["elicitations"]

    def events(self) -> list[str]:
        told = self.use("await_activity", timeout_ms=0).json["events"]
        return [event["type"] for group in told for event in group["events"]]

    def calls_of(self, tool: str, server: str = "s") -> int:
        """How often the server was called."""
        received = [line["message"] for line in self.received(server)]
        return sum(m.get("params", {}).get("name") == tool for m in received)


def result_of(said: Said) -> Any:
    return json.loads(said.blocks[0]["text"])


@contextmanager
def person(
    tmp_path: Path, *, modern: bool = False, era: str = "legacy", **more: Any
) -> Iterator[Person]:
    """A proxy with one server, `s`."""
    servers = {"s": entry(plain("--era", era), tmp_path, "s", era=era)}
    servers |= more.pop("servers", {})
    fixed = {**NOT_AUTOMATIC, **more.pop("fixed", {})}
    more.setdefault("kind", Person)
    with host(tmp_path, modern=modern, servers=servers, fixed=fixed, **more) as client:
        assert isinstance(client, Person)
        yield client


@contextmanager
def server_entry(tmp_path: Path, era: str, transport: str) -> Iterator[Message]:
    """The well-behaved server of that era, as the configuration names it."""
    if transport == "stdio":
        yield entry(plain("--era", era), tmp_path, "s", era=era)
        return
    env = {**os.environ, "FIXTURE_LOG": str(tmp_path / "received-s.jsonl")}
    with subprocess.Popen(
        [sys.executable, SERVERS / "plain_http.py", "--era", era],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield {"url": f"http://127.0.0.1:{port}/mcp", "era": era}
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
