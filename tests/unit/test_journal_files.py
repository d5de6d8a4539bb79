import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal, journal_files
from emceepee_stdio.journal.journal_files import JournalFile

NOON = 1_800_000_000.0
DAY = 86_400

posix = pytest.mark.posix_only("modes, links and pipes of POSIX")
of_open_files = pytest.mark.posix_only("Windows removes and renames no file that is open")


def fixed_clock() -> Clock:
    return Clock(monotonic=lambda: 0.0, wall=lambda: NOON)


class Stderr(list[bytes]):
    def __call__(self, line: bytes) -> None:
        self.append(line)

    def events(self) -> list[str]:
        return [line.decode().split()[2] for line in self]


@pytest.fixture
def stderr() -> Stderr:
    return Stderr()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def journal(directory: Path, stderr: Stderr):
    journal = Journal.open(directory=directory, session="S1", clock=fixed_clock(), stderr=stderr)
    yield journal
    journal.close()


def events_in(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_bytes().splitlines()]


def small_file(directory: Path, *, max_bytes: int = 10, files: int = 3) -> JournalFile:
    return JournalFile(
        directory,
        session="s",
        clock=fixed_clock(),
        max_bytes=max_bytes,
        files=files,
        max_age_days=1,
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name.partition(".jsonl")[2]: path.read_bytes() for path in directory.iterdir()}


def test_the_name_tells_when_who_and_which_session(directory: Path):
    journal = Journal.open(directory=directory, session="../a b", clock=fixed_clock())
    name = journal.statistics().path.name
    assert name == f"emceepee-20270115T080000Z-{os.getpid()}-___a_b.jsonl"


def test_a_full_file_is_rotated_and_the_oldest_goes(directory: Path):
    file = small_file(directory)
    for n in range(9):
        file.append(b"%04d\n" % n)
    file.close()
    assert contents(directory) == {
        "": b"0008\n",
        ".1": b"0006\n0007\n",
        ".2": b"0004\n0005\n",
    }


def test_a_batch_fills_each_file_before_it_starts_the_next(directory: Path):
    file = small_file(directory, max_bytes=16)
    file.append(b"0000\n")
    file.append(b"".join(b"%04d\n" % n for n in range(1, 8)))
    file.append(b"x" * 40 + b"\ny\n")
    file.close()
    assert contents(directory) == {
        "": b"y\n",
        ".1": b"x" * 40 + b"\n",
        ".2": b"0006\n0007\n",
    }
    assert file.lines == 10
    assert file.size == 2


def test_with_one_file_the_old_lines_give_way(directory: Path):
    file = small_file(directory, files=1)
    file.append(b"0000\n0001\n0002\n")
    file.close()
    assert contents(directory) == {"": b"0002\n"}


def test_a_journal_rotates_at_its_size_and_loses_no_line(directory: Path, stderr: Stderr):
    journal = Journal.open(
        directory=directory,
        session="s",
        clock=fixed_clock(),
        max_bytes=2_000,
        files=50,
        stderr=stderr,
    )
    for n in range(200):
        journal.write("info", "x", n=n)
    journal.close()
    paths = list(directory.iterdir())
    assert len(paths) > 5
    assert all(path.stat().st_size <= 2_000 for path in paths)
    lines = [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]
    assert sorted(line["data"]["n"] for line in lines) == list(range(200))
    assert stderr == []


def test_journals_of_any_process_go_when_they_are_too_old_and_nothing_else_does(directory: Path):
    directory.mkdir()
    old = [
        "emceepee-20260101T000000Z-1-OLD.jsonl",
        "emceepee-20260101T000000Z-1-OLD.jsonl.3",
    ]
    kept = [
        "emceepee-20270110T000000Z-2-NEW.jsonl",
        "emceepee-notes.jsonl",
        "emceepee-20260101T000000Z-1-OLD.jsonl.bak",
        "other.jsonl",
    ]
    for name in old + kept:
        (directory / name).write_bytes(b"")
        age = 13 * DAY if "NEW" in name else 15 * DAY
        os.utime(directory / name, (NOON - age, NOON - age))
    folder = directory / "emceepee-20260101T000000Z-1-DIR.jsonl"
    folder.mkdir()
    os.utime(folder, (0, 0))
    journal = Journal.open(directory=directory, session="s", clock=fixed_clock())
    journal.write("info", "x")
    journal.close()
    left = {path.name for path in directory.iterdir()}
    assert left == {*kept, folder.name, journal.statistics().path.name}


@posix
def test_directory_and_files_belong_to_the_user_alone_whatever_the_umask(directory: Path):
    before = os.umask(0)
    try:
        file = small_file(directory / "deep")
        file.append(b"0000\n0001\n0002\n")
        file.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((directory / "deep").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (directory / "deep").iterdir()}
    assert modes == {0o600}


