"""Words of a shell as the arguments of a tool, and what is wrong with them."""

import pytest
import typer

from emceepee_stdio import visible_text
from emceepee_stdio.cli.call import fitted, fitted_to_prompt, given_arguments

NUMBER_OR_NULL = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def converted(word: str, schema: object) -> object:
    values, problems = fitted(given_arguments([word]), {"properties": {"x": schema}})
    assert problems == []
    return values["x"]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("2", {"type": "integer"}, 2),
        ("2", {"type": "string"}, "2"),
        ("2", {}, "2"),
        ("0.5", {"type": "number"}, 0.5),
        ("true", {"type": "boolean"}, True),
        ("2", NUMBER_OR_NULL, 2),
        ("null", NUMBER_OR_NULL, None),
        ("2", {"type": ["string", "integer"]}, "2"),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ('["a", "b"]', {"type": "array", "items": {"type": "string"}}, ["a", "b"]),
        ("a", {"type": "array", "items": {"type": "string"}}, ["a"]),
        ("1", {"type": "array", "items": {"type": "integer"}}, [1]),
        ("1", {"enum": [1, 2]}, 1),
        ("low", {"enum": ["low", "high"]}, "low"),
        ("a=b", {"type": "string"}, "a=b"),
    ],
)
def test_a_word_becomes_what_the_schema_wants(text: str, schema: object, value: object):
    assert converted(f"x={text}", schema) == value


def test_a_name_that_comes_twice_is_a_list():
    given = given_arguments(["x=1", "x=2"])
    listed = {"properties": {"x": {"type": "array", "items": {"type": "integer"}}}}
    assert fitted(given, listed) == ({"x": [1, 2]}, [])
    _, problems = fitted(given, {"properties": {"x": {"type": "integer"}}})
    assert problems == ['x must be int, not ["1", "2"]']


def test_all_that_is_missing_unknown_and_wrong_is_named_at_once():
    schema = {
        "properties": {
            "timezone": {"type": "string"},
            "count": {"type": "integer"},
            "level": {"enum": ["low", "high"]},
        },
        "required": ["timezone"],
    }
    given = given_arguments(["timezon=UTC", "count=many", "level=medium", "other=1"])
    assert fitted(given, schema)[1] == [
        "timezone is missing",
        "timezon is unknown (did you mean timezone?)",
        'count must be int, not "many"',
        'level must be "low" | "high", not "medium"',
        "other is unknown",
    ]


def test_numbers_that_json_does_not_have_are_refused():
    schema = {"properties": {"n": {"type": "number"}}}
    for text in ("NaN", "Infinity"):
        assert fitted(given_arguments([f"n={text}"]), schema)[1] == [
            f'n must be float, not "{text}"'
        ]
    with pytest.raises(typer.BadParameter, match="not a JSON object"):
        given_arguments(['{"n": NaN}'])


def test_json_is_checked_as_words_are():
    schema = {"properties": {"n": {"type": "integer"}}}
    assert fitted(given_arguments(['{"n": 1}']), schema) == ({"n": 1}, [])
    assert fitted(given_arguments(['{"n": "1"}']), schema) == ({"n": 1}, [])
    assert fitted(given_arguments(['{"n": true}']), schema)[1] == ["n must be int, not true"]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"properties": {}, "additionalProperties": True},
        {"properties": {}, "additionalProperties": {"type": "string"}},
        {"properties": {}, "patternProperties": {"^a": {}}},
        {"properties": {}, "anyOf": [{"properties": {"other": {}}}]},
    ],
)
def test_other_names_are_left_to_a_server_that_may_take_them(schema: dict[str, object]):
    assert fitted(given_arguments(["other=1"]), schema) == ({"other": "1"}, [])


def test_a_prompt_takes_texts_and_names_what_is_missing():
    arguments = [{"name": "city", "required": True}, {"name": "state"}]
    assert fitted_to_prompt(given_arguments(["city=1"]), arguments) == ({"city": "1"}, [])
    _, problems = fitted_to_prompt(given_arguments(["stat=x"]), arguments)
    assert problems == ["city is missing", "stat is unknown (did you mean state?)"]


@pytest.mark.parametrize(
    ("is_posix", "line", "words"),
    [
        (False, "C:\\windows\\notepad.exe", ["C:\\windows\\notepad.exe"]),
        (
            False,
            '"C:\\Program Files\\Edit\\e.exe" --wait',
            ["C:\\Program Files\\Edit\\e.exe", "--wait"],
        ),
        (True, "'my editor' -w", ["my editor", "-w"]),
    ],
)
def test_a_backslash_of_windows_is_part_of_the_path_of_an_editor(
    monkeypatch: pytest.MonkeyPatch, *, is_posix: bool, line: str, words: list[str]
):
    monkeypatch.setattr(visible_text, "_IS_POSIX", is_posix)
    assert visible_text.shell_words(line) == words
