"""What one server sends costs bounded memory, and it is given back."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.raw import PROXY, Message, Proxy, entry, until
from tests.peers import flooder, plain, rude

pytestmark = pytest.mark.fresh

MB = 1 << 20
MESSAGES = 120  # of 2 MB each: several times what may be kept of them
PINGS, ID_BYTES = 6_000, 3_900  # with the longest ids that are answered
MORE = 64 * MB  # while they come
LEFT = 16 * MB  # when they were read


LIMITED = (
    "import os, resource as r, sys; r.setrlimit(r.RLIMIT_AS, (1_500_000_000, 1_500_000_000)); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
LITTLE_SPACE = (sys.executable, "-c", LIMITED)


def events_in(text: str) -> list[Message]:
    """The events that a block of context tells."""
    if not text.startswith('{"events_since_last_response"'):
        return []
    return json.loads(text)["events_since_last_response"]


class Measured(Proxy):
    """A proxy whose resident memory is looked at."""

    def status(self, field: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith(f"{field}:")]
        return int(line.split()[1]) * 1024

    def settle(self) -> int:
        """Its memory now; the peak is counted anew from here."""
        self.sync()
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.status("VmRSS")

    @property
    def peak(self) -> int:
        return self.status("VmHWM")

    def sync(self) -> None:
        self.call("list_timers")

    def use(self, tool: str, /, **arguments: Any) -> Any:
        return json.loads(self.call(tool, **arguments)["content"][0]["text"])

    def read_all(self) -> None:
        """Whatever can be read, until nothing is left."""
        self.call("get_notifications", limit=1000)
        while json.loads(self.call("get_logs", limit=1000)["content"][-1]["text"]).get("remaining"):
            pass
        while self.use("await_activity", timeout_ms=0)["events"]:
            pass
        self.said.clear()

    def flood(self, kind: str, count: int, size: int, *, server: str = "bad") -> int:
        """Begin a flood; with a progress token, so that progress is forwarded."""
        arguments = {"kind": kind, "count": count, "bytes": size}
        called = {"server": server, "tool": "flood", "args": arguments, "timeout_ms": 50_000}
        params = {"name": "execute_tool", "arguments": called, "_meta": {"progressToken": 7}}
        return self.ask("tools/call", params)

    def finish(self, flood: int) -> None:
        """Until all of it was sent, however long that takes on this machine."""
        content = self.answer(flood)["result"]["content"]
        while content[0]["text"] != "sent":
            [task] = self.use("list_tasks", server="bad", status="working")["tasks"] or [None]
            if task is None:
                return
            content = self.call("get_task_result", task_id=task["task_id"])["content"]

    def ask_for_task(self, server: str, tool: str, /, **args: Any) -> str:
        asked = {"server": server, "tool": tool, "args": args, "timeout_ms": 0}
        content = self.call("execute_tool", **asked)["content"]
        return json.loads(content[1]["text"])["proxy_task"]["task_id"]

    def ended(self, task: str) -> None:
        until(lambda: self.status_of(task) == "completed", f"the end of {task}")

    def status_of(self, task: str) -> str:
        """Looked at in our own resource, which tells no events."""
        working = json.loads(
            self.request("resources/read", {"uri": "emceepee://status"})["contents"][0]["text"]
        )
        return "completed" if not working["working_tasks"] else f"{task} works"

    def remaining_events(self) -> list[Message]:
        told: list[Message] = []
        while groups := self.use("await_activity", timeout_ms=0)["events"]:
            told += [event for group in groups for event in group["events"]]
        return told


@contextmanager
def floods(tmp_path: Path, **options: Any) -> Iterator[Measured]:
    """A proxy with a server that floods, one that reads on meanwhile, and one that does not."""
    servers = {name: entry(flooder(), tmp_path, name) for name in ("bad", "reads")}
    servers["good"] = entry(plain(), tmp_path, "good")
    with measure(tmp_path, servers, **options) as made:
        made.run("bad", "echo", message="hi")
        made.read_all()
        yield made


@contextmanager
def measure(tmp_path: Path, servers: Mapping[str, Message], **options: Any) -> Iterator[Measured]:
    """A proxy whose servers are connected; it ends well."""
    made = Measured(tmp_path, servers=servers, **options)
    try:
        made.greet()
        until(lambda: set(made.phases().values()) == {"connected"}, "all servers")
        yield made
        made.meet_family()
        made.close_stdin()
        assert made.wait() == 0
        assert "Traceback" not in made.errors()
    finally:
        made.clear_away()


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[Measured]:
    with floods(tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", ["notification", "log", "ping", "progress"])
def test_a_flood_of_large_messages_costs_little_memory_and_gives_it_back(
    measured: Measured, kind: str
) -> None:
    before = measured.settle()
    measured.finish(measured.flood(kind, MESSAGES, 2 * MB))
    measured.read_all()
    peak = measured.peak
    after = measured.settle()
    assert peak - before < MORE
    assert after - before < LEFT


def test_a_server_that_asks_and_never_reads_is_not_read_from(measured: Measured) -> None:
    """Another that asks as much, and reads, is served to its end meanwhile."""
    before = measured.settle()
    measured.flood("deaf-ping", PINGS, ID_BYTES)
    measured.answer(measured.flood("long-id-ping", PINGS, ID_BYTES, server="reads"))
    assert measured.peak - before < MORE
    last = measured.received("bad", "sent")[-1]["number"]
    assert last * ID_BYTES < 2 * MB


def test_an_id_without_measure_is_not_answered(measured: Measured) -> None:
    measured.finish(measured.flood("long-id-ping", 1, 8_000))
    (line,) = measured.use("get_logs", server="bad", sources=["stdout"])["logs"]
    assert line["text"] == "a request with an id of 2002 characters: not answered"


def test_a_result_of_a_great_many_nothings_costs_little_memory(measured: Measured) -> None:
    before = measured.settle()
    content = measured.answer(measured.flood("nothings", 1, 4 * MB))["result"]["content"]
    assert content[0]["text"].startswith("The server sent something that is no content block")
    assert measured.peak - before < MORE


def test_lines_without_an_end_of_many_servers_cost_little_memory(tmp_path: Path) -> None:
    """Each is as long as one may be; what is kept of all of them is four such lines."""
    endless = [f"s{n}" for n in range(12)]
    servers = {name: entry(rude("endless", str(16 * MB)), tmp_path, name) for name in endless}
    servers["good"] = entry(plain(), tmp_path, "good")
    with measure(tmp_path, servers, settings={"limits": {"line_bytes": 17 * MB}}) as client:
        before = client.settle()
        for name in endless:
            client.begin("execute_tool", server=name, tool="misbehave", args={}, timeout_ms=0)
        for name in endless:
            client.begin("execute_tool", server=name, tool="misbehave", args={}, timeout_ms=0)
        for name in endless:  # it reads the second call when it has written all of the first
            until(lambda name=name: len(client.messages(name, "tools/call")) == 2, "the lines")
        assert client.peak - before < (4 * 17 + 32) * MB
        result = client.call("execute_tool", server="good", tool="big", args={"bytes": 2 * MB})
        assert json.loads(result["content"][-1]["text"])["stored_result"]["chars"] == 2 * MB


def test_progress_for_a_client_that_does_not_read_costs_little_memory(measured: Measured) -> None:
    before = measured.settle()
    flood = measured.flood("progress", MESSAGES, 2 * MB)
    until(
        lambda: len(measured.received("bad", "sent")) == MESSAGES // 10, "all progress to be sent"
    )
    measured.finish(flood)
    assert measured.peak - before < MORE
    told = [m["params"]["message"] for m in measured.said if "method" in m]
    assert told
    assert all(message.endswith(" characters)") for message in told)
    assert f"(cut from {2 * MB + 2} characters)" in told[0]


@pytest.mark.slow
def test_with_little_address_space_a_flood_ends_nothing(tmp_path: Path) -> None:
    with floods(tmp_path, python=(*LITTLE_SPACE, *PROXY)) as measured:
        for kind in ("notification", "log"):
            measured.finish(measured.flood(kind, 40, 15 * MB))
        measured.answer(measured.flood("nothings", 1, 8 * MB))
        assert measured.run("good", "echo", message="hi") == "hi"


def test_a_flood_of_one_server_pushes_out_no_end_of_a_task_and_no_timer(
    measured: Measured,
) -> None:
    task = measured.ask_for_task("good", "echo", message="hi")
    measured.call("set_timer", duration_ms=1, message="tea")
    measured.ended(task)
    flood = measured.flood("notification", 5_000, 10)
    measured.answer(flood)
    told = [
        event
        for message in measured.said
        for block in message.get("result", {}).get("content", [])
        for event in events_in(block["text"])
    ]
    kinds = {event["type"] for event in told + measured.remaining_events()}
    assert {"task_completed", "timer_expired", "notification"} <= kinds


def test_large_sampling_requests_are_all_listed_and_each_can_be_read_whole(
    measured: Measured,
) -> None:
    measured.answer(measured.flood("sampling", 20, 4 * MB))
    asked = measured.use("get_sampling_requests")["sampling_requests"]
    assert 1 <= len(asked) < 20, "the others were refused"
    for request in asked:
        assert request["request_bytes"] > 4 * MB
        uri = request["stored_result"]["uri"]
        page = measured.call("read_resource", server="emceepee", uri=uri, limit=100)
        assert page["content"][0]["text"].startswith('{"messages":')


def test_questions_of_one_server_take_little_of_the_answers_of_another(
    measured: Measured,
) -> None:
    measured.answer(measured.flood("elicitation", 20, 20_000))
    until(lambda: measured.use("get_elicitations", limit=1)["total"] == 20, "all questions")
    answer = measured.call("execute_tool", server="good", tool="echo", args={"message": "hi"})
    assert len(json.dumps(answer)) < 24_000
    context = json.loads(answer["content"][-1]["text"])["pending_client_action"]
    assert len(context["elicitations"]) == 20, "none is left out"
    short = [one for one in context["elicitations"] if "line" in one]
    assert short
    assert all(one["whole_in"] == "get_elicitations" for one in short)
    first = measured.use("get_elicitations", limit=2)
    assert [len(first["elicitations"]), first["total"]] == [2, 20]
    second = measured.use("get_elicitations", limit=3, cursor=first["next_cursor"])
    assert second["elicitations"][0]["request_id"] != first["elicitations"][0]["request_id"]


def test_a_description_without_end_is_cut_in_the_list_and_its_size_is_said(
    measured: Measured,
) -> None:
    (tool,) = measured.use("list_tools", server="bad", tool="flood")["tools"]
    assert len(tool["description"]) < 5_000
    assert tool["description"].endswith(f"(cut from {5 * MB} characters)")


def test_tasks_are_listed_page_by_page(measured: Measured) -> None:
    tasks = [measured.ask_for_task("good", "echo", message="hi") for _ in range(5)]
    for task in tasks:
        measured.ended(task)
    first = measured.use("list_tasks", include_completed=True, limit=3)
    assert (len(first["tasks"]), first["total"]) == (3, 5)
    second = measured.use("list_tasks", include_completed=True, cursor=first["next_cursor"])
    listed = [one["task_id"] for one in first["tasks"] + second["tasks"]]
    assert sorted(listed) == sorted(tasks)
