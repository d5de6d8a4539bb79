"""Servers work in the directories of the client: as it lists them, in either era of both sides."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.raw import entry, until
from tests.e2e.hosts import ALWAYS, Host, Said, host, proposal
from tests.peers import filesystem, plain

both_backends = pytest.mark.parametrize("era", ["legacy", "modern"])
ROOTS = [{"uri": "file:///work/one", "name": "one"}, {"uri": "file:///work/two"}]
CHANGED = "notifications/roots/list_changed"


def server(tmp_path: Path, era: str = "legacy") -> dict[str, Any]:
    return {"s": entry(plain("--era", era), tmp_path, "s")}


def questions(client: Host) -> list[dict[str, Any]]:
    return [m for m in client.said if m.get("method") == "roots/list"]


def tell(client: Host, roots: list[dict[str, str]], number: int = 0) -> None:
    """Answer the client's question of that number."""
    client.read_until(lambda: len(questions(client)) > number, f"roots/list, number {number}")
    client.send({"id": questions(client)[number]["id"], "result": {"roots": roots}})


def start(client: Host) -> int:
    return client.start("execute_tool", server="s", tool="roots", args={})


def roots_in(said: Said) -> list[dict[str, str]]:
    return json.loads(said.blocks[0]["text"])["roots"]


@both_backends
def test_a_server_is_told_the_roots_that_the_client_lists_and_the_client_is_asked_once(
    tmp_path: Path, era: str
) -> None:
    with host(tmp_path, has_roots=True, servers=server(tmp_path, era)) as client:
        call = start(client)
        tell(client, ROOTS)
        assert roots_in(client.said_to(call)) == ROOTS
        assert roots_in(client.said_to(start(client))) == ROOTS
        assert len(questions(client)) == 1


def test_a_client_is_asked_for_nothing_before_a_server_wants_it(tmp_path: Path) -> None:
    with host(tmp_path, has_roots=True, servers=server(tmp_path)) as client:
        assert client.execute("s", "echo", message="hi").text.startswith("hi")
        client.send({"method": CHANGED})
        client.sync()
        assert questions(client) == []


def test_a_change_is_asked_for_and_handed_on_to_a_server_that_has_asked(tmp_path: Path) -> None:
    servers = server(tmp_path) | {"t": entry(plain("--era", "legacy"), tmp_path, "t")}
    with host(tmp_path, has_roots=True, servers=servers) as client:
        assert client.execute("t", "echo", message="hi").text.startswith("hi")
        call = start(client)
        tell(client, ROOTS[:1])
        assert roots_in(client.said_to(call)) == ROOTS[:1]
        client.send({"method": CHANGED})
        tell(client, ROOTS, 1)
        until(lambda: client.messages("s", CHANGED), "the word to the server")
        assert roots_in(client.said_to(start(client))) == ROOTS
        client.send({"method": CHANGED})
        tell(client, ROOTS, 2)
        client.sync()
        assert len(client.messages("s", CHANGED)) == 1, "nothing has changed"
        assert client.messages("t", CHANGED) == [], "it never asked"


ODD: list[dict[str, Any]] = [
    {"error": {"code": -32601, "message": "Method not found"}},
    {"result": {"roots": "none"}},
    {"result": {}},
    {"result": {"roots": []}},
    {"result": {"roots": [{"uri": "https://example.com/"}]}},
]


