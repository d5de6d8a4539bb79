"""What `emceepee tail-logs` tells of real sessions: who, what came of each call, and what broke."""

import json
import re
from pathlib import Path

from tests.e2e.clients.raw import entry, proxy, until
from tests.e2e.test_cli_tail_logs import SGR, run, tail
from tests.peers import plain

HOSTILE = "[bold]\x1b[31mred\x1b[0m\u202e\x07 <script>"


def test_a_session_is_told_from_its_client_to_its_end_with_the_outcome_of_each_call(tmp_path: Path):
    """At the usual level: nobody had to ask for anything beforehand."""
    servers = {"git": entry(plain(), tmp_path, "git")}
    with proxy(tmp_path, servers=servers) as client:
        client.greet()
        client.run("git", "echo", message="hello")
        client.begin("execute_tool", server="git", tool="fail")
        client.answer(client.last_id)
        client.close_stdin()
        assert client.wait() == 0
    lines = run(tmp_path, "--level", "info", "-n", "1000")
    story = [re.sub(r"[\d.]+ (ms|s)$", "… ms", line[13:]) for line in lines]
    assert "info     -          client_connected: raw 1 protocol=2025-11-25" in story[0]
    assert "info     git        call echo ok … ms" in story
    assert "info     git        call fail tool_error … ms" in story
    assert any("registry_shutdown_start: the client closed its end" in line for line in story)
    ended = [json.loads(line) for line in run(tmp_path, "--json", "--event", "request_ended")]
    assert [line["data"]["tool"] for line in ended] == ["echo", "fail"]
    assert {"timestamp", "level", "event", "session", "server", "data"} <= ended[0].keys()


def calls_written(home: Path) -> int:
    """A call is answered before it is written down."""
    texts = [path.read_text() for path in (home / "journal").glob("requests-*.jsonl")]
    return sum(text.count('"tool":"list_servers"') for text in texts)


def test_several_sessions_have_a_column_which_chooses_one_of_them(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    for home in (one, two):
        home.mkdir()
    logging = {"logging": {"directory": str(one / "journal")}}
    with proxy(one) as first:
        first.greet()
        first.call("list_servers")
        until(lambda: calls_written(one) == 1, "the record of its call")
        lines = run(one, "-n", "1000")
        assert lines
        assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} info ", line) for line in lines)
        with proxy(two, settings=logging) as second:
            second.greet()
            second.call("list_servers")
            until(lambda: calls_written(one) == 2, "the records of both calls")
            with tail(one, "-n", "1000") as shown:
                shown.until(lambda: shown.text.count("list_servers ok") == 2, "both calls")
                marks = {line.split()[1] for line in shown.lines}
            assert len(marks) == 2
            mark = min(marks)
            of_one = run(one, "-n", "1000", "--session", mark)
            assert of_one
            assert all(line.split()[1] == "info" for line in of_one)


def test_a_crash_is_a_warning_with_its_cause_and_the_lines_of_stderr_below_it(tmp_path: Path):
    servers = {"git": entry(plain(), tmp_path, "git")}
    with proxy(tmp_path, servers=servers) as client:
        client.greet()
        client.call("execute_tool", server="git", tool="hang", timeout_ms=0)
        client.run("git", "stderr", text=HOSTILE, n=2)
        with tail(tmp_path, "--level", "warning", columns=80) as shown:
            client.begin("execute_tool", server="git", tool="crash", args={"code": 3})
            shown.until_said("task_failed: ")
            shown.until_said("server_disconnected: ")
            text = SGR.sub("", shown.text)
            raw = shown.text
        client.answer(client.last_id)
    lost = text.index("server_disconnected: ")
    assert re.search(r"\d W git +server_disconnected: .*(exit|code)", text)
    below = text[lost:].split("\n")[1:3]
    for line in below:
        assert re.fullmatch(r" {26}│ \[bold\]\\x1b\[31mred\\x1b\[0m\\u202e\\x07 <script>", line)
    assert re.search(r"\d W git +task_failed: .*", text)
    assert "\x1b[31mred" not in raw
    assert max(map(len, text.split("\n"))) <= 80
