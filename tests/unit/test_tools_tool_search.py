from typing import Any

from emceepee_stdio.tools.tool_search import _arguments, _first_sentence, _shown

TOOL: dict[str, Any] = {
    "name": "t",
    "title": "T",
    "description": "Does it. Then more of it.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a"],
    },
    "annotations": {"readOnlyHint": True},
}


def test_a_tool_is_shown_by_name_in_short_or_in_full() -> None:
    assert _shown("s", TOOL, "names") == {"server": "s", "name": "t"}
    assert _shown("s", TOOL, "summary") == {
        "server": "s",
        "name": "t",
        "description": "Does it.",
        "args": "a, b?",
    }
    assert _shown("s", TOOL, "signatures") == {
        "server": "s",
        "name": "t",
        "description": "Does it. Then more of it.",
        "signature": "t(a: str, b: int = ...)",
    }
    assert _shown("s", TOOL, "full") == {"server": "s", **TOOL}


def test_a_title_stands_for_a_missing_description() -> None:
    assert _shown("s", {"name": "t", "title": "T"}, "summary")["description"] == "T"
    assert _shown("s", {"name": "t"}, "summary")["description"] == ""


def test_summaries_are_short_whatever_the_server_says() -> None:
    assert len(_first_sentence("word " * 1_000)) == 160
    assert _first_sentence("One\n  line.\nTwo.") == "One line."
    many = {"properties": {f"argument_{n}": {} for n in range(1_000)}}
    assert len(_arguments(many)) == 300


def test_a_schema_that_is_none_has_no_arguments() -> None:
    for schema in (None, 7, [], {}, {"properties": []}, {"properties": {}, "required": "a"}):
        assert _arguments(schema) == ""
