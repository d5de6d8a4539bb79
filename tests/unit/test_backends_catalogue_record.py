import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.backends.interface import Era, Hello, Kind, Seen
from emceepee_stdio.backends.lists import CatalogueRecord, Remembered, added_to, recalled

HELLO = Hello(era=Era.LEGACY, protocol_version="2025-11-25", instructions="Be kind.")


def tools(*names: str) -> list[dict[str, object]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


def seen(kind: Kind = Kind.TOOLS, *names: str, at: str = "T1", first: bool = False) -> Seen:
    return Seen(kind=kind, items=tools(*names), hello=HELLO, at=at, first=first)


def whole(record: CatalogueRecord | None = None, *names: str, at: str = "T1") -> CatalogueRecord:
    """A server of which all lists were seen."""
    record = record or CatalogueRecord(identity="i")
    for kind in Kind:
        is_tools = kind is Kind.TOOLS
        record = added_to(record, seen(kind, *(names if is_tools else ()), at=at, first=is_tools))
    return record


def reread(record: CatalogueRecord) -> CatalogueRecord:
    return msgspec.json.decode(msgspec.json.encode(record), type=CatalogueRecord)


def test_what_was_seen_is_recalled_after_it_was_written_and_read():
    found = recalled(reread(whole(None, "a", "b")))
    assert found is not None
    assert found.hello == HELLO
    assert found.tools == tuple(tools("a", "b"))
    assert found.lists[Kind.PROMPTS] == ()
    assert found.at == "T1"
    assert found.sizes[Kind.TOOLS] > len('{"name":"a"}')


@pytest.mark.parametrize("missing", list(Kind))
def test_a_server_is_not_known_before_each_of_its_lists_was_seen(missing: Kind):
    record = CatalogueRecord(identity="i")
    for kind in Kind:
        if kind is not missing:
            record = added_to(record, seen(kind))
    assert recalled(record) is None


def test_what_one_saw_does_not_take_away_what_another_saw():
    record = whole(None, "a")
    record = added_to(reread(record), seen(Kind.PROMPTS, "p", at="T2"))
    found = recalled(record)
    assert isinstance(found, Remembered)
    assert found.tools == tuple(tools("a"))
    assert found.lists[Kind.PROMPTS] == tuple(tools("p"))
    assert found.at == "T1", "the oldest of its words"


def test_a_list_that_was_cut_stays_known_as_cut():
    record = whole(None, "a")
    cut = Seen(kind=Kind.TOOLS, items=tools("a"), hello=HELLO, at="T2", cut=True)
    found = recalled(reread(added_to(record, cut)))
    assert found is not None
    assert found.cut == {Kind.TOOLS}


def started(record: CatalogueRecord, *starts: str) -> CatalogueRecord:
    for name in starts:
        record = added_to(record, seen(Kind.TOOLS, name, first=True))
    return record


def test_a_server_whose_tools_are_others_at_each_start_is_no_longer_believed():
    record = started(whole(None, "a"), "b", "c")
    assert recalled(record) is not None, "two updates"
    assert recalled(started(record, "d")) is None


def test_a_server_that_was_updated_once_stays_believed():
    assert recalled(started(whole(None, "a"), "b", "b", "b", "b")) is not None


def test_a_server_that_became_steady_is_believed_again():
    record = started(whole(None, "a"), "b", "c", "d")
    assert recalled(record) is None
    assert recalled(started(record, "d", "d", "d")) is not None


def test_the_order_of_tools_is_no_difference():
    record = whole(None, "a", "b")
    for names in (("b", "a"), ("a", "b"), ("b", "a"), ("a", "b")):
        record = added_to(record, seen(Kind.TOOLS, *names, first=True))
    assert record.is_steady


def test_a_server_that_adds_the_same_tools_after_each_start_is_believed():
    record = whole(None, "a")
    for _ in range(5):
        record = added_to(record, seen(Kind.TOOLS, "a", "b"))
        record = added_to(record, seen(Kind.TOOLS, "a", first=True))
    assert record.is_steady


def test_what_changes_while_a_server_runs_is_no_difference_between_starts():
    record = whole(None, "a")
    for name in "bcdef":
        record = added_to(record, seen(Kind.TOOLS, name))
    assert record.is_steady


@given(st.lists(st.sampled_from("ab"), max_size=30))
def test_the_memory_of_starts_stays_small(names: list[str]):
    assert len(started(whole(None, "a"), *names).starts) <= 5
