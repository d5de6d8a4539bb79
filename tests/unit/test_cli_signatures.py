"""Tools and prompts as functions: what a person sees of what a server takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.cli.call import fitted, given_arguments
from emceepee_stdio.cli.signatures import (
    Signature,
    first_sentence,
    parameters,
    prompt_signature,
    tool_signature,
)

MANY = [f"a_rather_long_choice_{n}" for n in range(9)]


def tool(*required: str, **properties: object) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": "do", "inputSchema": schema}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "x: str"),
        ({"type": "integer"}, "x: int"),
        ({"type": ["number", "null"]}, "x: float | null"),
        ({"type": "array", "items": {"type": "boolean"}}, "x: list[bool]"),
        ({"type": "array"}, "x: list"),
        ({"enum": ["c", "f"]}, 'x: "c" | "f"'),
        ({"enum": ["a", "b", "c", "d", "e", "f"]}, 'x: "a" | "b" | "c" | "d" | … 2 more'),
        ({"const": 1}, "x: 1"),
        ({"type": "object"}, "x: object"),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]},
            "x: {b, a?}",
        ),
        (
            {"type": "array", "items": {"type": "object", "properties": dict.fromkeys("abcdef")}},
            "x: list[{a?, b?, c?, d?, …}]",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "x: str | int"),
        ({}, "x: any"),
        ({"type": "s\x1b[31mtring"}, r"x: s\x1b[31mtring"),
    ],
)
def test_a_required_parameter_shows_its_type(schema: dict[str, object], shown: str):
    assert str(tool_signature(tool("x", x=schema))) == f"do({shown})"


def test_optional_parameters_come_last_with_their_default_or_a_question_mark():
    made = tool_signature(
        tool(
            "path",
            head={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            limit={"type": "integer", "default": 10},
            path={"type": "string"},
            tone={"type": "string"},
            off={"type": "boolean", "default": False},
        )
    )
    shown = "do(path: str, head?: int, limit: int = 10, tone?: str, off: bool = false)"
    assert str(made) == shown


def test_a_long_default_is_cut_and_still_a_text():
    made = str(tool_signature(tool(url={"type": "string", "default": "https://" + "x" * 100})))
    assert made == 'do(url: str = "https://xxxxxxxxxxxxxxxxxxxxx…")'


def test_references_inside_the_schema_are_followed_and_circles_end():
    schema = {
        "properties": {
            "level": {"$ref": "#/$defs/Level", "default": "low"},
            "tree": {"$ref": "#/$defs/Tree"},
            "loop": {"$ref": "#/$defs/Loop"},
            "gone": {"$ref": "#/$defs/Gone"},
        },
        "$defs": {
            "Level": {"enum": ["low", "high"], "type": "string"},
            "Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
            "Loop": {"$ref": "#/$defs/Loop"},
        },
    }
    shown = str(tool_signature({"name": "do", "inputSchema": schema}))
    assert shown == 'do(level: "low" | "high" = "low", tree?: {left?}, loop?: any, gone?: any)'


def test_a_signature_that_is_too_long_has_a_line_for_each_parameter():
    made = Signature("convert_time", ["source_timezone: str", "time: str"])
    assert made.lines(80) == ["convert_time(source_timezone: str, time: str)"]
    assert made.lines(None) == made.lines(80)
    assert made.lines(30) == ["convert_time(", "    source_timezone: str,", "    time: str,", ")"]


def test_a_signature_is_bounded_whatever_the_server_lists():
    many = {f"p{n}": {"enum": ["x" * 10_000] * 100} for n in range(1_000)}
    shown = str(tool_signature({"name": "n" * 10_000, "inputSchema": {"properties": many}}))
    assert len(shown) < 10_000
    assert shown.endswith("… 960 more)")
    made = tool_signature(tool("x", x={"enum": MANY}))
    assert all(len(line) <= 80 for line in made.lines(80))


def test_a_prompt_takes_texts():
    listed = [{"name": "city", "required": True}, {"name": "state"}]
    assert str(prompt_signature({"name": "ask", "arguments": listed})) == (
        "ask(city: str, state?: str)"
    )
    assert str(prompt_signature({"name": "ask"})) == "ask()"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("Says it back. And more.", None, "Says it back."),
        ("  One sentence\n  over two lines.\n\nMore.", None, "One sentence over two lines."),
        ("It costs 1.5 of what it did", None, "It costs 1.5 of what it did"),
        ("Nothing but words", 10, "Nothing…"),
        ("Antidisestablishment", 10, "Antidises…"),
        ("Red\x1b[31m", None, r"Red\x1b[31m"),
        ("", None, ""),
    ],
)
def test_of_a_description_the_first_sentence_is_shown(text: str, width: int | None, shown: str):
    assert first_sentence(text, width) == shown


SCHEMA_KEYS = ("type", "anyOf", "enum", "const", "$ref", "items", "properties", "required", "a")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(SCHEMA_KEYS) | st.text(max_size=3),
            inner | st.sampled_from(["array", "object", "string", "#/properties/a", "#/"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON, JSON)
def test_no_schema_of_a_server_is_an_error(schema: object, name: object):
    made = tool_signature({"name": name, "inputSchema": schema})
    assert all(line.isprintable() for line in made.lines(40))
    prompt_signature({"name": name, "arguments": schema})
    root = schema if isinstance(schema, dict) else {}
    assert len(parameters(root)) <= 10
    fitted(given_arguments(["a=1", "b=x", "b=y"]), root)
    fitted(given_arguments(['{"a": [1], "b": null}']), root)
