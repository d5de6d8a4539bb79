"""Tools and prompts as functions: what a person sees of what a server takes."""

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.cli.call import fitted, given_arguments
from emceepee_stdio.signatures import (
    Signature,
    first_sentence,
    parameters,
    prompt_signature,
    python_signature,
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


# As Python.


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "str"),
        ({"type": ["number", "null"]}, "float | None"),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            "str | list[int]",
        ),
        ({"oneOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}]}, "Literal['a', 'b'] | None"),
        ({"enum": ["c", 1, None, True]}, "Literal['c', 1, None, True]"),
        ({"enum": list(range(30))}, f"Literal[{', '.join(map(str, range(24)))}, ...]"),
        ({"type": "object"}, "dict"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        (
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "at": {"type": "object", "properties": {"x": {"type": "number"}}},
                        "to": {"$ref": "#/$defs/To"},
                    },
                    "required": ["to"],
                },
            },
            "list[{'at?': {'x?': float}, 'to': Literal['here']}]",
        ),
        ({"allOf": [{"$ref": "#/$defs/To"}], "description": "Where."}, "Literal['here']"),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                    {"properties": {"b": {"type": "integer"}}},
                ]
            },
            "{'a': str, 'b?': int}",
        ),
        ({}, "Any"),
        ({"type": "a\nb"}, "Any"),
        ({"$ref": "#/$defs/Loop"}, "Any"),
    ],
)
def test_the_type_of_a_parameter_as_python(schema: dict[str, object], shown: str):
    listed = tool("x", x=schema)
    listed["inputSchema"]["$defs"] = {  # type: ignore[index]
        "To": {"enum": ["here"]},
        "Loop": {"$ref": "#/$defs/Loop"},
    }
    text = python_signature(listed).partition(" #")[0].removesuffix(")")
    assert text == f"do(x: {shown}"


def test_what_is_said_of_parameters_stands_behind_them_as_comments():
    made = python_signature(
        tool(
            "q",
            q={"type": "string", "description": "What to\nlook for."},
            page_size={"type": "integer", "default": 10, "title": "Page Size"},
            sort={"type": ["string", "null"], "default": None, "title": "By which column"},
            exact={"type": "boolean", "default": False},
            more={"type": "string"},
        )
        | {"outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    )
    assert made == (
        "do(q: str, # What to look for.\n"
        "page_size: int = 10, sort: str | None = None, # By which column\n"
        "exact: bool = False, more: str = ...) -> {'n?': int}"
    )


def test_a_name_that_python_does_not_take_is_told_beside_the_one_in_its_place():
    names = ["X-Key", "X_Key", "class", "3d", "", "ﬁle", "naïve", "a b", "__debug__", "ㅤ"]
    made = python_signature(tool(*names, **{key: {} for key in names}) | {"name": "get-it"})
    assert made == (
        "get_it(X_Key_2: Any, # named 'X-Key'\n"
        "X_Key: Any, _class: Any, # named 'class'\n"
        "_3d: Any, # named '3d'\n"
        "_: Any, # named ''\n"
        "_le: Any, # named 'ﬁle'\n"
        "naïve: Any, a_b: Any, # named 'a b'\n"
        "___debug__: Any, # named '__debug__'\n"
        "__2: Any # named 'ㅤ'\n"
        ")"
    )


def test_what_is_not_listed_may_be_given_where_the_schema_says_so():
    schema = {"properties": {"a": {}}, "additionalProperties": True}
    assert python_signature({"name": "do", "inputSchema": schema}) == (
        "do(a: Any = ..., **more: Any)"
    )
    schema = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert python_signature({"name": "do", "inputSchema": schema}) == "do(**more: Any)"


def test_types_that_are_large_are_shown_with_less_of_their_inside():
    wide = {f"field_{n}": {"type": "string"} for n in range(20)}
    schema = {"type": "object", "properties": {f"part_{n}": {"properties": wide} for n in range(5)}}
    made = python_signature(tool("x", x=schema))
    shown = ", ".join(f"'part_{n}?': Any" for n in range(5))
    assert made == f"do(x: {{{shown}}})"
    loop = {"type": "object", "properties": {f"p{n}": {"$ref": "#/$defs/T"} for n in range(24)}}
    listed = tool("x", x={"$ref": "#/$defs/T"})
    listed["inputSchema"]["$defs"] = {"T": loop}  # type: ignore[index]
    assert len(python_signature(listed)) < 1_000


ALLOWED = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Expr, ast.Constant, ast.Load,
    ast.Subscript, ast.BinOp, ast.BitOr, ast.Tuple, ast.Dict, ast.List, ast.UnaryOp, ast.USub,
)  # fmt: skip
TYPES = {"str", "int", "float", "bool", "list", "dict", "Any", "Literal", "None", "inf", "nan"}


def read_as_python(signature: str) -> list[str]:
    """The names of its parameters; it is a function and nothing else, and says only types."""
    source = f"def {signature}: ..."
    module = ast.parse(source)
    compile(module, "it", "exec")
    [function] = module.body
    assert isinstance(function, ast.FunctionDef)
    assert ast.dump(function.body[0]) == "Expr(value=Constant(value=Ellipsis))"
    assert not function.decorator_list
    for node in ast.walk(module):
        assert isinstance(node, (ast.Name, *ALLOWED)), ast.dump(node)
        assert not isinstance(node, ast.Name) or node.id in TYPES, node.id
    return [one.arg for one in function.args.args]


HOSTILE = st.sampled_from(
    [
        "a\nimport os", "): ...\nevil()", '"""', "'''", "\\", "#", "a: int = evil()", "\r",
        "\u2028", "\x0c", "\x00", "\u202e", "a'", 'a"', "{", "[", "x] | Literal[", "\ud800",
        "self", "None", "def", "lambda: 0", "1" * 5000, "é", "\uff41", "a",
    ]
)  # fmt: skip
WORDS = HOSTILE | st.text(max_size=12)
ANY_SCHEMA = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "null", "object", "array"]) | WORDS,
            "description": WORDS,
            "default": JSON | WORDS,
            "enum": st.lists(JSON | WORDS, max_size=4),
            "const": JSON | WORDS,
            "$ref": st.sampled_from(["#/properties/a", "#/", "#/$defs/x", "#"]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array"]) | st.lists(WORDS, max_size=3),
            "properties": st.dictionaries(WORDS, inner, max_size=4),
            "required": st.lists(WORDS, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, max_size=3),
            "allOf": st.lists(inner, max_size=3),
            "additionalProperties": inner | st.booleans(),
            "default": JSON | WORDS,
            "description": WORDS,
        },
    ),
    max_leaves=12,
)


