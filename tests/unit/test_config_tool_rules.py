"""Rules for tools: which one counts, what cannot be read, and how clients write the same."""

import json
from typing import Any

import pytest

from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.settings import Config
from emceepee_stdio.config.tool_rules import ToolRules, escaped, pattern_problem, rules_of


def load(**entry: Any) -> Config:
    document = {"mcpServers": {"a": {"command": "x", **entry}, "well": {"command": "y"}}}
    return load_text(json.dumps(document), environ={"MODE": "ask"}, source="config.json")


def read(**entry: Any) -> list[tuple[str, str]]:
    """The rules of an entry that gives no cause for complaint, in their order."""
    config = load(**entry)
    assert (config.disabled, config.warnings) == ((), ())
    return list(config.servers[0].tools.items())


def reason(**entry: Any) -> str:
    """Of an entry whose rules cannot be read: it is disabled, and of its tools none runs."""
    config = load(**entry)
    assert [server.name for server in config.servers] == ["well"]
    (broken,) = config.disabled
    assert not broken.switched_off
    assert broken.config is not None
    assert broken.config.tools == {"*": "off"}
    return broken.reason


def test_the_last_match_counts_and_what_nothing_matches_is_allowed() -> None:
    rules = ToolRules({"*": "off", "read_*": "allow", "read_mail": "ask"})
    assert [rules.rule(name) for name in ("send", "read_x", "read_mail")] == ["off", "allow", "ask"]
    assert ToolRules({"read_mail": "ask", "*": "allow"}).rule("read_mail") == "allow"
    assert ToolRules({"a": "off"}).rule("b") == "allow"
    assert rules_of({"a": {}, "b": {}}) is None


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("send", ["send"], ["Send", "SEND", "send ", "resend", "send\n", "\u0455end"]),
        ("s?nd", ["send", "sand"], ["snd", "seend"]),
        ("[rw]*", ["read", "write"], ["exec", "[rw]"]),
        ("[!a]*", ["b"], ["a"]),
        ("*", ["", "a", "a\nb", "\u202e"], []),
        ("a.c", ["a.c"], ["abc"]),
        ("[[]x[*]", ["[x*"], ["[x", "[xy"]),
        ("*/*", ["a/b"], ["ab"]),
    ],
)
def test_a_pattern_is_a_glob_that_minds_the_case_and_the_whole_name(
    pattern: str, matches: list[str], others: list[str]
) -> None:
    rules = ToolRules({pattern: "off"})
    assert [name for name in matches if not rules.hides(name)] == []
    assert [name for name in others if rules.hides(name)] == []


def test_of_several_sets_the_strictest_word_counts() -> None:
    rules = ToolRules({"*": "ask", "a": "allow"}, {"b": "off", "a": "allow"})
    assert [rules.rule(name) for name in "abc"] == ["allow", "off", "ask"]


def test_the_entry_is_named_whose_word_counts() -> None:
    rules = rules_of({"none": {}, "mild": {"send": "ask"}, "strict": {"send": "off", "x": "ask"}})
    assert rules is not None
    assert rules.entry("send") == "strict"
    assert rules.entry("x") == "strict"
    assert ToolRules({"a": "off"}).entry("a") is None


def test_rules_are_read_in_their_order_and_a_variable_may_hold_one() -> None:
    written = {"z": "off", "*": "allow", "a": "${MODE}"}
    assert read(tools=written) == [("z", "off"), ("*", "allow"), ("a", "ask")]
    assert read(tools=None) == []
    assert read(tools={}) == []


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"send": "of"}, "mcpServers.a.tools.send: expected one of allow, ask, off, got a string"),
        ({"send": True}, "mcpServers.a.tools.send: expected one of allow, ask, off"),
        ({"send": None}, "mcpServers.a.tools.send: expected one of allow, ask, off"),
        ("off", "mcpServers.a.tools: expected an object, got a string"),
        ({"": "off"}, "a pattern has 1 to 200 characters"),
        ({"x" * 201: "off"}, "a pattern has 1 to 200 characters"),
        ({"[a": "off"}, "a [ without its ]"),
        ({"[]": "off"}, "a [ without its ]"),
        ({"a": "${NONE}"}, "needs the environment variable NONE"),
        ({f"t{n}": "off" for n in range(1_001)}, "has 1001 patterns; 1000 are possible"),
        ([1], "mcpServers.a.tools[0]: expected a string"),
    ],
)
def test_rules_that_cannot_be_read_disable_the_server_and_allow_nothing(
    tools: Any, said: str
) -> None:
    assert said in reason(tools=tools)


def test_the_same_pattern_twice_is_no_rule() -> None:
    text = (
        '{"mcpServers": {"a": {"command": "x", "tools": {"s": "off", "*": "allow", "s": "ask"}}}}'
    )
    (broken,) = load_text(text, environ={}, source="f").disabled
    assert "has the same pattern twice" in broken.reason


def test_a_server_that_is_off_keeps_its_rules() -> None:
    (off,) = load(tools={"a": "ask"}, disabled=True).disabled
    assert off.switched_off
    assert off.config is not None
    assert off.config.tools == {"a": "ask"}
    (off,) = load(tools={"a": "maybe"}, disabled=True).disabled
    assert off.config is not None
    assert off.config.tools == {"*": "off"}


@pytest.mark.parametrize("key", ["includeTools", "enabled_tools", "enabledTools", "tools"])
def test_what_a_client_includes_runs_and_nothing_else(key: str) -> None:
    assert read(**{key: ["a", "b*"]}) == [("*", "off"), ("a", "allow"), ("b[*]", "allow")]
    assert read(**{key: []}) == [("*", "off")]


@pytest.mark.parametrize("key", ["excludeTools", "disabled_tools", "disabledTools"])
def test_what_a_client_excludes_is_off(key: str) -> None:
    assert read(**{key: ["a"]}) == [("a", "off")]
    assert read(**{key: []}) == []


def test_an_exclusion_goes_before_an_inclusion() -> None:
    rules = read(includeTools=["a", "b"], excludeTools=["a"])
    assert rules == [("*", "off"), ("b", "allow"), ("a", "off")]


def test_a_star_in_a_list_is_all_of_them() -> None:
    assert read(tools=["*"]) == []


@pytest.mark.parametrize("value", ["a", {"a": True}, [1], [None]])
def test_a_list_of_a_client_that_cannot_be_read_allows_nothing(value: Any) -> None:
    assert "mcpServers.a.excludeTools" in reason(excludeTools=value)


def test_rules_in_two_spellings_are_none() -> None:
    assert "has both tools and includeTools" in reason(tools={"a": "off"}, includeTools=["b"])


def test_an_escaped_name_is_a_pattern_of_itself_alone() -> None:
    for name in ("a", "a*", "[b]", "?", "[", "]", "a[!b"):
        assert pattern_problem(escaped(name)) is None
        assert ToolRules({escaped(name): "off"}).hides(name)
        assert not ToolRules({escaped(name): "off"}).hides(f"{name}x")
