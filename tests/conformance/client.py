"""The client that the suite starts: a real proxy with the suite's mock server behind it.

Usage: python -m tests.conformance.client FRONT START URL

FRONT is the era in which the proxy is spoken to, `legacy` or `modern`. START is `warm` where the
tools are listed before they are called, `cold` where they are not. Which scenario it is says
`MCP_CONFORMANCE_SCENARIO`; each is a function here. Everything goes through our tools.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.clients.raw import Message
from tests.e2e.hosts import Host, Said, host

SERVER = "suite"


class Session:
    """What a scenario needs of the proxy: everything is asked of the one server behind it."""

    def __init__(self, client: Host, *, warm: bool) -> None:
        self._client = client
        self.tools: list[Message] = []
        if warm:
            self.list_tools()

    def list_tools(self) -> list[Message]:
        self.tools = self._client.use("list_tools", server=SERVER, detail="full").json["tools"]
        return self.tools

    def call(self, tool: str, /, **args: Any) -> Said:
        said = self._client.execute(SERVER, tool, **args)
        assert not said.is_error, said
        return said

    def use(self, tool: str, /, **arguments: Any) -> Said:
        said = self._client.use(tool, server=SERVER, **arguments)
        assert not said.is_error, said
        return said

    def answer_and_finish(self, said: Said, *, content: Message | None) -> Said:
        """The call has become a task that waits for an answer: accept, and take the result."""
        task = _context(said, "proxy_task")["task_id"]
        (question,) = _context(said, "pending_client_action")["elicitations"]
        given = {} if content is None else {"content": content}
        answered = self._client.use(
            "respond_to_elicitation", request_id=question["request_id"], action="accept", **given
        )
        assert not answered.is_error, answered
        return self._client.use("get_task_result", task_id=task)


def _context(said: Said, key: str) -> Any:
    blocks = [json.loads(text) for text in said.text.splitlines() if text.startswith("{")]
    return next(block[key] for block in blocks if key in block)


def _initialize(session: Session) -> None:
    session.list_tools()


def _tools_call(session: Session) -> None:
    assert "5" in session.call("add_numbers", a=2, b=3).text


def _defaults(session: Session) -> None:
    asked = session.call("test_client_elicitation_defaults")
    assert "accept" in session.answer_and_finish(asked, content=None).text


def _sse_retry(session: Session) -> None:
    assert "completed" in session.call("test_reconnection").text


def _request_metadata(session: Session) -> None:
    session.list_tools()


def _request_state(session: Session) -> None:
    echoed = session.call("test_mrtr_echo_state")
    session.call("test_mrtr_unrelated")
    yes = {"confirmed": True}
    assert "echo-state-ok" in session.answer_and_finish(echoed, content=yes).text
    stateless = session.call("test_mrtr_no_state")
    assert "no-state-ok" in session.answer_and_finish(stateless, content=yes).text
    assert "no-result-type-test-ok" in session.call("test_mrtr_no_result_type").text


def _standard_headers(session: Session) -> None:
    session.call("test_headers")
    session.call("my-hyphenated-tool")
    session.list_tools()
    for resource in session.use("list_resources").json["resources"]:
        session.use("read_resource", uri=resource["uri"])
    for prompt in session.use("list_prompts").json["prompts"]:
        session.use("get_prompt", name=prompt["name"])


def _custom_headers(session: Session) -> None:
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        session.call(call["name"], **call["arguments"])


def _invalid_headers(session: Session) -> None:
    listed = session.list_tools()
    for tool in listed:
        session.call(tool["name"], **dict.fromkeys(tool["inputSchema"]["properties"], "x"))


def _no_dereference(session: Session) -> None:
    (tool,) = session.list_tools()
    assert "$ref" in json.dumps(tool)


def _preservation(session: Session) -> None:
    tools = {tool["name"]: tool for tool in session.list_tools()}
    session.call("json_schema_echo", schema=tools["json_schema_2020_12_tool"]["inputSchema"])


SCENARIOS: dict[str, Callable[[Session], None]] = {
    "initialize": _initialize,
    "tools_call": _tools_call,
    "elicitation-sep1034-client-defaults": _defaults,
    "sse-retry": _sse_retry,
    "request-metadata": _request_metadata,
    "sep-2322-client-request-state": _request_state,
    "http-standard-headers": _standard_headers,
    "http-custom-headers": _custom_headers,
    "http-invalid-tool-headers": _invalid_headers,
    "json-schema-ref-no-deref": _no_dereference,
    "json-schema-2020-12-preservation": _preservation,
}


def main(front: str, start: str, url: str) -> None:
    play = SCENARIOS[os.environ["MCP_CONFORMANCE_SCENARIO"]]
    servers = {SERVER: {"url": url}}
    with (
        tempfile.TemporaryDirectory() as place,
        host(Path(place), servers=servers, elicits=False, modern=front == "modern") as client,
    ):
        play(Session(client, warm=start == "warm"))


if __name__ == "__main__":
    main(*sys.argv[1:])
