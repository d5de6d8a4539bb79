import json
from contextlib import suppress
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emceepee_stdio.config.jsonc import (
    CannotEdit,
    Unreadable,
    parse,
    put,
    read,
    remove,
    strict_problem,
)

ENTRY = {"command": "/x", "args": ["-m", "y"], "env": {"PATH": "/a:/b"}}

names = st.sampled_from(["a", "b", "mcpServers", "ü", 'q"', "\\", "//", "/*", "{", ","])
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(names, values, max_size=4)


def write(value: object, seed: int) -> str:
    """The value as some person might write it: comments, odd spaces, trailing commas, CRLF."""
    random = Random(seed)
    line_break = random.choice(["\n", "\n", "\r\n"])
    step = random.choice(["  ", "    ", "\t"])
    one_line, loose = random.random() < 0.3, random.random() < 0.5

    def gap() -> str:
        if not loose or one_line:
            return random.choice(["", " "])
        return random.choice(["", " ", " /* c, } */ ", f' // r ] "{line_break}', line_break])

    def text(part: object, depth: int) -> str:
        if not isinstance(part, dict | list):
            return json.dumps(part, ensure_ascii=random.random() < 0.5)
        opening, closing = "{}" if isinstance(part, dict) else "[]"
        items = (
            [f"{json.dumps(k)}{gap()}:{gap()}{text(v, depth + 1)}" for k, v in part.items()]
            if isinstance(part, dict)
            else [text(v, depth + 1) for v in part]
        )
        if not items:
            return opening + gap() + closing
        inner = "" if one_line else line_break + step * (depth + 1)
        outer = "" if one_line else line_break + step * depth
        comma = "," if loose and random.random() < 0.4 else ""
        joined = f"{gap()},{gap()}{inner}".join(items)
        return f"{opening}{gap()}{inner}{joined}{gap()}{comma}{gap()}{outer}{closing}"

    bom = random.choice(["", "", "\ufeff"])
    return bom + gap() + text(value, 0) + random.choice(["", line_break])


def is_within(short: str, long: str) -> bool:
    """Whether the one text is the other with something left out; spaces do not count."""
    rest = iter("".join(long.split()))
    return all(character in rest for character in "".join(short.split()))


@given(values, st.integers())
def test_what_a_person_writes_is_read(value: object, seed: int):
    assert read(write(value, seed)) == value


@given(values)
def test_plain_json_is_read_as_json_reads_it(value: object):
    text = json.dumps(value)
    assert read(text) == json.loads(text)
    assert strict_problem(text) is None


@given(st.text(alphabet='{}[],:"\\/*\n 01.eE-tnu\ufeffa', max_size=20))
@example("[" * 5000)
@example("1" * 5000)
@example('"\\ud800"')
def test_no_text_breaks_the_reader_and_json_is_always_understood(text: str):
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError):
        with suppress(Unreadable):
            read(text)
    else:
        assert read(text) == plain


@given(objects, st.integers(), st.sampled_from(["new", "ü", "a.b", '"']), values)
def test_a_new_member_leaves_the_rest_and_its_removal_gives_the_text_back(
    document: dict[str, object], seed: int, name: str, value: object
):
    document.pop(name, None)
    text = write(document, seed)
    changed = put(text, (name,), value)
    assert read(changed) == {**document, name: value}
    assert is_within(text, changed)
    if document:
        assert remove(changed, (name,)) == text
    assert put(changed, (name,), value) == changed


@given(objects, st.integers(), st.sampled_from(["p", "mcpServers"]))
def test_missing_objects_are_made_on_the_way(document: dict[str, object], seed: int, name: str):
    document = {key: value for key, value in document.items() if key != name}
    text = write(document, seed)
    changed = put(text, (name, "x", "y"), ENTRY)
    assert read(changed) == {**document, name: {"x": {"y": ENTRY}}}
    assert is_within(text, changed)


