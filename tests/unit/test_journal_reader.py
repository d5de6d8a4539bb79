import os
import threading
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import journal_reader as files_module
from emceepee_stdio.journal import journal_reader as reader_module
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.journal.journal_reader import DatedLine, JournalReader, Line, Part, journal_line
from emceepee_stdio.journal.writer import Record

NOON = 1_700_000_000.0
WAIT_S = 60.0
of_open_files = pytest.mark.posix_only("Windows removes and renames no file that is open")


def name(n: int) -> str:
    return f"emceepee-20270115T080000Z-{n}-S{n}.jsonl"


def line(text: str, *, at: float = NOON, level: str = "info") -> bytes:
    clock = Clock(monotonic=lambda: 0.0, wall=lambda: 0.0)
    record = Record(timestamp=clock.iso(at), level=level, event=text, session="S", data={})
    return record.as_json()


def everything(_: Line) -> bool:
    return True


def texts(reader: JournalReader) -> list[str]:
    return [found.record.event if found.record else found.raw.decode() for found in reader.read()]


class Process:
    """Writes as a proxy does: appends bytes, rotates between lines, renews a file that is gone."""

    def __init__(self, directory: Path, n: int, *, files: int = 50) -> None:
        self.path = directory / name(n)
        self.whole: list[bytes] = []
        self.files = files
        self._pending = b""
        self._file = self.path.open("ab", buffering=0)

    def write(self, data: bytes) -> None:
        if not self.path.exists():
            self._file.close()
            self._file = self.path.open("ab", buffering=0)
            self._pending = b""
        self._file.write(data)
        *lines, self._pending = (self._pending + data).split(b"\n")
        self.whole += [line for line in lines if line]

    def rotate(self) -> None:
        if self._pending:
            self.write(b"\n")
        self._file.close()
        names = [self.path, *(Path(f"{self.path}.{n}") for n in range(1, self.files))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.replace(older)
        self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    directory.mkdir()
    return directory


@pytest.fixture
def reader(directory: Path) -> Iterator[JournalReader]:
    reader = JournalReader(directory)
    yield reader
    reader.close()


# Each line once, in order

PROCESSES = st.integers(0, 2)
PIECE = st.text("ab\n", min_size=1, max_size=8).map(str.encode)
DEED = st.one_of(
    st.tuples(st.just("write"), PROCESSES, PIECE),
    st.tuples(st.just("rotate"), PROCESSES, st.just(b"")),
    st.tuples(st.just("read"), PROCESSES, st.just(b"")),
)
LEAST_FILES = 1 if os.name == "posix" else 2  # elsewhere the reader does not hold what is removed
if os.name == "posix":  # elsewhere the writer has it open
    DEED |= st.tuples(st.just("remove"), PROCESSES, st.just(b""))


class World:
    """Three processes and a reader; each file read is compared with what was written."""

    def __init__(self, directory: Path, files: int) -> None:
        self.directory = directory
        self.files = files
        self.processes: dict[int, Process] = {}
        self.reader = JournalReader(directory)
        self.rotations = dict.fromkeys(range(3), 0)

    def process(self, n: int) -> Process:
        if n not in self.processes:
            self.processes[n] = Process(self.directory, n, files=self.files)
        return self.processes[n]

    def do(self, deed: str, n: int, piece: bytes) -> None:
        if deed == "write":
            # The letter tells the processes apart.
            self.process(n).write(piece.replace(b"a", b"%d" % n).replace(b"b", b"%dx" % n))
        elif deed == "rotate":
            # More than are kept would be gone before anybody could read them.
            if self.rotations[n] >= self.files - 1:
                self.read()
            self.process(n).rotate()
            self.rotations[n] += 1
        elif deed == "remove":
            self.process(n)
            self.read()
            self.processes[n].path.unlink(missing_ok=True)
        else:
            self.read()

    def read(self) -> None:
        found: dict[bytes, list[bytes]] = {b"%d" % n: [] for n in range(3)}
        for shown in self.reader.read():
            found[shown.raw[:1]].append(shown.raw)
        for n, process in self.processes.items():
            assert found[b"%d" % n] == process.whole, process.path
            process.whole.clear()
            self.rotations[n] = 0

    def close(self) -> None:
        self.reader.close()
        for process in self.processes.values():
            process.close()


@settings(deadline=None, max_examples=150)
@given(deeds=st.lists(DEED, max_size=40), files=st.integers(LEAST_FILES, 4))
def test_each_line_is_read_once_and_in_order_however_it_is_written(
    deeds: list[tuple[str, int, bytes]], files: int
):
    with TemporaryDirectory() as directory:
        world = World(Path(directory), files)
        try:
            for deed in deeds:
                world.do(*deed)
            world.read()
        finally:
            world.close()


def test_nothing_is_lost_or_doubled_while_a_writer_rotates_at_the_same_time(
    directory: Path, reader: JournalReader
):
    wall = Clock()
    file = JournalFile(
        directory, session="s", clock=wall, max_bytes=300, files=1000, max_age_days=1
    )
    count = 3_000
    written = [b"%d\n" % n for n in range(count)]

    def write() -> None:
        for start in range(0, count, 7):
            file.append(b"".join(written[start : start + 7]))
        file.close()

    thread = threading.Thread(target=write)
    thread.start()
    shown: list[str] = []
    deadline = time.monotonic() + WAIT_S
    while len(shown) < count and time.monotonic() < deadline:
        shown += texts(reader)
    thread.join()
    assert shown + texts(reader) == [str(n) for n in range(count)]


def test_a_line_is_read_only_when_its_newline_is_there(directory: Path, reader: JournalReader):
    process = Process(directory, 1)
    whole = line("one")
    process.write(whole[:10])
    assert texts(reader) == []
    process.write(whole[10:-1])
    assert texts(reader) == []
    process.write(b"\n" + line("two")[:5])
    assert texts(reader) == ["one"]
    process.close()


def test_a_line_that_the_writer_took_back_is_never_seen(directory: Path, reader: JournalReader):
    path = directory / name(1)
    path.write_bytes(line("one") + b'{"timestamp": "half of a li')
    assert texts(reader) == ["one"]
    os.truncate(path, len(line("one")))
    with path.open("ab") as file:
        file.write(line("two"))
    assert texts(reader) == ["two"]


def test_a_file_that_was_cut_short_is_read_from_its_beginning(
    directory: Path, reader: JournalReader
):
    path = directory / name(1)
    path.write_bytes(line("one") + line("two"))
    assert texts(reader) == ["one", "two"]
    os.truncate(path, 0)
    with path.open("ab") as file:
        file.write(line("three"))
    assert texts(reader) == ["three"]


@of_open_files
def test_the_rest_of_a_removed_file_is_read_before_its_successor(directory: Path):
    process = Process(directory, 1)
    process.write(line("old"))
    reader = JournalReader(directory)
    process.write(line("one"))
    process.path.unlink()
    process.write(line("two"))
    assert texts(reader) == ["one", "two"]
    process.path.unlink()
    assert texts(reader) == []
    assert not reader.has_files
    process.write(line("three"))
    assert texts(reader) == ["three"]
    assert repr(reader) == f"<JournalReader {directory} 1 files 1 held>"
    reader.close()
    process.close()


@of_open_files
def test_removing_the_file_in_use_does_not_show_the_rotated_ones_again(directory: Path):
    process = Process(directory, 1)
    process.write(line("old"))
    process.rotate()
    process.write(line("one"))
    reader = JournalReader(directory)
    process.path.unlink()
    process.write(line("two"))
    assert texts(reader) == ["two"]
    reader.close()
    process.close()


def test_a_new_process_is_read_from_its_beginning_with_what_it_has_rotated(
    directory: Path, reader: JournalReader
):
    process = Process(directory, 1)
    for text in ("one", "two", "three"):
        process.write(line(text))
        process.rotate()
    assert texts(reader) == ["one", "two", "three"]
    process.close()


def test_a_directory_that_does_not_exist_yet_is_no_failure(tmp_path: Path):
    directory = tmp_path / "later"
    reader = JournalReader(directory)
    assert texts(reader) == []
    assert not reader.has_files
    directory.mkdir()
    (directory / name(1)).write_bytes(line("one"))
    assert texts(reader) == ["one"]
    assert reader.has_files
    reader.close()


@pytest.mark.posix_only("links and pipes of POSIX")
def test_only_plain_files_with_a_journals_name_are_read(directory: Path, reader: JournalReader):
    (directory / "notes.jsonl").write_bytes(line("foreign"))
    (directory / name(1)).mkdir()
    os.mkfifo(directory / name(2))
    (directory / name(3)).symlink_to(directory / "notes.jsonl")
    assert texts(reader) == []
    assert texts(reader) == []


def test_a_file_that_may_not_be_opened_is_passed_over(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    (directory / name(1)).write_bytes(line("one"))
    (directory / name(2)).write_bytes(line("two"))
    allowed = os.open

    def choosy(path: Path, flags: int) -> int:
        if path.name == name(1):
            raise PermissionError
        return allowed(path, flags)

    monkeypatch.setattr(os, "open", choosy)
    reader = JournalReader(directory)
    reader.rewind(None, everything)
    assert texts(reader) == ["two"]
    monkeypatch.undo()
    with (directory / name(1)).open("ab") as file:
        file.write(line("three"))
    assert texts(reader) == ["three"]
    reader.close()


# The past

CHARS = st.text("xy", max_size=5)
PAST = st.lists(
    st.tuples(PROCESSES, st.integers(0, 5), CHARS, st.booleans()), min_size=1, max_size=30
)


def past(directory: Path, entries: list[tuple[int, int, str, bool]]) -> list[str]:
    """Write lines of growing time, some of them at the same; what all of them say, by time."""
    processes = {n: Process(directory, n) for n in {n for n, *_ in entries}}
    said: list[tuple[float, str]] = []
    at = NOON
    for index, (n, later, chars, rotates) in enumerate(entries):
        at += later
        said.append((at, f"{n}-{index}-{chars}"))
        processes[n].write(line(said[-1][1], at=at))
        if rotates:
            processes[n].rotate()
    for process in processes.values():
        process.close()
    # As the future will be merged by time, so is the past: ties may come in any order.
    return [text for _, text in said]


@settings(deadline=None, max_examples=100)
@given(entries=PAST, count=st.integers(0, 35))
def test_the_last_lines_of_all_files_are_found_from_their_ends(
    entries: list[tuple[int, int, str, bool]], count: int
):
    strictly = [(n, later + 1, chars, rotates) for n, later, chars, rotates in entries]
    with TemporaryDirectory() as directory:
        said = past(Path(directory), strictly)
        for path in Path(directory).iterdir():
            os.utime(path, (NOON + 10_000, NOON + 10_000))
        reader = JournalReader(Path(directory))
        reader.rewind(count, everything)
        assert texts(reader) == (said[-count:] if count else [])
        assert texts(reader) == []
        reader.close()


@settings(deadline=None, max_examples=100)
@given(
    lines=st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"")), max_size=20),
    rest=st.sampled_from([b"", b"unfinished"]),
    block=st.integers(1, 9),
    longest=st.integers(8, 40),
)
def test_backward_finds_what_forward_finds(
    lines: list[bytes], rest: bytes, block: int, longest: int
):
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "_BLOCK_BYTES", block)
        patch.setattr(files_module, "_MAX_PIECE_BYTES", longest)
        path = Path(directory) / "file"
        content = b"".join(line + b"\n" for line in lines)
        path.write_bytes(content + rest)
        part = Part(path)
        forward = [found for _, found in part.forward(0, part.size)]
        backward = [found for _, found in part.backward(part.size)]
        if all(len(line) < longest for line in [*lines, rest]):
            assert forward == lines
            assert backward == lines[::-1]
            assert part.line_start(part.size) == len(content)
            for begin, found in part.backward(part.size):
                assert content[begin : begin + len(found) + 1] == found + b"\n"
            for behind, found in part.forward(0, part.size):
                assert content[:behind].endswith(found + b"\n")
        else:
            whole = content.replace(b"\n", b"")
            assert b"".join(forward).startswith(whole)
            assert (whole + rest).startswith(b"".join(forward))
            assert b"".join(reversed(backward)) == whole
        assert repr(part) == f"<Part {part.identity} {len(content + rest)} bytes>"
        part.close()


