import json
import math
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal, JournalEvent, Level, default_directory, writer
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.journal.writer import (
    MAX_LINE_BYTES,
    MAX_STDERR_CHARS,
    MAX_STRING_CHARS,
    BackgroundWriter,
)

NOON = 1_800_000_000.0


def fixed_clock() -> Clock:
    return Clock(monotonic=lambda: 0.0, wall=lambda: NOON)


class Stderr(list[bytes]):
    def __call__(self, line: bytes) -> None:
        self.append(line)

    def text(self) -> str:
        return b"".join(self).decode()


@pytest.fixture
def stderr() -> Stderr:
    return Stderr()


@pytest.fixture
def journal(tmp_path: Path, stderr: Stderr):
    journal = Journal.open(
        directory=tmp_path / "log", session="S1", clock=fixed_clock(), stderr=stderr
    )
    yield journal
    journal.close()


def lines_of(journal: Journal) -> list[dict[str, object]]:
    assert journal.flush()
    return [json.loads(line) for line in journal.statistics().path.read_bytes().splitlines()]


def test_a_line_has_its_fields_in_order_and_omits_what_is_unknown(journal: Journal):
    journal.write("info", "server_connected", server="git", request_id=7, tools=3)
    journal.write("info", "registry_shutdown_start")
    journal.flush()
    assert journal.statistics().path.read_text() == (
        '{"timestamp":"2027-01-15T08:00:00.000Z","level":"info","event":"server_connected",'
        '"session":"S1","server":"git","request_id":7,"data":{"tools":3}}\n'
        '{"timestamp":"2027-01-15T08:00:00.000Z","level":"info","event":"registry_shutdown_start",'
        '"session":"S1","data":{}}\n'
    )


def test_levels_below_the_set_one_are_not_written(tmp_path: Path, stderr: Stderr):
    for level, count in (("debug", 4), ("info", 3), ("warning", 2), ("error", 1)):
        journal = Journal.open(
            directory=tmp_path / level, session="s", clock=Clock(), level=level, stderr=stderr
        )
        for written in ("debug", "info", "warning", "error"):
            journal.write(written, "x")
        assert len(lines_of(journal)) == count
        journal.close()


def test_a_known_event_is_written_at_its_usual_level(journal: Journal):
    journal.record(JournalEvent.TOOL_EXECUTION_START, tool="x")
    journal.record(JournalEvent.TASK_FAILED, server="git", request_id="r", tool="x")
    (line,) = lines_of(journal)
    assert (line["event"], line["level"], line["server"]) == ("task_failed", "warning", "git")


def test_a_level_nobody_knows_counts_as_an_error(journal: Journal):
    journal.write("loud", "x")
    journal.write("info", "y")
    assert [line["level"] for line in lines_of(journal)] == ["error", "info"]


def test_data_may_use_any_name(journal: Journal):
    journal.write("info", "x", event="e", level="l", self="s", timestamp="t", session="other")
    (line,) = lines_of(journal)
    assert line["event"] == "x"
    assert line["data"] == {
        "event": "e",
        "level": "l",
        "self": "s",
        "timestamp": "t",
        "session": "other",
    }


def test_warnings_and_errors_are_said_on_stderr_in_one_readable_line(
    journal: Journal, stderr: Stderr
):
    journal.write("info", "server_connected", server="git")
    journal.write(
        "warning", "server_reconnecting", server="git", attempt=2, why="exit code 1", token="abc"
    )
    journal.write("error", "task_failed", request_id="r1", data={"a": [1]}, none=None)
    journal.flush()
    assert stderr.text() == (
        "emceepee: warning: server_reconnecting server=git attempt=2"
        ' why="exit code 1" token=[redacted]\n'
        'emceepee: error: task_failed request_id=r1 data={"a":[1]}\n'
    )


def test_a_stderr_line_is_short_and_cannot_move_the_cursor(journal: Journal, stderr: Stderr):
    journal.write(
        "error", "x\x1b[2J\n", server="a\r\u202e", text="\x9b\u2028" + "é" * 1000, more="m"
    )
    journal.flush()
    (line,) = stderr.text().splitlines()
    assert line.isprintable()
    assert len(line) <= MAX_STDERR_CHARS
    assert line.startswith("emceepee: error: x\\x1b[2J\\n server=")


class Opaque:
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


def test_data_of_any_kind_makes_a_valid_line(journal: Journal):
    journal.write(
        "info", "x", thing=Opaque(), nan=math.nan, text="\ud800", number=1 << 9000, raw=b"\xff"
    )
    journal.write("info", "\udfff", server="\ud800")
    first, second = lines_of(journal)
    assert first["data"] == {
        "thing": "[Opaque]",
        "nan": None,
        "text": "\\ud800",
        "number": "[large number]",
        "raw": "\\xff",
    }
    assert (second["event"], second["server"]) == ("\\udfff", "\\ud800")


def test_a_line_that_cannot_be_made_is_counted_and_nobody_hears_of_it(
    tmp_path: Path, stderr: Stderr
):
    def broken() -> float:
        raise RuntimeError("no clock")

    journal = Journal.open(directory=tmp_path, session="s", clock=fixed_clock(), stderr=stderr)
    journal._clock.now = broken
    journal.write("error", "x")
    journal.close()
    assert journal.statistics().lines_dropped == 1


