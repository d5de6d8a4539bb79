"""What the journal tells of a session: who came, what the client was told, why it ended."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Answer
from tests.e2e.clients.raw import MODERN, Proxy, entry, proxy
from tests.peers import plain

Message = dict[str, Any]

# The line that tells of an event of the client; "event_added" names the type itself.
LINES = {
    "task_failed": "task_failed",
    "process_crashed": "server_disconnected",
    "server_disconnected": "server_disconnected",
    "server_reconnecting": "server_reconnecting",
    "server_reconnected": "server_connected",
    "process_started": "server_spawned",
    "elicitation_request": "elicitation_received",
}


def told_line(event: Message, lines: list[Message]) -> Message | None:
    """The line of the journal that speaks of this event."""
    for line in lines:
        by_type = line["event"] == "event_added" and line["data"]["type"] == event["type"]
        if line.get("server") == event["server"] and (
            by_type or line["event"] == LINES.get(event["type"])
        ):
            return line
    return None


def told(client: Proxy) -> list[Message]:
    """All that the client was told so far, with whichever answer."""
    results = [message["result"] for message in client.said if "content" in message["result"]]
    return [event for result in results for event in Answer(result).told]


def until_told(client: Proxy, *kinds: str) -> None:
    while not set(kinds) <= {event["type"] for event in told(client)}:
        client.call("await_activity")


def test_everything_that_the_client_is_told_has_its_line_in_the_journal(tmp_path: Path):
    servers = {"s": entry(plain(), tmp_path, "s")}
    with proxy(tmp_path, servers=servers) as client:
        client.greet()
        client.run("s", "notify", n=1)
        client.call("set_timer", duration_ms=1, message="a secret of the model")
        until_told(client, "notification", "timer_expired")
        client.call("execute_tool", server="s", tool="ask")
        until_told(client, "elicitation_request")
        client.begin("execute_tool", server="s", tool="crash")
        until_told(client, "process_crashed", "task_failed", "elicitation_expired")
        until_told(client, "server_reconnected")
        client.close_stdin()
        assert client.wait() == 0
        lines = client.journal()
    assert [event for event in told(client) if told_line(event, lines) is None] == []
    assert "a secret of the model" not in json.dumps(lines)
    lost = next(line for line in lines if line["event"] == "server_disconnected")
    assert lost["level"] == "warning"
    assert lost["data"]["exit_code"] == 1
    failed = next(line for line in lines if line["event"] == "task_failed")
    assert (failed["level"], failed["data"]["tool"]) == ("warning", "ask")


def begun_and_ended(client: Proxy) -> tuple[Message, Message]:
    lines = client.journal()
    (begun,) = [line["data"] for line in lines if line["event"] == "client_connected"]
    (ended,) = [line["data"] for line in lines if line["event"] == "registry_shutdown_start"]
    return begun, ended


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
def test_a_session_begins_with_its_client_and_ends_with_the_reason(tmp_path: Path, *, modern: bool):
    with proxy(tmp_path) as client:
        if modern:
            params = {"name": "list_servers", "arguments": {}, "_meta": MODERN}
            client.request("tools/call", params)
        else:
            client.greet()
            client.call("list_servers")
        pid = client.process.pid
        client.close_stdin()
        assert client.wait() == 0
        begun, ended = begun_and_ended(client)
    protocol = "2026-07-28" if modern else "2025-11-25"
    assert begun == {"name": "raw", "version": "1", "protocol": protocol, "pid": pid}
    assert ended["reason"] == "the client closed its end"


def test_a_session_that_a_signal_ends_names_it(tmp_path: Path):
    with proxy(tmp_path) as client:
        client.greet()
        client.call("list_servers")
        client.process.send_signal(signal.SIGTERM)
        assert client.wait() == 0
        assert begun_and_ended(client)[1]["reason"] == "a signal: SIGTERM"


def test_a_flood_of_notifications_is_counted_in_the_journal_and_not_written(tmp_path: Path):
    servers = {"s": entry(plain(), tmp_path, "s")}
    with proxy(tmp_path, servers=servers, fixed={"output_lines": 20}) as client:
        client.greet()
        for n in range(30):
            client.run("s", "notify", n=1, method=f"notifications/fixture/{n}")
        client.close_stdin()
        assert client.wait() == 0
        added = [line for line in client.journal() if line["event"] == "event_added"]
    assert len(added) == 20
    assert added[0]["data"] == {"type": "notification", "method": "notifications/fixture/0"}


def test_the_same_notification_again_has_no_second_line_before_the_first_is_told(tmp_path: Path):
    servers = {"s": entry(plain(), tmp_path, "s")}
    with proxy(tmp_path, servers=servers) as client:
        client.greet()
        client.run("s", "notify", n=5, method="notifications/resources/updated")
        client.close_stdin()
        assert client.wait() == 0
        (line,) = [line for line in client.journal() if line["event"] == "event_added"]
    method = "notifications/resources/updated"
    assert line["data"] == {"type": "notification", "method": method, "uri": "fixture://one"}
