"""Rules changed in the file: the last one counts, and all else stays as it is written."""

import json
from typing import Any

import pytest

from emceepee_stdio.config.own_file import overruled, places, remove_rule, rules_at, set_rule

TEXT = """{
  // mine
  "mcpServers": {
    "bank": {
      "command": "x", // started
      "tools": {
        "send": "off", // never
        "*": "allow"
      }
    },
    "plain": {"command": "y"}
  }
}
"""


def rules(text: str, name: str = "bank") -> list[tuple[str, str]]:
    (place,) = [place for place in places(text) if place.name == name]
    return list(rules_at(place).items())


def test_a_rule_that_is_set_goes_behind_the_others_and_comments_stay() -> None:
    changed = set_rule(TEXT, "bank", "read_*", "ask")
    assert rules(changed) == [("send", "off"), ("*", "allow"), ("read_*", "ask")]
    assert "// never" in changed
    assert "// mine" in changed
    again = set_rule(changed, "bank", "send", "off")
    assert rules(again)[-1] == ("send", "off"), "it was there, and another one counted"
    assert set_rule(again, "bank", "send", "off") == again


def test_the_first_rule_of_a_server_makes_the_place_for_it() -> None:
    changed = set_rule(TEXT, "plain", "*", "ask")
    assert rules(changed, "plain") == [("*", "ask")]
    assert rules(changed) == rules(TEXT)


def test_a_rule_is_taken_out_and_the_last_one_with_its_place() -> None:
    changed = remove_rule(TEXT, "bank", "send")
    assert changed is not None
    assert rules(changed) == [("*", "allow")]
    empty = remove_rule(changed, "bank", "*")
    assert empty is not None
    assert "tools" not in empty
    assert "// started" in empty
    assert remove_rule(TEXT, "bank", "other") is None


@pytest.mark.parametrize(
    ("entry", "after"),
    [
        ({"includeTools": ["a"]}, [("*", "off"), ("a", "allow"), ("b", "ask")]),
        ({"tools": ["a"]}, [("*", "off"), ("a", "allow"), ("b", "ask")]),
        ({"tools": ["*"]}, [("b", "ask")]),
        ({"disabledTools": ["a"]}, [("a", "off"), ("b", "ask")]),
    ],
)
def test_a_list_of_a_client_becomes_rules_with_the_first_change(
    entry: dict[str, Any], after: list[tuple[str, str]]
) -> None:
    text = json.dumps({"servers": [{"name": "bank", "command": "x", **entry}]}, indent=2)
    changed = set_rule(text, "bank", "b", "ask")
    assert rules(changed) == after
    assert not set(json.loads(changed)["servers"][0]) & {"includeTools", "disabledTools"}


def test_what_a_wide_rule_takes_the_effect_from_is_named() -> None:
    assert overruled({"send": "off", "*": "allow"}, "*", "ask") == {"send": "off"}
    assert overruled({"send": "off"}, "read_*", "ask") == {}
    assert overruled({"send": "ask"}, "*", "ask") == {}
