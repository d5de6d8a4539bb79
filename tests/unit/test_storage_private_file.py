"""State files: what another user could have put in their place counts as not there."""

import os
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from emceepee_stdio.auth.token_store import TokenRecord, TokenStore, Visit
from emceepee_stdio.journal.journal_reader import RotatedFiles
from emceepee_stdio.storage.private_file import read_own, write_new, write_whole
from emceepee_stdio.trace.trace_page import PageIdentity
from emceepee_stdio.trust.store import Pending, TrustStore
from emceepee_stdio.trust.tool_pins import Pinned, Pins

pytestmark = pytest.mark.posix_only("links, pipes and modes of POSIX")

AT = "2026-01-01T00:00:00.000Z"
URL = "https://mcp.example/mcp"
DIGEST = "a" * 64
Read = Callable[[], object]
State = Callable[[Path], tuple[Path, Read]]


def token_record(directory: Path) -> tuple[Path, Read]:
    store = TokenStore(directory, URL)
    with store.writing():
        store.write(TokenRecord(server=URL, token_endpoint="https://id.example/token"))
    return next(directory.glob("*.json")), store.read


def visit(directory: Path) -> tuple[Path, Read]:
    store = TokenStore(directory, URL)
    store.tell(Visit(failed="no"))
    return next(directory.glob("*.visit.json")), store.visit


def approvals(directory: Path) -> tuple[Path, Read]:
    store = TrustStore(directory)
    store.approve(DIGEST, name="s", at=AT)
    return directory / "approvals.json", lambda: store.is_approved(DIGEST)


def waiting(directory: Path) -> tuple[Path, Read]:
    store = TrustStore(directory)
    store.wait_for(Pending(digest=DIGEST, name="s", text="Server: s", at=AT))
    return directory / "pending.json", store.waiting


def pins(directory: Path) -> tuple[Path, Read]:
    store = TrustStore(directory)
    store.pin("i", Pins(tools={"t": Pinned(digest="d", text="x")}))

    def read() -> object:
        try:
            return store.pinned("i").tools
        except OSError:  # nothing pinned would be a first look
            return None

    return directory / "pins.json", read


def key(directory: Path) -> tuple[Path, Read]:
    store = TrustStore(directory)
    store.key()
    return directory / "key", store.existing_key


def trace_page(directory: Path) -> tuple[Path, Read]:
    file = directory / "trace-page.json"
    PageIdentity.new(1, now=7.0).save(file)
    return file, lambda: PageIdentity.saved(file, now=8.0)


def journal(directory: Path) -> tuple[Path, Read]:
    return lines_of(directory / "emceepee-20260101T000000Z-1-s.jsonl")


def request_records(directory: Path) -> tuple[Path, Read]:
    return lines_of(directory / "requests-20260101T000000Z-1-s.jsonl")


def lines_of(file: Path) -> tuple[Path, Read]:
    file.parent.mkdir()
    write_new(file, b'{"event":"x"}\n')
    return file, lambda: list(RotatedFiles(file).backward())


STATES = (
    token_record,
    visit,
    approvals,
    waiting,
    pins,
    key,
    trace_page,
    journal,
    request_records,
)


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def writable(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("spoil", [linked, piped, writable])
@pytest.mark.parametrize("state", STATES)
def test_a_state_file_that_others_could_have_written_counts_as_not_there(
    tmp_path: Path, state: State, spoil: Callable[[Path], None]
):
    path, read = state(tmp_path / "state")
    assert read()
    spoil(path)
    assert not read()


@pytest.mark.parametrize("spoil", [linked, piped, writable])
def test_pins_that_are_not_ours_are_no_first_look_and_are_not_written_over(
    tmp_path: Path, spoil: Callable[[Path], None]
):
    path, _ = pins(tmp_path / "state")
    spoil(path)
    store = TrustStore(tmp_path / "state")
    with pytest.raises(OSError, match=r"not a file of ours|symbolic links"):
        store.pinned("i")
    with pytest.raises(OSError, match=r"not a file of ours|symbolic links"):
        store.pin("other", Pins(tools={}))
    path.unlink()
    assert store.pinned("i").tools is None


@pytest.mark.parametrize("state", STATES)
def test_a_state_file_of_another_user_counts_as_not_there(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
):
    path, read = state(tmp_path / "state")
    real = path.stat()
    found, listed = os.fstat, Path.lstat

    def other(status: os.stat_result) -> os.stat_result:
        if status.st_ino != real.st_ino:
            return status
        fields = list(status)
        fields[stat.ST_UID] = real.st_uid + 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", lambda descriptor: other(found(descriptor)))
    monkeypatch.setattr(Path, "lstat", lambda self: other(listed(self)))
    assert not read()


def test_a_file_is_written_whole_for_its_owner_alone_and_leaves_nothing_else(tmp_path: Path):
    path = tmp_path / "f"
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept")
    path.symlink_to(outside)
    before = os.umask(0)
    try:
        write_whole(path, b"new", lasting=False)
    finally:
        os.umask(before)
    assert (path.read_bytes(), outside.read_bytes()) == (b"new", b"kept")
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["f", "outside"]


def test_a_write_that_fails_leaves_the_place_as_it_was(tmp_path: Path):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def refuse() -> None:
        raise ValueError("changed")

    with pytest.raises(ValueError, match="changed"):
        write_whole(path, b"new", check=refuse)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "link", b"x")
    assert not (tmp_path / "nowhere").exists()


def test_reading_costs_what_the_file_holds_and_not_what_it_may_hold(tmp_path: Path) -> None:
    write_new(tmp_path / "small", b"x")
    tracemalloc.start()
    try:
        assert read_own(tmp_path / "small", most=1 << 28) == b"x"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
