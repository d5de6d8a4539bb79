"""The files of what people agreed to. Where writing must fail, the lock is a directory: that holds
for every user, also for one who may write everywhere.
"""

import json
import os
import stat
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from emceepee_stdio.trust import store as module
from emceepee_stdio.trust.store import Pending, TrustStore, default_trust_directory
from emceepee_stdio.trust.tool_pins import Pinned, Pins

posix = pytest.mark.posix_only("modes of POSIX")
AT = "2026-01-01T00:00:00.000Z"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "trust"


def pending(digest: str, name: str = "s") -> Pending:
    return Pending(digest=digest, name=name, text="Server: s", at=AT)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fill(store: TrustStore) -> None:
    store.key()
    store.approve("a" * 64, name="s", at=AT)
    store.wait_for(pending("b" * 64))
    store.pin("i", Pins(tools={"t": Pinned(digest="d", text="x")}))


@posix
def test_every_file_is_for_its_owner_alone(directory: Path):
    before = os.umask(0)
    try:
        fill(TrustStore(directory))
    finally:
        os.umask(before)
    files = {path.name: mode(path) for path in directory.iterdir()}
    assert files == dict.fromkeys(
        ("approvals.json", "key", "lock", "pending.json", "pins.json"), 0o600
    )
    assert mode(directory) == 0o700


def test_an_agreement_is_to_the_whole_digest_not_to_its_short_id(directory: Path):
    store = TrustStore(directory)
    agreed, alike = "a" * 63 + "1", "a" * 63 + "2"
    store.approve(agreed, name="s", at=AT)
    assert store.is_approved(agreed)
    assert not store.is_approved(alike)
    store.revoke(alike)
    assert store.is_approved(agreed)


def test_nothing_is_made_by_reading(directory: Path):
    store = TrustStore(directory)
    assert not store.is_approved("a")
    assert store.granted() == []
    assert store.waiting() == []
    assert store.pinned("i").tools is None
    store.settle("a")
    assert not directory.exists()


def test_all_of_it_is_there_for_the_next_process(directory: Path):
    fill(TrustStore(directory))
    again = TrustStore(directory)
    assert again.key() == TrustStore(directory).key()
    assert again.is_approved("a" * 64)
    assert [one.id for one in again.granted()] == ["aaaaaaaa"]
    assert [one.id for one in again.waiting()] == ["bbbbbbbb"]
    assert again.pinned("i").tools == {"t": Pinned(digest="d", text="x")}


def test_no_secret_is_in_any_file(directory: Path):
    fill(TrustStore(directory))
    key = (directory / "key").read_bytes()
    for path in directory.glob("*.json"):
        assert key.hex() not in path.read_text()


def test_what_is_agreed_to_waits_no_longer_and_can_be_taken_back(directory: Path):
    store = TrustStore(directory)
    store.wait_for(pending("a"))
    store.approve("a", name="s", at=AT)
    assert store.waiting() == []
    store.approve("a", name="s", at=AT)
    assert len(store.granted()) == 1
    store.revoke("a")
    assert not store.is_approved("a")


# The key


@posix
@pytest.mark.parametrize("wrong", [0o644, 0o640, 0o604, 0o620])
def test_a_key_that_others_could_have_read_is_not_used(directory: Path, wrong: int):
    first = TrustStore(directory).key()
    (directory / "key").chmod(wrong)
    second = TrustStore(directory)
    assert second.key() != first
    assert mode(directory / "key") == 0o600
    assert TrustStore(directory).key() == second.key()


@pytest.mark.parametrize("text", [b"", b"short", b"x" * 33])
def test_a_key_that_is_not_whole_is_replaced(directory: Path, text: bytes):
    directory.mkdir(parents=True)
    (directory / "key").write_bytes(text)
    (directory / "key").chmod(0o600)
    key = TrustStore(directory).key()
    assert len(key) == 32
    assert (directory / "key").read_bytes() == key


def test_stores_that_begin_at_the_same_time_have_one_key(directory: Path):
    stores = [TrustStore(directory) for _ in range(8)]
    barrier = threading.Barrier(len(stores))

    def begin(store: TrustStore) -> None:
        barrier.wait()
        store.key()

    threads = [threading.Thread(target=begin, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store.key() for store in stores}) == 1


# Several at once

