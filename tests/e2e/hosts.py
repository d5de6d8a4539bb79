"""A client that can ask its person for us, in either era, and what is kept between two runs.

Every question that the proxy puts is judged by the types of the SDK.
"""

import atexit
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mcp_types import methods

from tests.e2e.clients.raw import INITIALIZE, MODERN, Message, Proxy, own_first, until
from tests.e2e.harness import signs_in
from tests.peers import plain

LEGACY = "2025-11-25"
ALWAYS = "Yes, and do not ask again"
ONCE = "Yes, this time"
NO = "No"
_P = "io.modelcontextprotocol/"


@cache
def programs() -> Path:
    """A directory with the program `plain`: a question has no room for the path of a fixture."""
    directory = Path(tempfile.mkdtemp(prefix="emceepee-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    program = directory / "plain"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(plain())} "$@"\n')
    program.chmod(0o755)
    return directory


def proposal(*options: str, name: str = "new", **fields: Any) -> Message:
    """A server that a model wants to add."""
    return {"name": name, "command": "plain", "args": list(options), **fields}


class Said:
    """The result of a tool call."""

    def __init__(self, result: Message) -> None:
        self.result = result
        self.is_error = result.get("isError", False)
        self.is_question = result.get("resultType") == "input_required"
        self.blocks = own_first(result)
        self.text = "\n".join(b["text"] for b in self.blocks if b["type"] == "text")

    def __repr__(self) -> str:
        return json.dumps(self.result)[:3000]

    @property
    def json(self) -> Any:
        assert not self.is_error, self.text
        return json.loads(self.blocks[0]["text"])

    @property
    def message(self) -> str:
        """What a modern client is to show."""
        assert self.is_question, self
        return self.result["inputRequests"]["approval"]["params"]["message"]


class Host(Proxy):
    """A client whose person answers when the test says so."""

    modern = False
    elicits = True
    has_roots = False
    client_name = "raw"
    _marks = 0

    @property
    def capabilities(self) -> Message:
        roots: Message = {} if self.modern else {"listChanged": True}
        return ({"elicitation": {}} if self.elicits else {}) | (
            {"roots": roots} if self.has_roots else {}
        )

    def meet(
        self,
        *,
        elicits: bool = True,
        modern: bool = False,
        has_roots: bool = False,
        name: str = "raw",
        version: str = LEGACY,
    ) -> "Host":
        self.elicits, self.modern, self.has_roots = elicits, modern, has_roots
        self.client_name = name
        if not modern:
            info = {"name": name, "version": "1"}
            hello = INITIALIZE | {"capabilities": self.capabilities, "clientInfo": info}
            hello["protocolVersion"] = version
            self.answer(self.ask("initialize", hello))
            self.send({"method": "notifications/initialized"})
        return self

    def answers(self, request_id: int) -> list[Message]:
        """Our ids and those of the proxy are two counts."""
        return [m for m in self.said if m.get("id") == request_id and "method" not in m]

    def start(
        self, tool: str, /, *, replies: Message | None = None, state: str | None = None, **args: Any
    ) -> int:
        params: Message = {"name": tool, "arguments": args}
        if self.modern:
            params["_meta"] = MODERN | {
                f"{_P}clientCapabilities": self.capabilities,
                f"{_P}clientInfo": {"name": self.client_name, "version": "1"},
            }
            if replies is not None:
                params["inputResponses"] = replies
            if state is not None:
                params["requestState"] = state
        return self.ask("tools/call", params)

    def said_to(self, request_id: int) -> Said:
        result = self.answer(request_id)["result"]
        version = "2026-07-28" if self.modern else LEGACY
        methods.validate_server_result("tools/call", version, result)
        return Said(result)

    def use(self, tool: str, /, **how: Any) -> Said:
        return self.said_to(self.start(tool, **how))

    def execute(self, server: str, tool: str, /, **args: Any) -> Said:
        return self.use("execute_tool", server=server, tool=tool, args=args)

    # Questions of the handshake era

    @property
    def questions(self) -> list[Message]:
        return [m for m in self.said if m.get("method") == "elicitation/create" and "id" in m]

    def question(self, number: int = 0) -> Message:
        self.read_until(lambda: len(self.questions) > number, f"question {number}")
        asked = self.questions[number]
        methods.parse_server_request("elicitation/create", LEGACY, asked["params"])
        return asked

    def reply(self, asked: Message, action: str, decision: str = ALWAYS) -> None:
        self.send({"id": asked["id"], "result": _answer(action, decision)})

    def asked_for(self, request_id: int, number: int = 0) -> str:
        """What the person is shown, in whichever way."""
        if self.modern:
            return self.said_to(request_id).message
        return self.question(number)["params"]["message"]

    def decide(
        self, action: str, tool: str = "add_server", /, *, decision: str = ALWAYS, **arguments: Any
    ) -> Said:
        """Make the call, have the person answer, and bring it to its end."""
        before = len(self.questions)
        first = self.start(tool, **arguments)
        if not self.modern:
            self.reply(self.question(before), action, decision)
            return self.said_to(first)
        said = self.said_to(first)
        assert said.is_question, said
        return self.use(
            tool,
            replies={"approval": _answer(action, decision)},
            state=said.result["requestState"],
            **arguments,
        )

    # What can be seen

    def sync(self) -> None:
        """All that was said before has been taken in."""
        self.request("ping") if not self.modern else self.use("list_timers")

    def servers(self) -> dict[str, Message]:
        """All that is known of each."""
        names = [server["name"] for server in self.use("list_servers").json["servers"]]
        looked = {name: self.use("list_servers", name=name) for name in names}
        there = {name: answer for name, answer in looked.items() if not answer.is_error}
        return {name: answer.json["servers"][0] for name, answer in there.items()}

    def noted(self, event: str) -> list[Message]:
        """Lines of the journals of all runs, with all that this one has to write by now."""
        if self.process.poll() is None:
            self._marks += 1
            mark = f"mark-{self._marks}."
            self.send({"id": mark, "result": {}})
            until(lambda: mark in self._journals(), "the journal to be written")
        lines = [json.loads(line) for line in self._journals().splitlines()]
        return [
            line for line in lines if line["event"] == event and "mark-" not in str(line["data"])
        ]

    def until_noted(self, event: str, count: int = 1) -> list[Message]:
        until(lambda: len(self.noted(event)) >= count, f"{event} in the journal")
        return self.noted(event)

    def _journals(self) -> str:
        """Whole lines only."""
        paths = sorted((self.tmp_path / "journal").glob("emceepee-*.jsonl"))
        return "".join("".join(path.read_text().rpartition("\n")[:2]) for path in paths)

    def hang_up(self) -> int:
        self.meet_family()
        self.close_stdin()
        return self.wait()


def _answer(action: str, decision: str) -> Message:
    return {"action": action} | ({"content": {"decision": decision}} if action == "accept" else {})


@contextmanager
def host(
    tmp_path: Path,
    *,
    mode: str | None = "auto",
    pin: str | None = None,
    arguments: Sequence[str] = (),
    elicits: bool = True,
    modern: bool = False,
    has_roots: bool = False,
    client: str = "raw",
    settings: Message | None = None,
    fixed: Mapping[str, float] | None = None,
    env: Mapping[str, str] | None = None,
    version: str = LEGACY,
    kind: type[Host] = Host,
    **options: Any,
) -> Iterator[Host]:
    """A proxy under this policy, greeted; it ends well and nothing of it is left.

    However fast the test answers, it answers as a person, unless `fixed` says otherwise.
    """
    policy = ({} if mode is None else {"mode": mode}) | ({} if pin is None else {"pin": pin})
    settings = {"policy": policy, **(settings or {})}
    made = kind(
        tmp_path,
        settings=settings,
        fixed={"config_poll_s": 0.02, "automatic_answer_s": 0.0, **(fixed or {})},
        env={"PATH": f"{programs()}:{os.environ['PATH']}", **(env or {})},
        arguments=["serve", *arguments] if arguments else (),
        **options,
    )
    try:
        yield made.meet(
            elicits=elicits, modern=modern, has_roots=has_roots, name=client, version=version
        )
        if made.process.poll() is None:
            assert made.hang_up() == 0, made.errors()
            until(lambda: not any(map(signs_in, made.left_over())), "the helpers of a sign-in")
            assert made.left_over() == set()
        assert "Traceback" not in made.errors()
    finally:
        made.clear_away()