def test_only_wanted_lines_are_counted(directory: Path):
    process = Process(directory, 1)
    for n in range(10):
        process.write(line(f"{n}", at=NOON + n, level="error" if n % 3 == 0 else "info"))
    reader = JournalReader(directory)
    reader.rewind(2, lambda found: found.record is not None and found.record.level == "error")
    assert texts(reader) == ["6", "7", "8", "9"]
    reader.close()
    process.close()


def test_going_back_ends_at_the_given_time_in_every_file(directory: Path):
    for n in (1, 2):
        process = Process(directory, n)
        for second in range(10):
            process.write(line(f"{n}-{second}", at=NOON + second + n / 10))
        process.close()
    for path in directory.iterdir():
        os.utime(path, (NOON + 20, NOON + 20))
    reader = JournalReader(directory)
    reader.rewind(None, everything, since=NOON + 8)
    assert texts(reader) == ["1-8", "2-8", "1-9", "2-9"]
    reader.close()


def test_the_end_of_the_past_may_be_within_a_line(directory: Path):
    process = Process(directory, 1)
    process.write(line("old") + line("one")[:20])
    reader = JournalReader(directory)
    process.write(line("one")[20:])
    assert texts(reader) == ["one"]
    reader.close()
    process.close()


def test_old_files_are_not_even_opened(directory: Path, monkeypatch: pytest.MonkeyPatch):
    for n in range(5):
        path = directory / name(n)
        path.write_bytes(line(f"{n}", at=NOON + 100 * n))
        os.utime(path, (NOON + 100 * n, NOON + 100 * n))
    monkeypatch.setattr(reader_module, "_MAX_OPEN_FILES", 0)
    opened: list[str] = []
    really = os.open

    def watched(path: Path, flags: int) -> int:
        opened.append(path.name)
        return really(path, flags)

    monkeypatch.setattr(os, "open", watched)
    reader = JournalReader(directory)
    reader.rewind(2, everything)
    assert texts(reader) == ["3", "4"]
    assert set(opened) == {name(3), name(4)}
    reader.close()