@given(WORDS, ANY_SCHEMA, ANY_SCHEMA | JSON)
def test_nothing_that_a_server_lists_leaves_its_place(name: str, schema: object, output: object):
    listed = {"name": name, "inputSchema": schema, "outputSchema": output}
    names = read_as_python(python_signature(listed))
    assert len(set(names)) == len(names)
    assert len(names) == len(parameters(schema))  # type: ignore[arg-type]


@given(JSON, JSON, JSON)
def test_no_schema_is_an_error_as_python(name: object, schema: object, output: object):
    read_as_python(python_signature({"name": name, "inputSchema": schema, "outputSchema": output}))


def test_many_parameters_and_long_words_are_bounded():
    many = {f"p{n}": {"description": "x" * 5_000} for n in range(1_000)}
    made = python_signature({"name": "n" * 10_000, "inputSchema": {"properties": many}})
    assert len(made) < 50_000
    assert "**more: Any # 960 more\n" in made
    assert len(read_as_python(made)) == 40


REAL = Path(__file__).parents[2].parent / "shared" / "data" / "livemcp_tools.json"


@pytest.mark.skipif(not REAL.exists(), reason="the public collection of tools is not here")
def test_real_tools_cost_a_third_less_than_their_schemas():
    servers = json.loads(REAL.read_text())
    tools = [t for one in servers for s in one["tools"].values() for t in s["tools"]]
    assert len(tools) > 500
    schemas = signatures = 0
    for listed in tools:
        known = {key: value for key, value in listed.items() if value is not None}
        signature = python_signature(known)
        said = parameters(known["inputSchema"])
        assert len(read_as_python(signature)) == len(said), listed["name"]
        beside = {key: known.get(key) for key in ("name", "description")}
        schemas += len(json.dumps(known, ensure_ascii=False))
        signatures += len(json.dumps({**beside, "signature": signature}, ensure_ascii=False))
    assert signatures < schemas * 2 / 3