WRITER = """
import sys
from pathlib import Path
from emceepee_stdio.trust.tool_pins import Pinned, Pins
from emceepee_stdio.trust.store import Pending, TrustStore

store, who = TrustStore(Path(sys.argv[1])), sys.argv[2]
sys.stdin.readline()
for i in range(20):
    digest = f"{who}{i}"
    store.approve(digest, name=who, at="")
    store.wait_for(Pending(digest=digest, name=who, text="", at=""))
    store.pin(digest, Pins(tools={"t": Pinned(digest=digest)}))
print(store.key().hex())
"""


def test_two_processes_that_write_at_once_lose_nothing(directory: Path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    keys = {writer.communicate()[0].strip() for writer in writers}
    store = TrustStore(directory)
    assert keys == {store.key().hex()}
    wanted = {f"{who}{i}" for who in ("one", "two") for i in range(20)}
    assert {one.digest for one in store.granted()} == wanted
    assert {one.digest for one in store.waiting()} == wanted
    assert all(store.pinned(digest).tools for digest in wanted)
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []


# Files that are broken or cannot be


BROKEN = [b"", b"{", b"[]", b'{"granted": 5}', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: repr(text[:10]))
def test_a_broken_file_counts_as_empty_and_is_written_anew(directory: Path, text: bytes):
    store = TrustStore(directory)
    fill(store)
    for name in ("approvals", "pending", "pins"):
        (directory / f"{name}.json").write_bytes(text)
    assert store.granted() == []
    assert store.waiting() == []
    assert store.pinned("i").tools is None
    fill(store)
    assert store.is_approved("a" * 64)
    assert store.pinned("i").tools is not None


def test_where_nothing_can_be_written_the_caller_is_told_and_what_is_there_still_counts(
    directory: Path,
):
    store = TrustStore(directory)
    fill(store)
    (directory / "lock").unlink()
    (directory / "lock").mkdir()
    for change in (
        lambda: store.approve("c", name="s", at=AT),
        lambda: store.revoke("a" * 64),
        lambda: store.wait_for(pending("c")),
        lambda: store.pin("j", Pins(tools={})),
    ):
        with pytest.raises((IsADirectoryError, PermissionError)):
            change()
    assert store.is_approved("a" * 64)
    assert len(store.waiting()) == 1


def test_without_a_place_for_it_the_key_lasts_as_long_as_the_process(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    store = TrustStore(tmp_path / "file" / "trust")
    assert len(store.key()) == 32
    assert store.key() == store.key()
    assert not store.is_approved("a")


def test_a_write_that_fails_half_way_leaves_the_file_as_it_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    store = TrustStore(directory)
    fill(store)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.approve("c", name="s", at=AT)
    assert [one.digest for one in store.granted()] == ["a" * 64]
    assert sorted(path.name for path in directory.iterdir()) == [
        "approvals.json",
        "key",
        "lock",
        "pending.json",
        "pins.json",
    ]


# Bounds


def test_so_many_agreements_are_kept_the_newest(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_MAX_APPROVALS", 5)
    store = TrustStore(directory)
    for i in range(8):
        store.approve(f"{i}", name="s", at=AT)
    assert [one.digest for one in store.granted()] == ["3", "4", "5", "6", "7"]


def test_so_many_wait_the_newest(directory: Path):
    store = TrustStore(directory)
    for i in range(105):
        store.wait_for(pending(f"{i}"))
    assert [one.digest for one in store.waiting()] == [f"{i}" for i in range(5, 105)]


def test_no_client_over_http_pushes_out_what_waits_for_another(directory: Path):
    store = TrustStore(directory)

    def wait(token: str, count: int, text: str = "") -> None:
        for n in range(count):
            store.wait_for(Pending(digest=f"{token}{n}", name="s", text=text, at=AT, token=token))

    wait("", 2)
    wait("quiet", 3)
    wait("loud", 300)
    wait("another", 60)
    kept = Counter(one.token for one in store.waiting())
    assert kept == {"": 2, "quiet": 3, "loud": 47, "another": 48}
    assert store.waiting()[-1].digest == "another59", "the oldest of a token make room"
    wait("large", 20, "x" * (1 << 19))
    kept = Counter(one.token for one in store.waiting())
    assert (kept[""], kept["quiet"], kept["another"]) == (2, 3, 44), "by number first"
    assert len((directory / "pending.json").read_bytes()) <= 4 << 20


def test_servers_that_a_model_added_make_room_for_each_other_and_for_nobody_else(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_MAX_SERVERS", 3)
    store = TrustStore(directory)

    def pin(name: str, *, passing: bool) -> bool:
        return store.pin(name, Pins(tools={"t": Pinned(digest=name)}), passing=passing)

    assert pin("mine", passing=False)
    assert all(pin(name, passing=True) for name in ("a", "b", "c", "a", "d", "mine"))
    kept = json.loads((directory / "pins.json").read_text())["servers"]
    assert set(kept) == {"mine", "a", "d"}
    assert all(pin(name, passing=False) for name in ("x", "y", "z"))
    assert not pin("e", passing=True), "there is no room but that of those which a person knows"
    kept = json.loads((directory / "pins.json").read_text())["servers"]
    assert set(kept) == {"mine", "x", "y", "z"}


def test_a_large_server_that_a_model_added_makes_room_and_one_of_a_person_stays(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_MAX_FILE_BYTES", 10_000)
    store = TrustStore(directory)
    store.pin("mine", Pins(tools={"t": Pinned(digest="d", text="x" * 5_000)}))
    for i in range(10):
        store.pin(f"{i}", Pins(tools={"t": Pinned(digest="d", text="x" * 3_000)}), passing=True)
    assert (directory / "pins.json").stat().st_size <= 10_000
    assert store.pinned("9").tools is not None
    assert store.pinned("0").tools is None
    assert store.pinned("mine").tools is not None
    assert not store.pin(
        "huge", Pins(tools={"t": Pinned(digest="d", text="x" * 20_000)}), passing=True
    )
    assert store.pinned("mine").tools is not None


def test_the_bounds_are_those_of_a_person():
    bounds = (module._MAX_APPROVALS, module._MAX_PENDING, module._MAX_SERVERS)
    assert bounds == (1_000, 100, 300)


def test_the_directory_is_the_one_that_was_chosen_or_the_platforms_own():
    chosen = default_trust_directory({"EMCEEPEE_STATE_DIR": "/some/where"})
    assert chosen == Path("/some/where")
    assert default_trust_directory({}).parts[-2:] == ("emceepee", "trust")


def test_the_newest_change_of_a_servers_tools_is_the_one_that_waits(directory: Path):
    store = TrustStore(directory)
    for n in range(5):
        change = Pending(digest=f"d{n}", name="s", text="", at=AT, tools={}, identity="one")
        store.wait_for(change)
    store.wait_for(pending("proposal"))
    assert [one.digest for one in store.waiting()] == ["d4", "proposal"]


def test_what_waits_does_not_grow_beyond_its_size(directory: Path):
    store = TrustStore(directory)
    for n in range(12):
        store.wait_for(Pending(digest=f"d{n}", name="s", text="x" * (1 << 19), at=AT))
    assert len((directory / "pending.json").read_bytes()) <= 4 << 20
    assert store.waiting()[-1].digest == "d11"


SOON, LATER = "2026-01-01T00:30:00.000Z", "2026-01-01T01:00:00.000Z"


def test_an_agreement_to_one_call_is_used_up_once_by_whoever_comes_first(directory: Path):
    store, other = TrustStore(directory), TrustStore(directory)
    store.wait_for(pending("c" * 64))
    store.approve("c" * 64, name="s", at=AT, until=LATER)
    assert store.waiting() == []
    assert not store.is_approved("c" * 64), "it is for one call, and no standing agreement"
    assert not store.redeem("d" * 64, now=SOON)
    assert other.redeem("c" * 64, now=SOON)
    assert not store.redeem("c" * 64, now=SOON)
    assert store.granted() == []


def test_an_agreement_to_one_call_is_good_for_a_while_and_no_longer(directory: Path):
    store = TrustStore(directory)
    store.approve("a" * 64, name="s", at=AT)
    store.approve("c" * 64, name="s", at=AT, until=SOON)
    assert not store.redeem("c" * 64, now=LATER)
    assert not store.redeem("a" * 64, now=AT), "a standing agreement is not used up"
    assert store.is_approved("a" * 64)


def test_an_agreement_that_cannot_be_used_up_is_not_used(directory: Path):
    store = TrustStore(directory)
    store.approve("c" * 64, name="s", at=AT, until=LATER)
    (directory / "lock").unlink()
    (directory / "lock").mkdir()
    with pytest.raises(OSError, match=r"."):
        store.redeem("c" * 64, now=SOON)
