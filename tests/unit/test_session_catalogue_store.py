import os
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from emceepee_stdio.backends.interface import Era, Hello, Kind, Seen
from emceepee_stdio.backends.lists import Remembered, recalled
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.session.catalogue import CatalogueStore

HELLO = Hello(era=Era.MODERN, protocol_version="2026-07-28", server_info={"name": "s"})
KEY = b"k" * 32
PRIVATE = 0o600


def seen(kind: Kind, *names: str, at: str = "T1") -> Seen:
    return Seen(kind=kind, items=[{"name": name} for name in names], hello=HELLO, at=at)


def all_seen(*tools: str) -> list[Seen]:
    return [seen(kind, *(tools if kind is Kind.TOOLS else ())) for kind in Kind]


def known(store: CatalogueStore, identity: str) -> Remembered | None:
    record = store.read(identity)
    return None if record is None else recalled(record)


def names(store: CatalogueStore, identity: str) -> list[object] | None:
    found = known(store, identity)
    return None if found is None else [tool["name"] for tool in found.tools]


posix = pytest.mark.posix_only("modes, links and pipes of POSIX")


@pytest.fixture
def store(tmp_path: Path) -> CatalogueStore:
    return CatalogueStore(tmp_path / "catalogue")


def file_of(store: CatalogueStore) -> Path:
    (path,) = store.directory.glob("*.json")
    return path


def test_what_was_put_down_is_read_by_another(store: CatalogueStore):
    store.add("i" * 64, all_seen("a", "b"))
    other = CatalogueStore(store.directory)
    assert names(other, "i" * 64) == ["a", "b"]
    assert known(other, "j" * 64) is None


@posix
def test_only_its_owner_can_read_it(store: CatalogueStore):
    store.add("i" * 64, all_seen("a"))
    assert file_of(store).stat().st_mode & 0o777 == PRIVATE
    assert store.directory.stat().st_mode & 0o777 == PRIVATE | 0o100


