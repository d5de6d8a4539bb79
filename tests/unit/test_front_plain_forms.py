"""Forms as text: what is asked for, and what is read of the answer."""

from typing import Any

import pytest

from emceepee_stdio.front.plain_forms import KNOWN_KINDS, PLAIN_KINDS, as_text, is_plain, read_back

STRING = {"type": "string"}
FIELDS: dict[str, Any] = {
    "text": STRING,
    "format": STRING | {"format": "email"},
    "yes or no": {"type": "boolean"},
    "choice": STRING | {"enum": ["a", "b"]},
    "titled choice": STRING | {"oneOf": [{"const": "a", "title": "A"}]},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "choices": {"type": "array", "items": STRING | {"enum": ["a"]}},
    "nothing": {},
}


def form(field: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": field}, "required": list(required)}


def test_a_plain_form_is_one_that_every_host_can_show() -> None:
    plain = [kind for kind, field in FIELDS.items() if is_plain(form(field))]
    assert plain == ["text", "format", "yes or no", "choice", "titled choice"]
    assert is_plain({})


def test_only_fields_that_a_host_cannot_show_are_rebuilt() -> None:
    for kind, field in FIELDS.items():
        schema = form(field)
        assert (as_text(schema, KNOWN_KINDS) is schema) == (kind != "nothing"), kind
        assert is_plain(as_text(schema, PLAIN_KINDS)), kind


def read(typed: object, field: dict[str, Any], *required: str) -> tuple[object, str]:
    content, problems = read_back({"x": typed}, form(field, *required), PLAIN_KINDS)
    return content.get("x"), "; ".join(problems)


NUMBER, INTEGER = {"type": "number"}, {"type": "integer"}
COLOURS = {"type": "array", "items": {"anyOf": [{"const": "r"}, {"const": "g"}]}}
ODD = {"type": "array", "items": {"enum": ["a, b", "c", "C"]}}
READ = [
    ("500", NUMBER, 500),
    ("-0.5", NUMBER, -0.5),
    (" 1.5000 ", NUMBER, 1.5),
    ("1500.25", NUMBER, 1500.25),
    ("7", INTEGER, 7),
    ("-" + "9" * 40, INTEGER, -int("9" * 40)),
    (12, INTEGER, 12),
    ("2", INTEGER | {"enum": [1, 2]}, 2),
    ("0.125", NUMBER | {"enum": [0.125]}, 0.125),
    ("r, G ,r", COLOURS, ["r", "g"]),
    ("3, 1", ODD, ["C", "a, b"]),
    ("", COLOURS, []),
    ("as it is", {}, "as it is"),
]
UNREAD = [
    ("1,500", NUMBER),
    ("1.500", NUMBER),
    ("-1.500", NUMBER),
    ("1 500", NUMBER),
    ("1e3", NUMBER),
    ("+5", NUMBER),
    ("\u0665", NUMBER),
    (".5", NUMBER),
    ("5.", NUMBER),
    ("nan", NUMBER),
    ("9" * 5_000, INTEGER),
    ("5.0", INTEGER),
    ("five", INTEGER),
    ("r, blue", COLOURS),
    ("a, b", ODD),
]


@pytest.mark.parametrize(("typed", "field", "value"), READ)
def test_what_is_clear_is_read(typed: object, field: dict[str, Any], value: object) -> None:
    assert read(typed, field) == (value, "")


@pytest.mark.parametrize(("typed", "field"), UNREAD, ids=lambda value: str(value)[:20])
def test_what_can_be_read_in_two_ways_or_none_is_not_read(
    typed: str, field: dict[str, Any]
) -> None:
    problem = read(typed, field)[1]
    assert problem.startswith('x: "')
    assert "read" in problem
    assert len(problem) < 200


def test_the_schema_of_the_server_decides() -> None:
    assert "at most 5" in read("6", NUMBER | {"maximum": 5})[1]
    assert "one of 1, 2" in read("3", INTEGER | {"enum": [1, 2]})[1]
    assert "at least 2 items" in read("r", COLOURS | {"minItems": 2}, "x")[1]
    assert "x is missing" in read("", NUMBER, "x")[1]
    assert "x is missing" in read(" ", COLOURS | {"minItems": 1}, "x")[1]
    assert read("", NUMBER | {"default": 3}) == (3, "")


def test_a_default_is_shown_as_it_would_be_typed() -> None:
    def default(field: dict[str, Any]) -> object:
        shown = as_text(form(field), PLAIN_KINDS)["properties"]
        assert isinstance(shown, dict)
        return shown["x"].get("default")  # pyright: ignore[reportUnknownMemberType]

    assert default(NUMBER | {"default": 2.5}) == "2.5"
    assert default(NUMBER | {"default": 0.125}) is None
    assert default(INTEGER | {"default": True}) is None
    assert default(COLOURS | {"default": ["r", "g"]}) == "r, g"
    assert default(ODD | {"default": ["a, b"]}) == "1"
    assert default(COLOURS | {"default": ["blue"]}) is None
    assert default(COLOURS | {"default": [["r"]]}) is None


def test_names_that_cannot_be_typed_are_numbered() -> None:
    hidden = {"type": "array", "items": {"enum": ["a\u200b", "a"]}}
    shown: Any = as_text(form(hidden), PLAIN_KINDS)
    assert "1 (a\u200b), 2 (a)" in shown["properties"]["x"]["description"]
    assert read("2", hidden) == (["a"], "")
