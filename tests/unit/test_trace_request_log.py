import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.journal.journal_reader import DatedLine, JournalReader
from emceepee_stdio.trace import request_log
from emceepee_stdio.trace.request import DroppedRecords, Leg, OpenRequest, RequestRecord
from emceepee_stdio.trace.request_log import RequestLog
from emceepee_stdio.trace.trace_reader import RequestLine, RequestReader, request_line

NOON = 1_700_000_000.0


class World:
    """A log in a directory, on virtual time."""

    def __init__(self, directory: Path, *, payloads: bool = False) -> None:
        self.directory = directory
        self.now = 0.0
        self.clock = Clock(monotonic=lambda: self.now, wall=lambda: NOON + self.now)
        file = JournalFile(directory, session="S", clock=self.clock, kind="requests")
        self.log = RequestLog(file, session="S", clock=self.clock, keeps_payloads=payloads)

    def request(self, tool: str = "execute_tool", *, outcome: str = "ok") -> OpenRequest:
        request = self.log.begin("tools/call", 7, tool=tool, bytes_in=10)
        self.now += 0.5
        self.log.end(request, outcome)
        return request

    def lines(self) -> list[RequestLine]:
        assert self.log.flush(60)
        reader = RequestReader(self.directory)
        reader.rewind(None, lambda _: True)
        try:
            return list(reader.read())
        finally:
            reader.close()

    def records(self) -> list[RequestRecord]:
        return [line.record for line in self.lines() if isinstance(line.record, RequestRecord)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "logs")
    yield made
    made.log.close()


def test_a_record_comes_back_from_its_file_as_it_was(world: World):
    request = world.log.begin("tools/call", "r-1", tool="execute_tool", bytes_in=120)
    request.server, request.server_tool = "s", "echo"
    request.enter(Leg.SERVER)
    world.now += 0.25
    request.leave(Leg.SERVER)
    world.log.answered(request, b"x" * 340, is_error=False)
    [record] = world.records()
    assert record == RequestRecord(
        id=record.id,
        session="S",
        kind="request",
        method="tools/call",
        start_ms=NOON * 1000,
        duration_ms=250.0,
        legs=[("rendering", 0.0), ("server", 250.0), ("rendering", 0.0)],
        outcome="ok",
        request_id="r-1",
        tool="execute_tool",
        server="s",
        server_tool="echo",
        bytes_in=120,
        bytes_out=340,
    )
    assert len(record.id) == 26
    assert (record.end_ms, record.failed) == (NOON * 1000 + 250.0, False)


def test_ids_sort_by_the_beginning_of_requests(world: World):
    first, second = (world.log.begin("ping", number) for number in (1, 2))
    world.log.end(second, "ok")
    world.log.end(first, "ok")
    assert [r.request_id for r in sorted(world.records(), key=lambda r: r.id)] == [1, 2]


def test_the_file_is_for_its_owner_alone_and_no_journal(world: World):
    world.request()
    [line] = world.lines()
    [path] = world.directory.iterdir()
    assert os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name.startswith("requests-")
    assert path.read_bytes() == line.raw + b"\n"
    assert not JournalReader(world.directory).has_files


def test_a_request_ends_once(world: World):
    request = world.request()
    world.log.end(request, "cancelled")
    world.log.answered(request, b"", is_error=True)
    assert [record.outcome for record in world.records()] == ["ok"]


def test_a_promoted_request_is_the_parent_of_its_task(world: World):
    request = world.log.begin("tools/call", 1, tool="execute_tool")
    world.now += 1
    world.log.answered(request, b"later", is_error=False, task_id="T")
    world.now += 2
    world.log.task_ended(request, "completed", {"bytes": 9, "is_error": True})
    [promoted, task] = world.records()
    assert (promoted.outcome, promoted.task_id, promoted.kind) == ("promoted", "T", "request")
    assert (task.outcome, task.task_id, task.kind) == ("tool_error", "T", "task")
    assert (task.parent, task.request_id, task.bytes_out) == (promoted.id, None, 9)
    assert (promoted.duration_ms, task.duration_ms) == (1000.0, 2000.0)


@pytest.mark.parametrize(
    ("how", "outcome", "code"),
    [
        ("failed", "error", "server_failed"),
        ("cancelled", "cancelled", None),
        ("expired", "error", "call_timeout"),
    ],
)
def test_a_task_says_how_it_ended(world: World, how: str, outcome: str, code: str | None):
    request = world.log.begin("tools/call", 1)
    world.log.answered(request, b"", is_error=False, task_id="T")
    world.log.task_ended(request, how, {"error": "server_failed"} if how == "failed" else {})
    record = world.records()[-1]
    assert (record.outcome, record.error_code) == (outcome, code)


def test_a_request_that_is_made_again_goes_on_under_its_new_id(world: World):
    asked = world.log.begin("tools/call", 1)
    asked.enter(Leg.SERVER)
    world.now += 1
    world.log.asked_back(asked)
    world.now += 10
    again = world.log.begin("tools/call", 2)
    world.log.made_again(asked, again)
    world.now += 3
    world.log.answered(asked, b"", is_error=False)
    [first, second] = world.records()
    assert (first.outcome, first.request_id) == ("input_required", 1)
    assert (second.outcome, second.request_id, second.parent) == ("ok", 2, first.id)
    assert second.legs == [("server", 3000.0)]