@posix
def test_a_wider_directory_is_left_alone_and_its_files_are_still_private(
    directory: Path, journal: Journal
):
    directory.mkdir()
    directory.chmod(0o755)
    path = journal.statistics().path
    path.touch()
    os.utime(path, (NOON, NOON))
    path.chmod(0o644)
    journal.write("info", "x")
    assert journal.flush()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
def test_a_link_in_the_place_of_the_file_is_not_followed(
    tmp_path: Path, directory: Path, journal: Journal, stderr: Stderr
):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    directory.mkdir()
    journal.statistics().path.symlink_to(victim)
    journal.write("info", "x")
    assert journal.flush()
    assert victim.read_text() == "mine"
    assert stderr.events() == ["journal_unwritable"]


@posix
@pytest.mark.parametrize("with_reader", [False, True])
def test_a_pipe_in_the_place_of_the_file_is_neither_waited_for_nor_written(
    directory: Path, journal: Journal, stderr: Stderr, *, with_reader: bool
):
    directory.mkdir()
    path = journal.statistics().path
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if with_reader else None
    journal.write("info", "x")
    assert journal.flush()
    assert stderr.events() == ["journal_unwritable"]
    if reader is not None:
        assert os.read(reader, 10) == b""
        os.close(reader)


def test_a_directory_that_cannot_be_is_said_once_and_so_is_the_recovery(
    directory: Path, journal: Journal, stderr: Stderr
):
    directory.write_text("a file where the directory should be")
    for _ in range(3):
        journal.write("info", "lost")
        assert journal.flush()
    assert journal.statistics().failing
    assert journal.statistics().lines_dropped == 3
    assert repr(journal).endswith("failing 0 lines>")
    path = journal.statistics().path
    with pytest.raises(FileExistsError) as why:
        directory.mkdir()
    shown = json.dumps(str(path)) if os.sep == "\\" else path
    assert b"".join(stderr).decode() == (
        f'emceepee: error: journal_unwritable path={shown} error="{why.value.strerror}"\n'
    )
    directory.unlink()
    journal.write("info", "kept")
    assert journal.flush()
    assert events_in(path) == ["journal_dropped", "kept"]
    assert json.loads(path.read_bytes().splitlines()[0])["data"] == {"count": 3}
    assert stderr[1:] == [
        f"emceepee: warning: journal_recovered path={shown} lines_lost=3\n".encode()
    ]
    journal.write("info", "kept too")
    assert journal.flush()
    assert events_in(path)[-1] == "kept too"
    assert not journal.statistics().failing
    assert len(stderr) == 2


def test_without_stderr_a_failing_file_is_told_by_the_statistics_only(directory: Path):
    directory.touch()
    journal = Journal.open(directory=directory, session="s", clock=fixed_clock(), stderr=None)
    journal.write("error", "lost")
    journal.close()
    assert journal.statistics().failing
    assert journal.statistics().lines_dropped == 1


@of_open_files
def test_a_removed_directory_is_made_again_and_said_once(
    directory: Path, journal: Journal, stderr: Stderr
):
    journal.write("info", "gone")
    assert journal.flush()
    shutil.rmtree(directory)
    for _ in range(2):
        journal.write("info", "kept")
        assert journal.flush()
    assert events_in(journal.statistics().path) == ["kept", "kept"]
    assert stderr.events() == ["journal_renewed"]
    assert journal.statistics().lines_dropped == 0


@of_open_files
def test_a_file_that_was_replaced_is_noticed(directory: Path, journal: Journal, stderr: Stderr):
    journal.write("info", "moved")
    assert journal.flush()
    path = journal.statistics().path
    path.rename(directory / "elsewhere")
    path.touch()
    journal.write("info", "kept")
    assert journal.flush()
    assert events_in(path) == ["kept"]
    assert stderr.events() == ["journal_renewed"]


@pytest.mark.posix_only("Windows refuses it while somebody reads the file, and writing goes on")
def test_a_rotation_that_fails_is_reported_and_tried_again(
    directory: Path, stderr: Stderr, monkeypatch: pytest.MonkeyPatch
):
    journal = Journal.open(
        directory=directory, session="s", clock=fixed_clock(), max_bytes=150, stderr=stderr
    )

    def refuse(_: Path, __: Path) -> None:
        raise PermissionError(13, "Permission denied")

    journal.write("info", "x")
    assert journal.flush()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        journal.write("info", "lost")
        assert journal.flush()
    assert journal.statistics().failing
    journal.write("info", "y")
    journal.close()
    assert stderr.events() == ["journal_unwritable", "journal_recovered"]
    found = sorted(event for path in directory.iterdir() for event in events_in(path))
    assert found == ["journal_dropped", "x", "y"]