def test_a_large_file_is_read_from_its_end_only(directory: Path, monkeypatch: pytest.MonkeyPatch):
    path = directory / name(1)
    path.write_bytes(b"".join(line(f"{n}", at=NOON + n / 1000) for n in range(100_000)))
    read: list[int] = []
    really = Part._read

    def counted(part: Part, at: int, size: int) -> bytes:
        read.append(size)
        return really(part, at, size)

    monkeypatch.setattr(Part, "_read", counted)
    reader = JournalReader(directory)
    reader.rewind(20, everything)
    assert texts(reader) == [f"{n}" for n in range(99_980, 100_000)]
    assert sum(read) < 200_000
    reader.close()


# Many processes, and foreign lines


def test_the_lines_of_several_processes_come_by_their_time(directory: Path, reader: JournalReader):
    one, two = Process(directory, 1), Process(directory, 2)
    one.write(line("a", at=NOON) + line("d", at=NOON + 3) + b"no json\n" + line("e", at=NOON + 4))
    two.write(line("b", at=NOON + 1) + line("c", at=NOON + 2) + line("f", at=NOON + 5))
    assert texts(reader) == ["a", "b", "c", "d", "no json", "e", "f"]
    one.close()
    two.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"plain text",
        b"[1, 2]",
        b'{"some": "object"}',
        b"\xff\xfe",
        b'{"timestamp":"soon","level":"info","event":"e","session":"s","data":{}}',
        b'{"timestamp":"0001-01-01T00:00","level":"info","event":"e","session":"s","data":{}}',
        b'{"timestamp":"2026-01-01T00:00:00Z","level":"info","event":"e","session":"s","data":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}",
    ],
)
def test_what_is_not_a_journal_line_is_kept_as_it_is(raw: bytes):
    assert journal_line(raw, otherwise=7.0) == DatedLine(raw, 7.0, None)


