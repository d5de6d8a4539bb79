from typing import Any

import pytest

from emceepee_stdio.tools.question_tools import form_problems, with_defaults


def problems(value: Any, **schema: Any) -> list[str]:
    return form_problems({"f": value}, {"properties": {"f": schema}})


TITLED = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
GOOD: list[tuple[Any, dict[str, Any]]] = [
    ("x", {"type": "string"}),
    ("", {"type": "string"}),
    ("äö", {"type": "string", "minLength": 2, "maxLength": 2}),
    ("a@b", {"type": "string", "format": "email"}),
    ("https://x/y", {"type": "string", "format": "uri"}),
    ("2026-01-31", {"type": "string", "format": "date"}),
    ("2026-01-31T10:00:00Z", {"type": "string", "format": "date-time"}),
    ("anything", {"type": "string", "format": "unheard-of"}),
    (3, {"type": "integer", "minimum": 3, "maximum": 3}),
    (3.0, {"type": "integer"}),
    (10**400, {"type": "integer"}),
    (0.5, {"type": "number"}),
    (-1, {"type": "number"}),
    (False, {"type": "boolean"}),
    ("r", {"type": "string", "enum": ["r", "g"]}),
    ("r", {"type": "string", "oneOf": TITLED}),
    (["r"], {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}}),
    ([], {"type": "array", "items": {"anyOf": TITLED}}),
    (["g", "r"], {"type": "array", "items": {"anyOf": TITLED}, "minItems": 2, "maxItems": 2}),
    ({"odd": 1}, {}),
    ("x", {"type": "unheard-of"}),
]
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (7, {"type": "string"}, "must be a string"),
    (None, {"type": "string"}, "must be a string"),
    ("", {"type": "string", "minLength": 1}, "at least 1 character"),
    ("abc", {"type": "string", "maxLength": 2}, "at most 2 characters"),
    ("a b@c", {"type": "string", "format": "email"}, "valid email"),
    ("x", {"type": "string", "format": "uri"}, "valid uri"),
    ("31.1.2026", {"type": "string", "format": "date"}, "valid date"),
    ("2026-01-31", {"type": "string", "format": "date-time"}, "valid date-time"),
    ("3", {"type": "integer"}, "whole number"),
    (True, {"type": "integer"}, "whole number"),
    (1.5, {"type": "integer"}, "whole number"),
    (float("nan"), {"type": "integer"}, "whole number"),
    (float("inf"), {"type": "integer"}, "whole number"),
    ("1", {"type": "number"}, "must be a number"),
    (1, {"type": "number", "minimum": 2}, "at least 2"),
    (3, {"type": "number", "maximum": 2}, "at most 2"),
    (0, {"type": "boolean"}, "true or false"),
    ("true", {"type": "boolean"}, "true or false"),
    ("b", {"enum": ["r", "g"]}, "one of 'r', 'g'"),
    ("Red", {"oneOf": TITLED}, "one of 'r', 'g'"),
    (["r", "b"], {"type": "array", "items": {"enum": ["r"]}}, "holds 'b'"),
    ("r", {"type": "array", "items": {"enum": ["r"]}}, "must be a list"),
    ([], {"type": "array", "minItems": 1}, "at least 1 item"),
    ([1, 2], {"type": "array", "maxItems": 1}, "at most 1 item"),
]


@pytest.mark.parametrize(("value", "schema"), GOOD)
def test_an_answer_that_fits_has_no_problems(value: Any, schema: dict[str, Any]) -> None:
    assert problems(value, **schema) == []


@pytest.mark.parametrize(("value", "schema", "said"), BAD)
def test_an_answer_that_does_not_fit_is_told_why(
    value: Any, schema: dict[str, Any], said: str
) -> None:
    [problem] = problems(value, **schema)
    assert problem.startswith("f ")
    assert said in problem


def test_every_problem_is_named_at_once() -> None:
    schema = {
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "c"],
    }
    found = form_problems({"b": "x", "d": 1}, schema)
    assert len(found) == 4
    assert [problem.split()[0] for problem in found] == ["a", "c", "b", "d"]


@pytest.mark.parametrize(
    "schema", [{}, {"properties": None}, {"properties": [], "required": 7}, {"required": None}]
)
def test_a_schema_that_says_nothing_forbids_nothing(schema: dict[str, Any]) -> None:
    assert form_problems({"x": 1}, schema) == []
    assert form_problems({}, schema) == []


DEFAULTS = {
    "name": {"type": "string", "default": "Ada"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "colour": {"type": "string", "enum": ["r", "g"], "default": "g"},
    "many": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}, "default": ["r"]},
    "sure": {"type": "boolean", "default": False},
    "plain": {"type": "string"},
}


def test_what_was_left_out_gets_the_default_of_the_schema() -> None:
    expected = {name: field["default"] for name, field in DEFAULTS.items() if "default" in field}
    assert with_defaults({}, {"properties": DEFAULTS}) == expected
    given = {"name": "Bob", "sure": None, "more": 1}
    assert with_defaults(given, {"properties": DEFAULTS}) == expected | given


@pytest.mark.parametrize(
    "field",
    [{"type": "string", "default": 7}, {"enum": ["r"], "default": "x"}, {"type": "integer"}, 7],
)
def test_a_default_that_does_not_fit_its_own_schema_is_none(field: object) -> None:
    assert with_defaults({}, {"properties": {"f": field}}) == {}
    assert with_defaults({}, {}) == {}