def test_long_strings_and_long_lines_are_cut_and_say_so(journal: Journal):
    journal.write("info", "x", text="a" * 100_000)
    journal.write("info", "y", items=['"' * 15_000] * 4, name="n" * 10)
    journal.write("info", "z" * 1000)
    first, second, third = lines_of(journal)
    assert str(first["data"]["text"]).startswith("a" * MAX_STRING_CHARS + "… [cut] 100000")
    assert second["data"]["bytes"] > MAX_LINE_BYTES
    assert "[cut]" in second["data"]
    assert len(str(third["event"])) < 300
    for line in journal.statistics().path.read_bytes().splitlines():
        assert len(line) < MAX_LINE_BYTES


def test_nothing_is_touched_before_the_first_line(tmp_path: Path):
    before = threading.active_count()
    journal = Journal.open(directory=tmp_path / "log", session="s", clock=Clock())
    journal.write("debug", "below the level")
    assert threading.active_count() == before
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_closing_twice_is_the_same_as_closing_once_and_later_lines_are_counted(journal: Journal):
    journal.write("info", "x")
    journal.close()
    journal.close()
    journal.write("info", "y")
    journal.write("error", "z")
    assert journal.flush()
    assert [line["event"] for line in lines_of(journal)] == ["x"]
    assert journal.statistics().lines_dropped == 2