@given(objects, objects, st.integers())
def test_an_entry_below_is_put_in_and_taken_out_to_the_byte(
    others: dict[str, object], section: dict[str, object], seed: int
):
    section = {"first": 1, **section}
    text = write({**others, "mcpServers": section}, seed)
    changed = put(text, ("mcpServers", "emceepee"), ENTRY)
    assert read(changed) == {**others, "mcpServers": {**section, "emceepee": ENTRY}}
    assert remove(changed, ("mcpServers", "emceepee")) == text


@given(objects.filter(bool), st.integers(), values, st.data())
def test_replacing_touches_only_the_value(
    document: dict[str, object], seed: int, value: object, data: st.DataObject
):
    name = data.draw(st.sampled_from(sorted(document)))
    text = write(document, seed)
    root = parse(text)
    assert root is not None
    node = next(member.node for member in root.members if member.key == name)
    changed = put(text, (name,), value)
    assert read(changed) == {**document, name: value}
    assert changed.startswith(text[: node.start])
    assert changed.endswith(text[node.end :])


@given(objects.filter(bool), st.integers(), st.data())
def test_removing_takes_nothing_else(document: dict[str, object], seed: int, data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(document)))
    text = write(document, seed)
    changed = remove(text, (name,))
    assert read(changed) == {key: value for key, value in document.items() if key != name}
    assert is_within(changed, text)


@given(st.lists(values, min_size=1, max_size=4), st.integers(), st.data())
def test_items_of_lists_are_replaced_and_removed(
    items: list[object], seed: int, data: st.DataObject
):
    index = data.draw(st.integers(0, len(items) - 1))
    text = write({"servers": items}, seed)
    assert read(remove(text, ("servers", index))) == {"servers": items[:index] + items[index + 1 :]}
    assert read(put(text, ("servers", index), 7)) == {
        "servers": [*items[:index], 7, *items[index + 1 :]]
    }


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', 3, 3, "expecting ',' delimiter"),
        ('{"a" 1}', 1, 6, "expecting ':' delimiter"),
        ("{a: 1}", 1, 2, "expecting property name enclosed in double quotes"),
        ('{"a": }', 1, 7, "expecting value"),
        ('{"a": 01}', 1, 8, "expecting ',' delimiter"),
        ('{"a": 1}\n}', 2, 1, "extra data"),
        ('\ufeff{"a": 1', 1, 8, "expecting ',' delimiter"),
        ('{"a": "x\n"}', 1, 9, "invalid control character"),
        ('{"a": "x}', 1, 7, "unterminated string"),
        ('{"a": "\\x"}', 1, 8, "invalid \\escape"),
        ("{} /* x", 1, 4, "this comment is not closed"),
        ("{} /", 1, 4, "expecting value"),
        ('{"a" 1} /* x', 1, 6, "expecting ':' delimiter"),
        ('{/* x\n*/"a": 1,\n"b" 2}', 3, 5, "expecting ':' delimiter"),
        ("[" * 200, 1, 101, "this is nested too deeply"),
        ("[1, " + "9" * 5_000 + "]", 1, 5, "this number has too many digits"),
        ("[,]", 1, 2, "expecting value"),
        ("[ /* x */ ,]", 1, 11, "expecting value"),
        ('{"a": 1,,}', 1, 9, "expecting property name enclosed in double quotes"),
        ("[1 2]", 1, 4, "expecting ',' delimiter"),
    ],
)
def test_a_mistake_is_named_with_its_exact_place(text: str, line: int, column: int, reason: str):
    for call in (read, lambda text: put(text, ("x",), 1), lambda text: remove(text, ("x",))):
        with pytest.raises(Unreadable) as caught:
            call(text)
        assert (caught.value.line, caught.value.column) == (line, column)
        assert caught.value.reason == reason