@pytest.mark.parametrize("answer", ODD, ids=str)
def test_where_the_client_has_none_the_configured_ones_count(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    settings = {"roots": ["/srv/work"]}
    with host(tmp_path, has_roots=True, servers=server(tmp_path), settings=settings) as client:
        call = start(client)
        client.read_until(lambda: questions(client), "roots/list")
        client.send({"id": questions(client)[0]["id"], **answer})
        assert roots_in(client.said_to(call)) == [{"uri": "file:///srv/work"}]


def test_a_client_that_never_answers_keeps_nobody_waiting(tmp_path: Path) -> None:
    servers = server(tmp_path)
    with host(tmp_path, has_roots=True, servers=servers, fixed={"roots_s": 0.1}) as client:
        assert roots_in(client.said_to(start(client))) == []
        assert len(questions(client)) == 1


def test_without_a_word_of_anybody_it_is_the_directory_of_the_project_and_never_home(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    here = {"CLAUDE_PROJECT_DIR": str(project)}
    with host(tmp_path, servers=server(tmp_path), env=here) as client:
        assert roots_in(client.said_to(start(client))) == [{"uri": project.as_uri()}]
    home = {"CLAUDE_PROJECT_DIR": str(tmp_path)}
    with host(tmp_path, servers=server(tmp_path), env=home) as client:
        assert roots_in(client.said_to(start(client))) == []


def bring(client: Host, said: Said, roots: list[dict[str, str]], **call: Any) -> Said:
    """Make the call again, with what its answer asked for."""
    assert said.result["inputRequests"] == {"roots": {"method": "roots/list"}}
    replies = {"roots": {"roots": roots}}
    return client.use(
        "execute_tool", replies=replies, state=said.result["requestState"], server="s", **call
    )


@both_backends
def test_a_modern_client_is_asked_by_the_call_in_which_a_server_wants_them_and_once(
    tmp_path: Path, era: str
) -> None:
    servers, settings = server(tmp_path, era), {"roots": ["/srv/work"]}
    with host(tmp_path, modern=True, has_roots=True, servers=servers, settings=settings) as client:
        asking = client.said_to(start(client))
        assert roots_in(bring(client, asking, ROOTS, tool="roots", args={})) == ROOTS
        if era == "legacy":
            assert len(client.messages("s", "tools/call")) == 1, "the server is not called again"
        assert roots_in(client.said_to(start(client))) == ROOTS
        client.send({"method": CHANGED})
        asking = client.said_to(start(client))
        assert roots_in(bring(client, asking, ROOTS[:1], tool="roots", args={})) == ROOTS[:1]
        if era == "legacy":
            until(lambda: client.messages("s", CHANGED), "the word to the server")


def test_a_server_that_wants_them_before_any_call_is_told_what_the_first_call_brings(
    tmp_path: Path,
) -> None:
    script = tmp_path / "asks.py"
    script.write_text(ASKS_AT_ONCE)
    servers = {"s": entry([plain()[0], str(script)], tmp_path, "s")}
    with host(tmp_path, modern=True, has_roots=True, servers=servers) as client:
        said: list[Said] = []
        until(
            lambda: said.append(client.use("list_servers")) or said[-1].is_question,
            "to be asked",
        )
        state, replies = said[-1].result["requestState"], {"roots": {"roots": ROOTS}}
        client.use("list_servers", replies=replies, state=state)
        assert roots_in(client.execute("s", "first")) == ROOTS


ASKS_AT_ONCE = """
import json, sys
def write(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
told = None
for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "asks", "version": "1"}}
        write({"id": m["id"], "result": result})
    elif method == "notifications/initialized":
        write({"id": 1, "method": "roots/list"})
    elif method == "tools/list":
        tool = {"name": "first", "inputSchema": {"type": "object"}}
        write({"id": m["id"], "result": {"tools": [tool]}})
    elif method == "tools/call":
        text = {"type": "text", "text": json.dumps(told)}
        write({"id": m["id"], "result": {"content": [text]}})
    elif method is None and m["id"] == 1 and told is None:
        told = m["result"]
"""


def test_a_modern_client_that_brings_nothing_is_not_asked_again(tmp_path: Path) -> None:
    servers, wait = server(tmp_path), {"roots_s": 0.2}
    with host(tmp_path, modern=True, has_roots=True, servers=servers, fixed=wait) as client:
        assert client.said_to(start(client)).is_question
        assert roots_in(client.said_to(start(client))) == []
        assert roots_in(client.said_to(start(client))) == []


def test_roots_that_nobody_asked_for_count_for_nothing(tmp_path: Path) -> None:
    servers, wait = server(tmp_path), {"roots_s": 0.2}
    with host(tmp_path, modern=True, has_roots=True, servers=servers, fixed=wait) as client:
        replies = {"roots": {"roots": ROOTS}}
        said = client.use(
            "execute_tool", replies=replies, state="made-up", server="s", tool="roots", args={}
        )
        assert said.is_question
        assert roots_in(client.said_to(start(client))) == []


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
def test_the_filesystem_server_without_arguments_works_in_the_project_of_the_client(
    tmp_path: Path, *, modern: bool
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("milk")
    roots = [{"uri": project.as_uri()}]
    servers = {"s": entry(filesystem(), tmp_path, "s")}
    with host(tmp_path, modern=modern, has_roots=True, servers=servers) as client:
        if modern:
            said: list[Said] = []
            until(
                lambda: said.append(client.use("list_servers")) or said[-1].is_question,
                "to be asked",
            )
            state = said[-1].result["requestState"]
            client.use("list_servers", replies={"roots": {"roots": roots}}, state=state)
        else:
            tell(client, roots)
        until(
            lambda: str(project) in client.execute("s", "list_allowed_directories").text,
            "the directory",
        )
        read = client.execute("s", "read_text_file", path=str(project / "notes.txt"))
        assert read.text.startswith("milk")
        assert client.execute("s", "read_text_file", path=str(tmp_path / "config.json")).is_error


def test_a_call_that_brings_an_answer_is_not_asked_for_roots_first(tmp_path: Path) -> None:
    """Its answer would be lost, and the person asked twice."""
    with host(tmp_path, modern=True, has_roots=True, servers=server(tmp_path)) as client:
        question = client.use("add_server", **proposal())
        assert "approval" in question.result["inputRequests"]
        bring(client, client.said_to(start(client)), ROOTS, tool="roots", args={})
        client.send({"method": CHANGED})  # they are wanted again
        yes = {"approval": {"action": "accept", "content": {"decision": ALWAYS}}}
        state = question.result["requestState"]
        added = client.use("add_server", replies=yes, state=state, **proposal())
        assert added.json["phase"] == "connected"
        assert client.said_to(start(client)).is_question