def test_a_journal_line_has_its_time_and_its_record():
    found = journal_line(line("hello", at=NOON + 0.25).rstrip(), otherwise=-inf)
    assert found.at == NOON + 0.25
    assert found.record is not None
    assert msgspec.json.encode(found.record) == found.raw


@of_open_files
def test_only_the_latest_files_are_held_and_the_others_are_still_followed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reader_module, "_MAX_OPEN_FILES", 2)
    processes = [Process(directory, n) for n in range(5)]
    for n, process in enumerate(processes):
        process.write(line(f"old {n}"))
        os.utime(process.path, (NOON + n, NOON + n))
    reader = JournalReader(directory)
    assert [files.path.name for files in reader._held] == [name(4), name(3)]
    assert texts(reader) == []
    processes[0].write(line("new"))
    shown = [text for _ in range(10) for text in texts(reader)]
    assert shown == ["new"]
    assert [files.path.name for files in reader._held] == [name(0), name(4)]
    assert "held" in repr(reader._files[name(0)])
    assert "quiet" in repr(reader._files[name(1)])
    reader.close()
    for process in processes:
        process.close()


def test_where_an_open_file_cannot_be_renamed_nothing_stays_open(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(files_module, "_HOLDS_FILES", False)
    process = Process(directory, 1)
    process.write(line("old"))
    reader = JournalReader(directory)
    process.write(line("one"))
    assert texts(reader) == ["one"]
    process.write(line("two"))
    process.rotate()
    process.write(line("three"))
    assert texts(reader) == ["two", "three"]
    assert "quiet" in repr(reader._files[name(1)])
    process.close()


def test_a_file_that_moves_while_it_is_opened_is_looked_for_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    process = Process(directory, 1)
    process.write(line("one"))
    reader = JournalReader(directory)
    process.rotate()
    process.write(line("two"))
    really = os.open
    moves = [True]

    def moving(path: Path, flags: int) -> int:
        if moves:
            moves.clear()
            process.rotate()
            process.write(line("three"))
        return really(path, flags)

    monkeypatch.setattr(os, "open", moving)
    assert texts(reader) == ["two", "three"]
    reader.close()
    process.close()


@of_open_files
def test_lines_written_while_a_file_is_read_are_not_lost_with_its_rotation(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    process = Process(directory, 1)
    process.write(line("one"))
    reader = JournalReader(directory)
    process.write(line("two"))
    really = Part.forward

    def busy(part: Part, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        monkeypatch.undo()
        process.write(line("three"))
        process.rotate()
        process.write(line("four"))
        return really(part, start, end)

    monkeypatch.setattr(Part, "forward", busy)
    assert texts(reader) + texts(reader) == ["two", "three", "four"]
    reader.close()
    process.close()


@of_open_files
def test_a_new_file_with_the_identity_of_an_old_one_is_new(directory: Path):
    process = Process(directory, 1)
    process.write(line("old"))
    process.rotate()
    process.write(line("one"))
    reader = JournalReader(directory)
    Path(f"{process.path}.1").unlink()
    process.path.unlink()
    process.write(line("two") + line("three"))
    assert texts(reader) == ["two", "three"]
    reader.close()
    process.close()


def test_a_number_that_is_missing_in_the_middle_of_a_rotation_hides_nothing(directory: Path):
    process = Process(directory, 1)
    process.write(line("one"))
    reader = JournalReader(directory)
    for text in ("two", "three"):
        process.rotate()
        process.write(line(text))
    for newer, older in ((2, 3), (1, 2)):
        Path(f"{process.path}.{newer}").replace(f"{process.path}.{older}")
    assert texts(reader) == ["two", "three"]
    reader.close()
    process.close()