@pytest.mark.parametrize(
    "change",
    [
        {"args": ("other",)},
        {"command": "other"},
        {"env": {"TOKEN": "other"}},
        {"cwd": "/other"},
        {"pass_env": ("OTHER",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_started_in_another_way_is_another_server(
    store: CatalogueStore, change: dict[str, object]
):
    config = ServerConfig(name="a", command="c", args=("x",), env={"TOKEN": "t"})
    other = msgspec.structs.replace(config, **change)
    assert store.identity(config, KEY) != store.identity(other, KEY)
    url = ServerConfig(name="a", url="https://a.example/mcp", headers={"Authorization": "one"})
    another = msgspec.structs.replace(url, headers={"Authorization": "two"})
    assert store.identity(url, KEY) != store.identity(another, KEY)


def test_name_rules_and_restarts_do_not_make_another_server(store: CatalogueStore):
    config = ServerConfig(name="a", command="c", args=("x",))
    same = ServerConfig(name="b", command="c", args=("x",), tools={"*": "off"}, description="d")
    assert store.identity(config, KEY) == store.identity(same, KEY)


def test_another_version_of_emceepee_knows_nothing_of_it(store: CatalogueStore):
    config = ServerConfig(name="a", command="c")
    store.add(store.identity(config, KEY), all_seen("a"))
    other = CatalogueStore(store.directory, version="0.0.0")
    assert known(other, other.identity(config, KEY)) is None
    other.add(other.identity(config, KEY), all_seen("b"))
    assert names(store, store.identity(config, KEY)) == ["a"]


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "corrupt":
            path.write_bytes(data.replace(b'"name"', b'"na\xffme"'))
        case "half":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "another's":
            path.write_bytes(data.replace(b"iiii", b"jjjj"))
        case "huge":
            path.write_bytes(data + b" " * (4 << 20))
        case "writable by others":
            path.chmod(0o666)
        case "deep":
            path.write_bytes(b"[" * 100_000)
        case "link":
            path.rename(path.with_suffix(".moved"))
            path.symlink_to(path.with_suffix(".moved"))
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case _:
            path.unlink()
            path.mkdir()


@pytest.mark.parametrize("how", ["corrupt", "half", "empty", "another's", "huge", "deep"])
def test_a_file_that_is_not_as_we_write_it_counts_as_none_and_is_replaced(
    store: CatalogueStore, how: str
):
    store.add("i" * 64, all_seen("a"))
    spoil(file_of(store), how)
    assert store.read("i" * 64) is None
    store.add("i" * 64, all_seen("b"))
    assert names(store, "i" * 64) == ["b"]


@posix
@pytest.mark.parametrize("how", ["half", "writable by others", "link", "pipe"])
def test_what_is_no_file_of_ours_counts_as_none_and_is_replaced_by_a_private_one(
    store: CatalogueStore, how: str
):
    test_a_file_that_is_not_as_we_write_it_counts_as_none_and_is_replaced(store, how)
    assert file_of(store).stat().st_mode & 0o777 == PRIVATE


def test_a_record_whose_lists_are_none_is_not_recalled_and_is_added_to(store: CatalogueStore):
    store.add("i" * 64, all_seen("a"))
    path = file_of(store)
    path.write_bytes(path.read_bytes().replace(b'"items":[', b'"items":[[],'))
    assert known(store, "i" * 64) is None
    store.add("i" * 64, [replace(one, first=True) for one in all_seen("b")])
    assert names(store, "i" * 64) == ["b"]


def test_a_directory_in_the_place_of_a_file_makes_way_unless_something_is_in_it(
    store: CatalogueStore,
):
    store.add("i" * 64, all_seen("a"))
    path = file_of(store)
    spoil(path, "directory")
    (path / "something").touch()
    assert store.read("i" * 64) is None
    with pytest.raises(OSError, match="not empty"):
        store.add("i" * 64, all_seen("b"))
    (path / "something").unlink()
    assert store.add("i" * 64, all_seen("b"))
    assert names(store, "i" * 64) == ["b"]


def test_a_server_that_lists_without_measure_is_not_kept_by_half(tmp_path: Path):
    store = CatalogueStore(tmp_path, max_server_bytes=2_000)
    store.add("i" * 64, all_seen("a"))
    assert not store.add("i" * 64, [seen(Kind.TOOLS, *(f"tool{n}" for n in range(200)))])
    assert store.read("i" * 64) is None
    assert list(tmp_path.glob("*.json")) == []


def test_those_that_were_used_longest_ago_make_room(tmp_path: Path):
    store = CatalogueStore(tmp_path, max_bytes=2_500)
    identities = [letter * 64 for letter in "abcdefgh"]
    for age, identity in enumerate(identities):
        store.add(identity, all_seen("x"))
        os.utime(tmp_path / f"{identity[:32]}.json", (1_000 + age, 1_000 + age))
    size = len(msgspec.json.encode(store.read(identities[-1])))
    kept = [identity for identity in identities if store.read(identity) is not None]
    assert kept == identities[-(2_500 // size) :]
    assert store.read(kept[0]) is not None, "which keeps it"
    store.add("z" * 64, all_seen("x"))
    assert store.read(kept[0]) is not None


def test_what_a_killed_writer_left_is_cleared_away(store: CatalogueStore):
    store.add("i" * 64, all_seen("a"))
    left = store.directory / f".{file_of(store).name}.abcdef"
    left.write_bytes(b'{"identity":')
    store.add("j" * 64, all_seen("b"))
    assert not left.exists()
    assert names(store, "i" * 64) == ["a"]


def test_two_that_write_at_the_same_time_lose_nothing_of_each_other(store: CatalogueStore):
    kinds = list(Kind)
    ready = threading.Barrier(len(kinds))

    def write(kind: Kind) -> None:
        own = CatalogueStore(store.directory)
        ready.wait()
        for number in range(10):
            own.add("i" * 64, [seen(kind, f"{kind.value}{number}")])

    threads = [threading.Thread(target=write, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = known(store, "i" * 64)
    assert found is not None
    assert {kind: found.lists[kind][0]["name"] for kind in kinds} == {
        kind: f"{kind.value}9" for kind in kinds
    }
