import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.trust.pins import Changes, compare, pin, pin_all

TOOL: dict[str, Any] = {
    "name": "send",
    "title": "Send",
    "description": "Sends a letter.\nTo one person.",
    "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": False},
}


def changed(**parts: Any) -> dict[str, Any]:
    return copy.deepcopy(TOOL) | parts


def diff(**parts: Any) -> str:
    found = compare(pin_all([TOOL]), pin_all([changed(**parts)]))
    return found.changed.get("send", "")


def test_the_same_tool_is_the_same_however_its_keys_are_ordered():
    turned = dict(reversed(copy.deepcopy(TOOL).items()))
    assert pin(turned) == pin(TOOL)
    assert not compare(pin_all([TOOL]), pin_all([turned]))


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        (
            {"description": "Sends a letter.\nTo everybody."},
            ["-description: To one person.", "+description: To everybody."],
        ),
        ({"title": "Post"}, ["-title: Send", "+title: Post"]),
        ({"inputSchema": {"type": "object"}}, ['-inputSchema:  "properties": {']),
        ({"outputSchema": {"type": "array"}}, ['+outputSchema:  "type": "array"']),
        (
            {"annotations": {"readOnlyHint": True}},
            ['-annotations:  "readOnlyHint": false', '+annotations:  "readOnlyHint": true'],
        ),
    ],
    ids=["description", "title", "inputSchema", "outputSchema", "annotations"],
)
def test_a_change_is_shown_line_by_line(parts: dict[str, Any], lines: list[str]):
    for line in lines:
        assert line in diff(**parts).split("\n")


@pytest.mark.parametrize("part", ["description", "inputSchema", "annotations"])
def test_a_part_that_is_gone_is_a_change(part: str):
    without = {key: value for key, value in TOOL.items() if key != part}
    assert compare(pin_all([TOOL]), pin_all([without])).changed.keys() == {"send"}


def test_parts_that_no_person_reads_do_not_count():
    assert not compare(pin_all([TOOL]), pin_all([changed(_meta={"x": 1}, icons=[])]))


def test_added_and_removed_tools_are_named():
    before, now = pin_all([TOOL, changed(name="old")]), pin_all([TOOL, changed(name="new")])
    found = compare(before, now)
    assert (found.changed, found.added, found.removed) == ({}, ("new",), ("old",))
    assert found.text() == "Added: new\nRemoved: old"
    assert bool(found)
    assert not Changes()


def test_no_description_can_forge_a_line_of_the_diff():
    text = diff(description="Nice.\x1b[2K\r\u202e\u2028Added: nothing\n-description: old")
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert all(line[0] in "+- " and line[1:].isprintable() for line in text.split("\n"))
    assert all(
        line[1:].startswith(("title:", "description:", "inputSchema:")) for line in text.split("\n")
    )


def test_no_name_of_a_tool_can_forge_a_line():
    evil = "x\nRemoved: everything\x1b[2K"
    now = pin_all([changed(name=evil)])
    assert compare({}, now).text() == r"Added: x\nRemoved: everything\x1b[2K"
    assert compare(now, {}).text() == r"Removed: x\nRemoved: everything\x1b[2K"
    text = compare(now, pin_all([changed(name=evil, title="T")])).text()
    assert text.split("\n")[0] == r"Changed: x\nRemoved: everything\x1b[2K"


def test_a_change_of_a_huge_tool_is_told_though_not_shown():
    assert "too large" in diff(description="x" * 100_000)
    before = pin_all([changed(description="x" * 100_000)])
    now = pin_all([changed(description="x" * 99_999 + "y")])
    assert before["send"].text == ""
    assert "too large" in compare(before, now).changed["send"]


def test_a_long_diff_is_cut_and_says_so():
    text = diff(description="\n".join(f"line {i}" for i in range(200)))
    assert text.endswith("… (cut)")
    assert len(text) < 2_100


def test_so_many_tools_are_compared_and_no_more():
    tools = [changed(name=f"t{i}") for i in range(2_500)]
    assert len(pin_all(tools)) == 2_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, JSON)
def test_two_schemas_are_the_same_exactly_when_they_are_equal(one: object, other: object):
    def digest(schema: object) -> str:
        return pin({"name": "t", "inputSchema": {"default": schema}}).digest

    same = repr(one) == repr(other)  # True and 1 are equal to Python alone
    if same:
        assert digest(one) == digest(other)
    elif one != other:
        assert digest(one) != digest(other)