def test_a_file_that_is_read_and_cannot_be_rotated_takes_more_within_a_bound(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    file = small_file(directory, max_bytes=20)
    monkeypatch.setattr(journal_files, "_RENAMES_OPEN_FILES", False)

    def refuse(_: Path, __: Path) -> None:
        raise PermissionError(13, "another process has it open")

    line = b"0123456789abcde\n"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        for _ in range(6):  # four times its size, and the line that goes over it
            file.append(line)
        with pytest.raises(PermissionError):
            file.append(line)
    file.append(line)
    file.close()
    assert contents(directory) == {"": line, ".1": line * 6}


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal

said = []
journal = Journal.open(
    directory=Path(sys.argv[1]), session="s", clock=Clock(), stderr=lambda line: said.append(line)
)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for n in range(30):
    journal.write("info", "x", n=n)
    assert journal.flush()
kept = journal.statistics().lines_written
assert journal.statistics().failing
assert 0 < kept < 30 and journal.statistics().lines_dropped == 30 - kept
assert len(said) == 1 and b"journal_unwritable" in said[0], said
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.write("info", "well")
journal.close()
assert len(said) == 2 and b"journal_recovered" in said[1], said
print(kept)
"""


@posix
def test_a_disk_that_fills_up_costs_whole_lines_only_and_is_said_once(directory: Path):
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, directory], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    kept = int(ran.stdout)
    (path,) = directory.iterdir()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line["event"] for line in lines] == [*["x"] * kept, "journal_dropped", "well"]
    assert lines[-2]["data"] == {"count": 30 - kept}


STUCK_STDERR = """
import sys, threading
from pathlib import Path
from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal

journal = Journal.open(
    directory=Path(sys.argv[1]),
    session="s",
    clock=Clock(),
    stderr=lambda line: threading.Event().wait(),
)
journal.write("error", "x")
journal.close()
"""


def test_a_process_ends_although_its_stderr_is_stuck(directory: Path):
    ran = subprocess.run(
        [sys.executable, "-c", STUCK_STDERR, directory],
        timeout=60,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    (path,) = directory.iterdir()
    assert events_in(path) == ["x"]


TWO_PROCESSES = """
import sys
from pathlib import Path
from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal

journal = Journal.open(directory=Path(sys.argv[1]), session="same", clock=Clock(), max_bytes=20_000)
for n in range(500):
    journal.write("info", "x", n=n)
journal.close()
"""


def test_two_processes_in_one_directory_never_share_a_file(directory: Path):
    running = [
        subprocess.Popen([sys.executable, "-c", TWO_PROCESSES, directory], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in running:
        _, err = process.communicate(timeout=60)
        assert err == b""
    for process in running:
        paths = list(directory.glob(f"emceepee-*-{process.pid}-same.jsonl*"))
        lines = [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]
        assert sorted(line["data"]["n"] for line in lines) == list(range(500))


def test_two_journals_of_one_process_have_a_file_each(directory: Path):
    journals = [Journal.open(directory=directory, session=name, clock=Clock()) for name in "ab"]
    for journal in journals:
        journal.write("info", journal.statistics().path.stem[-1])
        journal.close()
    assert sorted(events_in(path)[0] for path in directory.iterdir()) == ["a", "b"]


def journals(directory: Path, count: int, size: int) -> list[str]:
    directory.mkdir()
    names = [f"emceepee-20270101T000000Z-{n}-SHORT.jsonl" for n in range(1, count + 1)]
    for n, name in enumerate(names):
        (directory / name).write_bytes(b"x" * size)
        os.utime(directory / name, (NOON - count + n, NOON - count + n))
    return names


def begun(directory: Path, **bounds: int) -> set[str]:
    """The journals that are left when one more process has begun its own."""
    journal = Journal.open(directory=directory, session="s", clock=fixed_clock(), **bounds)
    journal.write("info", "x")
    journal.close()
    return {path.name for path in directory.iterdir()} - {journal.statistics().path.name}


def test_the_journals_of_all_processes_together_have_a_bound_and_the_oldest_go(directory: Path):
    names = journals(directory, count=10, size=1_000)
    assert begun(directory, max_bytes=1_024, files=1) == set(names[-4:])


@posix
def test_what_a_running_process_writes_is_not_removed_for_others(directory: Path):
    names = journals(directory, count=10, size=1_000)
    running = Journal.open(directory=directory, session="running", clock=fixed_clock())
    running.write("info", "x" * 1_000)
    running.flush(1.0)
    own = running.statistics().path
    os.utime(own, (0, 0))
    assert begun(directory, max_bytes=1_024, files=1) == {own.name, *names[-4:]}
    running.close()
    os.utime(own, (0, 0))
    assert own.name not in begun(directory, max_bytes=1_024, files=1)


def test_there_are_so_many_journals_at_most_however_small_they_are(directory: Path):
    names = journals(directory, count=1_100, size=1)
    assert begun(directory) == set(names[-1_000:])