def test_a_message_never_shows_what_stands_in_the_file():
    with pytest.raises(Unreadable) as caught:
        read('{"token": "hunter2" "x"}')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "s": {\n    "e": {}\n  }\n}\n'),
        ("// mine\n", '// mine\n{\n  "s": {\n    "e": {}\n  }\n}\n'),
        ("// mine", '// mine\n{\n  "s": {\n    "e": {}\n  }\n}\n'),
        ("{}", '{\n  "s": {\n    "e": {}\n  }\n}'),
        ("{ }\n", '{\n  "s": {\n    "e": {}\n  }\n}\n'),
        ("{\r\n}", '{\r\n  "s": {\r\n    "e": {}\r\n  }\r\n}'),
        ('{"a":1}', '{"a":1,"s":{"e":{}}}'),
        ('{"a": 1,}', '{"a": 1, "s": {"e": {}},}'),
        ('{"s":{}}', '{"s":{"e":{}}}'),
        ('{"s": null}', '{"s": {"e": {}}}'),
        ('{\n  "s": null\n}', '{\n  "s": {\n    "e": {}\n  }\n}'),
        (
            '{\n\t"s": {\n\t\t"x": 1 // one\n\t\t// end\n\t}\n}',
            '{\n\t"s": {\n\t\t"x": 1, // one\n\t\t"e": {}\n\t\t// end\n\t}\n}',
        ),
        ('{\n  "s": {\n    "x": 1}}', '{\n  "s": {\n    "x": 1,\n    "e": {}}}'),
        (
            '{\n    "s": {\n        // none yet\n    }\n}',
            '{\n    "s": {\n        // none yet\n        "e": {}\n    }\n}',
        ),
    ],
)
def test_an_entry_is_written_in_the_style_of_its_file(before: str, after: str):
    assert put(before, ("s", "e"), {}) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{\n  "s": {\n    "e": 1\n  }\n}', '{\n  "s": {}\n}'),
        ('{\n  "s": {\n    // c\n    "e": 1\n  }\n}', '{\n  "s": {\n    // c\n  }\n}'),
        ('{"s": {"e": 1, "f": 2}}', '{"s": {"f": 2}}'),
        ('{"s": {"f": 2, "e": 1,}}', '{"s": {"f": 2,}}'),
        ('{"s": {"f": 2, // c\n "e": 1}}', '{"s": {"f": 2 // c\n }}'),
        ('{"s": {"e": 1, "f": 0, "e": 2}}', '{"s": {"f": 0}}'),
        ('{\r\n "s": {\r\n "f": 0, // x\r\n "e": 1 // y\r\n }}', None),
        ('{"s": 1}', '{"s": 1}'),
        ("", ""),
    ],
)
def test_an_entry_is_taken_out_with_its_line(before: str, after: str | None):
    expected = '{\r\n "s": {\r\n "f": 0 // x\r\n }}' if after is None else after
    assert remove(before, ("s", "e")) == expected


def test_of_a_name_used_twice_the_last_one_counts():
    text = '{"a": 1, "a": 2}'
    assert read(text) == {"a": 2}
    assert put(text, ("a",), 3) == '{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ('{"s": []}', ("s", "e"), "s is not an object"),
        ("[]", ("s",), "it does not hold an object"),
        ('{"s": {"e": 1}}', ("s", "e", "f"), "s.e is not an object"),
        ('{"s": [1]}', ("s", 4), "s is not an object"),
    ],
)
def test_a_value_of_another_kind_is_not_overwritten(
    text: str, path: tuple[str | int, ...], reason: str
):
    with pytest.raises(CannotEdit, match=reason):
        put(text, path, 1)


def test_an_edit_that_would_read_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("emceepee_stdio.config.jsonc._insert", lambda text, *_: text)
    with pytest.raises(CannotEdit, match="safely"):
        put('{"a": 1}', ("b",), 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", None),
        ('{\n"a": 1 // c\n}', "a comment in line 2"),
        ('{"a": 1,\n}', "a trailing comma in line 1"),
        ("[[1,],/* x */]", "a trailing comma in line 1"),
    ],
)
def test_what_plain_json_refuses_is_found(text: str, problem: str | None):
    assert strict_problem(text) == problem
