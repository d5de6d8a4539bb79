import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.tools.execute import SentArguments, depends_on_schema, is_plain, repaired

SCHEMA = {
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "s": {"type": "string"},
        "o": {"type": ["integer", "null"]},
    }
}


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def fixed(args: object = None, **extra: object) -> tuple[Any, list[str]]:
    given_args = None if args is None else raw(args)
    given = SentArguments(given_args, {name: raw(value) for name, value in extra.items()})
    sent, repairs = repaired(given, SCHEMA, tool="t")
    return json.loads(bytes(sent)), repairs


def test_what_is_right_keeps_its_bytes() -> None:
    args = Raw(b'{"n" : 1, "s":"1", "x": 1.50}')
    assert repaired(SentArguments(args), SCHEMA, tool="t") == (args, [])


@pytest.mark.parametrize("args", [None, Raw(b"null")])
def test_no_arguments_are_an_empty_object(args: Raw | None) -> None:
    assert repaired(SentArguments(args), SCHEMA, tool="t") == (Raw(b"{}"), [])


def test_an_object_in_a_string_is_opened() -> None:
    sent, repairs = fixed('{"n": 1, "s": "{}"}')
    assert sent == {"n": 1, "s": "{}"}
    assert len(repairs) == 1


def test_arguments_beside_the_tool_are_taken_if_the_tool_knows_them_all() -> None:
    sent, repairs = fixed(n=1, s="x")
    assert sent == {"n": 1, "s": "x"}
    assert len(repairs) == 1
    with pytest.raises(InvalidArguments, match="stranger"):
        fixed(n=1, stranger=2)
    with pytest.raises(InvalidArguments, match="extra"):
        fixed({"n": 1}, extra=2)


def test_quoted_numbers_and_booleans_are_converted_where_the_schema_says_so() -> None:
    sent, repairs = fixed({"n": "-3", "x": "1e3", "b": "true", "s": "5"})
    assert sent == {"n": -3, "x": 1000.0, "b": True, "s": "5"}
    assert len(repairs) == 3


@pytest.mark.parametrize("value", ["", "three", "1.5", "0x10", "True", "1 2", "null", "[1]", "٣"])
def test_what_is_no_whole_number_stays_a_string(value: str) -> None:
    assert fixed({"n": value}) == ({"n": value}, [])


@pytest.mark.parametrize("args", ["[1]", "7", "{", "", '"{}"', "null"])
def test_a_string_that_holds_no_object_is_refused(args: str) -> None:
    with pytest.raises(InvalidArguments):
        fixed(args)


@pytest.mark.parametrize("args", [[], 7, True])
def test_anything_but_an_object_is_refused(args: object) -> None:
    with pytest.raises(InvalidArguments, match="object"):
        fixed(args)


def test_the_schema_matters_only_where_something_could_be_repaired() -> None:
    assert not depends_on_schema(SentArguments(None, {}))
    assert not depends_on_schema(SentArguments(raw({"n": 1, "s": "words"}), {}))
    assert not depends_on_schema(SentArguments(raw([1]), {}))
    assert not depends_on_schema(SentArguments(raw("{"), {}))
    assert depends_on_schema(SentArguments(raw({"n": "1"}), {}))
    assert depends_on_schema(SentArguments(raw({"b": "false"}), {}))
    assert depends_on_schema(SentArguments(raw('{"n": "1"}'), {}))
    assert depends_on_schema(SentArguments(None, {"n": raw(1)}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["n", "x", "b", "s", "o", "z"]), JSON))
def test_nothing_but_quoted_values_ever_changes(args: dict[str, Any]) -> None:
    sent, repairs = fixed(args)
    assert sent.keys() == args.keys()
    changed = [name for name in args if sent[name] != args[name]]
    assert all(isinstance(args[name], str) and name in "nxb" for name in changed)
    assert len(repairs) == len(changed)


@given(st.dictionaries(st.sampled_from(["n", "x", "b", "s"]), JSON))
def test_without_a_schema_the_same_comes_out_unless_it_depends_on_one(args: dict[str, Any]) -> None:
    with_schema, _ = fixed(args)
    sent, _ = repaired(SentArguments(raw(args)), {}, tool="t")
    if not depends_on_schema(SentArguments(raw(args), {})):
        assert json.loads(bytes(sent)) == with_schema


NUMBERS = st.sampled_from(["1", "-1.5", "true", "false", "2e3", "x"])
# What `str.strip` takes away, in the bytes of JSON as a client may write them.
BLANKS = st.text(" \t\n\x0b\x1c\x85\xa0\u2003\u3000", max_size=3)
VALUES = st.builds("{}{}{}".format, BLANKS, NUMBERS, BLANKS) | JSON


@example(args={"n": " \t5"}, escaped=True, indent=None)
@example(args={"n": "\u3000 5"}, escaped=True, indent=None)
@example(args={"n": "\u3000 5"}, escaped=False, indent=None)
@given(
    args=st.dictionaries(st.sampled_from(["n", "x", "b", "s", "o"]), VALUES),
    escaped=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_what_is_plain_is_sent_as_it_is_whatever_the_schema(
    args: dict[str, Any],
    escaped: bool,  # noqa: FBT001 - hypothesis names it
    indent: int | None,
) -> None:
    given_args = Raw(
        json.dumps(args, ensure_ascii=escaped, indent=indent).encode("utf-8", "replace")
    )
    if is_plain(SentArguments(given_args, {})):
        assert repaired(SentArguments(given_args), SCHEMA, tool="t") == (given_args, [])


def test_only_an_object_without_anything_to_put_right_is_plain() -> None:
    assert is_plain(SentArguments(None, {}))
    assert is_plain(SentArguments(raw({}), {}))
    assert is_plain(SentArguments(raw({"n": 1, "s": "one", "l": ["1"]}), {}))
    assert not is_plain(SentArguments(None, {"n": raw(1)}))
    assert not is_plain(SentArguments(raw({}), {"n": raw(1)}))
    for odd in (Raw(b"null"), raw("{}"), raw([1]), raw({"n": "1"}), raw({"b": "true"})):
        assert not is_plain(SentArguments(odd, {}))