def test_lines_from_many_threads_are_whole_and_all_there(journal: Journal):
    def work(n: int) -> None:
        for i in range(200):
            journal.write("info", "x", thread=n, i=i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = lines_of(journal)
    assert len(lines) == 1600
    for n in range(8):
        own = [line["data"]["i"] for line in lines if line["data"]["thread"] == n]
        assert own == list(range(200))


class AdmissionControl:
    """Holds the file's writer where it is until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        append = JournalFile.append

        def gated(file: JournalFile, lines: list[bytes]) -> None:
            self.reached.set()
            self.opened.wait(60)
            append(file, lines)

        monkeypatch.setattr(JournalFile, "append", gated)


def small_journal(tmp_path: Path, stderr: Callable[[bytes], object] | None) -> Journal:
    clock = fixed_clock()
    file = JournalFile(tmp_path, session="s", clock=clock, max_bytes=10**7, files=2, max_age_days=1)
    return Journal(file, stderr=stderr, max_lines=10)


def test_a_flood_is_dropped_beyond_the_bound_and_the_count_is_written(
    tmp_path: Path, stderr: Stderr, monkeypatch: pytest.MonkeyPatch
):
    gate = AdmissionControl(monkeypatch)
    journal = small_journal(tmp_path, stderr)
    journal.write("info", "first")
    assert gate.reached.wait(60)
    for n in range(100):
        journal.write("info", "flood", n=n)
    journal.write("error", "loud")
    assert journal.statistics().lines_dropped == 91
    gate.opened.set()
    lines = lines_of(journal)
    assert [line["event"] for line in lines] == ["first", *["flood"] * 10, "journal_dropped"]
    assert lines[-1]["data"] == {"count": 91}
    assert stderr.text() == ("emceepee: error: loud\nemceepee: warning: journal_dropped count=91\n")
    journal.write("info", "after")
    assert lines_of(journal)[-1]["event"] == "after"
    assert journal.statistics().lines_written == 13
    journal.close()


def test_what_queue_and_file_lost_together_is_counted_once_the_file_is_well(
    tmp_path: Path, stderr: Stderr, monkeypatch: pytest.MonkeyPatch
):
    gate = AdmissionControl(monkeypatch)
    directory = tmp_path / "log"
    directory.touch()
    journal = small_journal(directory, stderr)
    journal.write("info", "first")
    assert gate.reached.wait(60)
    for _ in range(15):
        journal.write("info", "flood")
    gate.opened.set()
    assert journal.flush()
    assert journal.statistics().lines_dropped == 16
    directory.unlink()
    journal.write("info", "kept")
    lines = lines_of(journal)
    assert [line["event"] for line in lines] == ["journal_dropped", "kept"]
    assert lines[0]["data"] == {"count": 16}
    assert "lines_lost=16" in stderr.text()
    journal.close()


def test_a_stuck_reader_of_stderr_holds_up_neither_the_file_nor_the_end(tmp_path: Path):
    stuck = threading.Event()
    journal = small_journal(tmp_path, lambda _: stuck.wait(60))
    for n in range(1100):
        journal.write("error", "x", n=n)
        assert journal._to_file.flush(60)
    assert len(journal.statistics().path.read_bytes().splitlines()) == 1100
    assert not journal.flush(0.01)
    journal.close()
    stuck.set()


def test_lines_that_stderr_had_no_room_for_are_counted_on_it(tmp_path: Path):
    reached, opened, said = threading.Event(), threading.Event(), Stderr()

    def slow(line: bytes) -> None:
        reached.set()
        opened.wait(60)
        said(line)

    journal = Journal.open(directory=tmp_path, session="s", clock=Clock(), stderr=slow)
    journal.write("error", "x")
    assert reached.wait(60)
    for _ in range(1005):
        journal.write("error", "x")
    opened.set()
    assert journal.flush(60)
    assert said[-1] == b"emceepee: warning: journal_dropped of=stderr count=5\n"
    assert len(said) == 1002
    journal.close()


@pytest.mark.parametrize("error", [OSError, ValueError, BrokenPipeError, BlockingIOError, KeyError])
def test_a_stderr_that_fails_costs_nothing_but_its_own_lines(
    tmp_path: Path, error: type[Exception]
):
    def fail(_: bytes) -> None:
        raise error

    journal = small_journal(tmp_path, fail)
    journal.write("error", "x")
    journal.write("error", "y")
    assert len(lines_of(journal)) == 2
    journal.close()


def test_one_line_that_stderr_refuses_does_not_take_the_next_with_it(tmp_path: Path):
    said = Stderr()

    def refuse_the_bad(line: bytes) -> None:
        if line == b"bad":
            raise BlockingIOError
        said(line)

    journal = small_journal(tmp_path, refuse_the_bad)
    journal._carry_to_stderr([b"bad", b"good"], 0)
    assert said == [b"good"]


def test_without_stderr_everything_is_in_the_file_only(tmp_path: Path):
    journal = small_journal(tmp_path, None)
    journal.write("error", "x")
    assert [line["event"] for line in lines_of(journal)] == ["x"]
    journal.close()


def test_stderr_is_written_whole_even_in_pieces(monkeypatch: pytest.MonkeyPatch):
    reader, end = os.pipe()
    monkeypatch.setattr(writer, "_STDERR_FD", end)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:3]))
    writer.write_to_stderr(b"one two three\n")
    monkeypatch.undo()
    os.close(end)
    assert os.read(reader, 100) == b"one two three\n"
    os.close(reader)


def test_a_batch_that_runs_into_the_unexpected_is_lost_but_the_next_is_not():
    carried: list[bytes] = []

    def carry(lines: list[bytes], _: int) -> None:
        if b"bad" in lines:
            raise KeyError
        carried.extend(lines)

    outlet = BackgroundWriter("x", carry, max_lines=10, max_bytes=100)
    outlet.offer(b"bad", 3)
    assert outlet.flush(60)
    outlet.offer(b"good", 4)
    assert outlet.close(60)
    assert carried == [b"good"]
    assert outlet.dropped == 1


def test_the_bound_holds_for_bytes_as_well_as_for_lines():
    reached, opened = threading.Event(), threading.Event()

    def carry(_lines: list[bytes], _dropped: int) -> None:
        reached.set()
        opened.wait(60)

    outlet = BackgroundWriter("x", carry, max_lines=99, max_bytes=8)
    outlet.offer(b"12345678", 8)
    assert reached.wait(60)
    outlet.offer(b"12345678", 8)
    outlet.offer(b"1", 1)
    assert outlet.dropped == 1
    assert repr(outlet) == "<BackgroundWriter x 1 waiting 1 dropped>"
    opened.set()
    assert outlet.close(60)


def test_a_thread_that_gathers_is_woken_before_its_time_by_many_lines():
    carried: list[bytes] = []
    reached = threading.Event()

    def carry(lines: list[bytes], _dropped: int) -> None:
        carried.extend(lines)
        reached.set()

    outlet = BackgroundWriter(
        "x", carry, max_lines=99, max_bytes=99, gather_s=3_600, gather_lines=3
    )
    for line in (b"a", b"b", b"c"):
        outlet.offer(line, 1)
    assert reached.wait(60)
    assert carried == [b"a", b"b", b"c"]
    assert outlet.close(60)


def test_lines_wait_for_a_thread_when_there_is_none_to_be_had(monkeypatch: pytest.MonkeyPatch):
    carried: list[bytes] = []

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    outlet = BackgroundWriter(
        "x", lambda lines, _: carried.extend(lines), max_lines=9, max_bytes=99
    )
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        outlet.offer(b"a", 1)
        assert not outlet.flush(0)
    assert outlet.close(60)
    assert carried == [b"a"]


def test_the_directory_is_the_platforms_unless_the_environment_names_one(tmp_path: Path):
    assert default_directory({"EMCEEPEE_LOG_DIR": str(tmp_path)}) == tmp_path
    assert "emceepee" in str(default_directory({}))


def test_every_event_has_a_level_and_a_sentence():
    for event in JournalEvent:
        assert event.level in Level
        assert re.fullmatch(r"[A-Z].*\.", event.meaning)
        assert event.value == event.name.lower()
    assert JournalEvent("server_connected") is JournalEvent.SERVER_CONNECTED


def test_a_journal_prints_what_it_is_and_how_it_is(journal: Journal):
    journal.write("info", "x")
    journal.flush()
    path = journal.statistics().path
    assert repr(journal) == f"<Journal {path.name} well 1 lines>"
    assert repr(journal._file) == f"<JournalFile {path.name} open {path.stat().st_size} bytes>"