def test_what_is_open_at_the_end_is_recorded_as_cancelled(world: World):
    world.log.begin("tools/call", 1)
    world.log.close()
    [record] = world.records()
    assert record.outcome == "cancelled"


def test_secrets_are_hidden_in_names_and_ids_and_long_ones_are_cut(world: World):
    world.log.secrets.add(["hunter2"])
    request = world.log.begin("tools/call", "id-hunter2", tool="t" * 5_000)
    request.server = "sk-ant-REDACTED"
    world.log.end(request, "ok")
    [record] = world.records()
    assert record.request_id == "id-[redacted]"
    assert record.tool is not None
    assert len(record.tool) == 200
    assert record.server is not None
    assert "0123456789" not in record.server


def test_a_number_that_no_other_program_reads_is_not_written(world: World):
    world.log.end(world.log.begin("ping", 2**70), "ok")
    [record] = world.records()
    assert record.request_id == "a number of over 63 bits"


def test_payloads_are_recorded_where_it_is_asked_for_without_secrets_and_cut(tmp_path: Path):
    world = World(tmp_path, payloads=True)
    request = world.log.begin("tools/call", 1)
    request.arguments = msgspec.json.encode({"password": "hunter2", "path": "x"})
    world.log.answered(request, b'{"text":"%b"}' % (b"y" * 10**6), is_error=False)
    [record] = world.records()
    assert record.arguments is not None
    assert "hunter2" not in record.arguments
    assert '"path":"x"' in record.arguments
    assert record.result is not None
    assert len(record.result) == 16 * 1024
    world.log.close()


def test_without_being_asked_for_no_payload_is_recorded(world: World):
    request = world.log.begin("tools/call", 1)
    world.log.answered(request, b"secret", is_error=False)
    [record] = world.records()
    assert record.result is None


def test_what_comes_faster_than_it_is_written_is_counted_where_it_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    reached, opened = threading.Event(), threading.Event()
    append = request_log.JournalFile.append

    def slow(file: request_log.JournalFile, lines: list[bytes]) -> None:
        reached.set()
        assert opened.wait(60)
        append(file, lines)

    monkeypatch.setattr(request_log.JournalFile, "append", slow)
    monkeypatch.setattr(world.log._writer, "max_lines", 3)
    world.request()
    assert reached.wait(60)
    for _ in range(5):
        world.request()
    opened.set()
    lines = world.lines()
    assert [line.record.count for line in lines if isinstance(line.record, DroppedRecords)] == [2]
    assert len(world.records()) == 4
    assert world.log.dropped == 2


def test_records_that_no_disk_takes_are_counted_once_it_takes_some_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:

        def full(_file: request_log.JournalFile, _lines: list[bytes]) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(request_log.JournalFile, "append", full)
        world.request()
        world.request()
        assert world.log.flush(60)
    world.request()
    counts = [
        line.record.count for line in world.lines() if isinstance(line.record, DroppedRecords)
    ]
    assert counts == [2]
    assert len(world.records()) == 1


def test_a_line_that_is_not_ours_is_read_as_such(tmp_path: Path):
    (tmp_path / "requests-x.jsonl").write_bytes(b'not json\n{"kind":"other"}\n[]\n')
    reader = RequestReader(tmp_path)
    reader.rewind(None, lambda _: True)
    assert [line.record for line in reader.read()] == [None, None, None]
    reader.close()


@pytest.mark.parametrize(
    "change",
    [
        {"start_ms": 1e300},
        {"start_ms": -1e15},
        {"duration_ms": -5},
        {"legs": [["server", -1]]},
        {"start_ms": 2e14, "duration_ms": 2e14},
    ],
)
def test_times_that_no_clock_shows_are_no_record(world: World, change: dict[str, object]):
    world.request()
    [line] = world.lines()
    odd = msgspec.json.encode(msgspec.json.decode(line.raw) | change)
    assert request_line(line.raw, 1.0).record is not None
    assert request_line(odd, 1.0) == DatedLine(odd, 1.0, None)


def test_no_less_than_one_record_is_missing():
    line = b'{"kind":"dropped","session":"S","count":%d,"start_ms":5}'
    assert request_line(line % 3, 1.0).record is not None
    assert request_line(line % -3, 1.0).record is None


@pytest.mark.posix_only("owners of POSIX")
def test_the_file_of_somebody_else_is_not_believed(world: World):
    world.request()
    assert world.records()
    [path] = world.directory.iterdir()
    if os.geteuid() == 0:  # nobody else can give a file away
        os.chown(path, 12345, 12345)
        assert world.records() == []


def test_the_last_requests_are_kept_for_whoever_asks(world: World):
    for number in range(60):
        world.log.end(world.log.begin("ping", number), "ok")
    assert [record.request_id for record in world.log.recent()] == list(range(10, 60))


def test_a_silent_log_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    log = RequestLog.silent(Clock())
    log.end(log.begin("ping", 1), "ok")
    log.close()
    assert list(tmp_path.iterdir()) == []
    assert repr(log) == "<RequestLog 0 open, 1 begun>"
