import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.errors import ToolNotFound
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.pin_checks import PinChecks
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.trust.tool_pins import Changes, compare, pin, pin_all

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


@pytest.mark.parametrize("more", [{"_meta": {"x": 1}}, {"icons": []}, {"instructions": "Obey."}])
def test_whatever_else_a_server_says_of_a_tool_counts(more: dict[str, object]):
    changes = compare(pin_all([TOOL]), pin_all([changed(**more)]))
    assert list(changes.changed) == ["send"]
    assert all(f"+{key}: " in changes.changed["send"] for key in more)
    assert not compare(pin_all([changed(**more)]), pin_all([changed(**more)]))


def test_added_and_removed_tools_are_named():
    before, now = pin_all([TOOL, changed(name="old")]), pin_all([TOOL, changed(name="new")])
    found = compare(before, now)
    assert (found.changed, found.added, found.removed) == ({}, ("new",), ("old",))
    lines = found.text().split("\n")
    assert (lines[0], lines[-1]) == ("Added: new", "Removed: old")
    assert all(line.startswith("+") for line in lines[1:-1])
    assert "+description: Sends a letter." in lines
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
    assert compare({}, now).text().split("\n")[0] == r"Added: x\nRemoved: everything\x1b[2K"
    assert compare(now, {}).text() == r"Removed: x\nRemoved: everything\x1b[2K"
    text = compare(now, pin_all([changed(name=evil, title="T")])).text()
    assert text.split("\n")[0] == r"Changed: x\nRemoved: everything\x1b[2K"


def test_a_change_of_a_huge_tool_is_told_though_not_shown():
    assert "too large" in diff(description="x" * 100_000)
    before = pin_all([changed(description="x" * 100_000)])
    now = pin_all([changed(description="x" * 99_999 + "y")])
    assert before["send"].text == ""
    assert "too large" in compare(before, now).changed["send"]


def test_a_long_diff_is_shown_whole():
    long = "\n".join(f"line {i}" for i in range(300))
    text = compare(
        pin_all([changed(description=long)]), pin_all([changed(description=long.upper())])
    ).changed["send"]
    assert all(f"-description: line {i}" in text for i in range(300))
    assert all(f"+description: LINE {i}" in text for i in range(300))


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


# In a session


class World:
    """PinChecks on a store of their own, and what they told."""

    def __init__(self, tmp_path: Path, mode: str) -> None:
        self.path = tmp_path
        self.told = list[Mapping[str, object]]()
        clock = Clock()
        self.journal = Journal.open(
            directory=tmp_path / "journal", session="s", clock=clock, stderr=None
        )
        self.pins = PinChecks(
            TrustStore(tmp_path / "trust"),
            mode=lambda: mode,
            tell=lambda _, data: self.told.append(data),
            clock=clock,
            journal=self.journal,
        )

    async def see(self, *tools: Any) -> None:
        async with anyio.create_task_group() as tasks:
            self.pins.seen(ServerConfig(name="s", command="run"), list(tools), tasks.start_soon)

    def noted(self) -> list[str]:
        self.journal.close()
        lines = [path.read_text() for path in (self.path / "journal").glob("*.jsonl")]
        return [json.loads(line)["event"] for line in "".join(lines).splitlines()]


def _nested(depth: int) -> object:
    inner: object = None
    for _ in range(depth):
        inner = [inner]
    return inner


async def test_tools_that_cannot_be_compared_end_nothing_and_do_not_run(tmp_path: Path):
    world = World(tmp_path, "enforce")
    await world.see(changed(inputSchema=_nested(100_000)))
    with pytest.raises(ToolNotFound):
        await world.pins.check(ServerConfig(name="s", command="run"), "send")
    assert world.noted() == ["unexpected_error"]


async def test_lists_that_come_at_the_same_time_are_told_once(tmp_path: Path):
    world = World(tmp_path, "warn")
    await world.see(TOOL)
    config = ServerConfig(name="s", command="run")
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            world.pins.seen(config, [changed(title="T")], tasks.start_soon)
    assert len(world.told) == 1


async def test_a_server_of_which_nothing_is_known_runs_nothing(tmp_path: Path):
    world = World(tmp_path, "enforce")
    with pytest.raises(ToolNotFound, match="does not list"):
        await world.pins.check(ServerConfig(name="never seen", command="run"), "send")
    assert (await world.pins.changes("never seen"))[0] == Changes()
