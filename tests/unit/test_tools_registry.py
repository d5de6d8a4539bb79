import json
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio import tools
from emceepee_stdio.config.settings import FixedValues, Timeouts
from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.tools import TABLE
from emceepee_stdio.tools.registry import Params, Tool, tools_of


def mistake(tool: str, arguments: object) -> str:
    with pytest.raises(InvalidArguments) as raised:
        TABLE[tool].decode(Raw(json.dumps(arguments).encode()))
    return raised.value.fact


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_task", {}, ["get_task", "'task_id'", "missing"]),
        ("get_task", {"task_id": 7}, ["task_id", "expected `str`", "got `int`"]),
        ("get_task", {"id": "x", "task_id": "x"}, ["no argument 'id'", "known are: task_id"]),
        ("get_task", {"a\nb": 1}, ["no argument", "known are: task_id"]),
        ("list_servers", {"x": 1}, ["'x'", "known are: name"]),
        ("set_timer", {"duration_ms": -1, "message": "x"}, ["duration_ms", ">= 1"]),
        ("set_timer", {"duration_ms": 1, "message": "x" * 501}, ["message", "<= 500"]),
        ("list_tasks", {"status": "done"}, ["status", "'done'"]),
        ("add_server", {"name": "p", "args": [7]}, ["args[0]", "expected `str`"]),
        ("add_server", {"name": "p", "restart": {"x": 1}}, ["restart", "unknown field `x`"]),
        ("add_server", {"name": "p", "restart": {"attempts": ""}}, ["restart.attempts", "`int`"]),
        ("get_task", [], ["Expected `object`", "got `array`"]),
        ("get_task", "text", ["Expected `object`", "got `str`"]),
    ],
)
def test_a_mistake_names_the_field_what_was_given_and_what_is_expected(
    tool: str, arguments: object, said: list[str]
) -> None:
    fact = mistake(tool, arguments)
    assert all(part in fact for part in said), fact


@pytest.mark.parametrize("arguments", [None, Raw(b"{}")])
def test_a_tool_without_arguments_needs_none(arguments: Raw | None) -> None:
    TABLE["list_servers"].decode(arguments)


@pytest.mark.parametrize("raw", [b"{", b"{'a': 1}", b"[" * 20_000 + b"]" * 20_000])
def test_what_is_no_json_at_all_is_no_bug(raw: bytes) -> None:
    with pytest.raises(InvalidArguments):
        TABLE["get_task"].decode(Raw(raw))


@pytest.mark.parametrize("tool", TABLE.values(), ids=lambda tool: tool.name)
def test_a_row_is_complete_and_its_schema_plain(tool: Tool) -> None:
    listed = tool.listed()
    text = json.dumps(listed)
    assert "$ref" not in text
    assert '"title"' not in text
    assert listed["description"]
    annotations: Any = listed["annotations"]
    reads = annotations.get("readOnlyHint", False)
    assert reads or "destructiveHint" in annotations
    assert tool.name in repr(tool)


def test_every_tool_of_the_package_is_in_the_table_under_a_name_of_its_own() -> None:
    modules = [f"{tools.__name__}.{module.name}" for module in iter_modules(tools.__path__)]
    for module in modules:
        import_module(module)
    assert len(TABLE) == sum(len(tools_of(module)) for module in modules)


def test_tools_that_reach_other_servers_say_so() -> None:
    assert {"add_server", "execute_tool"} <= {
        tool.name for tool in TABLE.values() if tool.annotations.get("openWorldHint")
    }


def test_a_host_that_asks_before_what_destroys_asks_before_a_question_is_answered() -> None:
    assert TABLE["respond_to_elicitation"].listed()["annotations"] == {
        "destructiveHint": True,
        "openWorldHint": False,
    }


class Some(Params):
    """Two arguments."""

    a: int
    b: str = ""


class Recorded:
    """A tool that keeps what it is given."""

    def __init__(self, *, forgiving: bool) -> None:
        self.given: list[Params] = []
        self.extra: Mapping[str, Raw] = {}
        self.tool = Tool(name="t", params=Some, run=self._run, description="", forgiving=forgiving)

    def _run(
        self, _runtime: object, params: Params, _call: Call, extra: Mapping[str, Raw] | None = None
    ) -> Reply:
        self.given.append(params)
        self.extra = extra or {}
        return Reply.text("ran")

    def call(self, arguments: bytes | None) -> dict[str, bytes]:
        """The arguments that were put aside."""
        runtime: Any = None
        call = Call(client=CallingClient(ceiling=1.0))
        self.extra = {}
        result = self.tool.call(runtime, None if arguments is None else Raw(arguments), call)
        assert isinstance(result, Reply)
        return {name: bytes(value) for name, value in self.extra.items()}


@pytest.mark.parametrize("forgiving", [True, False])
def test_what_a_tool_knows_it_is_given(forgiving: bool) -> None:  # noqa: FBT001 - a parameter of the test
    recorded = Recorded(forgiving=forgiving)
    assert recorded.call(b'{"a":1,"b":"x"}') == {}
    assert recorded.given == [Some(a=1, b="x")]


def test_a_forgiving_tool_is_given_what_it_does_not_know_byte_by_byte() -> None:
    recorded = Recorded(forgiving=True)
    assert recorded.call(b'{"c": {"d" : 1.50},"a":1,"e":null}') == {
        "c": b'{"d" : 1.50}',
        "e": b"null",
    }
    assert recorded.given == [Some(a=1)]


def test_any_other_tool_refuses_what_it_does_not_know() -> None:
    recorded = Recorded(forgiving=False)
    with pytest.raises(InvalidArguments, match="no argument 'c'"):
        recorded.call(b'{"a":1,"c":2}')
    assert recorded.given == []


@pytest.mark.parametrize("forgiving", [True, False])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (None, "'a' is missing"),
        (b"{}", "'a' is missing"),
        (b'{"a":"x"}', "a: expected `int`"),
        (b"[1]", "Expected `object`"),
        (b"{", "must be a JSON object"),
        (b"[" * 20_000 + b"]" * 20_000, "t: "),
    ],
    ids=["none", "empty", "another type", "a list", "half", "too deep"],
)
def test_forgiving_or_not_a_mistake_in_what_is_known_is_told(
    forgiving: bool,  # noqa: FBT001 - a parameter of the test
    arguments: bytes | None,
    said: str,
) -> None:
    with pytest.raises(InvalidArguments) as raised:
        Recorded(forgiving=forgiving).call(arguments)
    assert said in raised.value.fact


def test_beside_what_is_unknown_a_mistake_in_what_is_known_is_told() -> None:
    with pytest.raises(InvalidArguments, match="a: expected `int`"):
        Recorded(forgiving=True).call(b'{"c":1,"a":"x"}')


@pytest.mark.parametrize("forgiving", [True, False])
def test_only_a_forgiving_schema_is_open(forgiving: bool) -> None:  # noqa: FBT001 - a parameter of the test
    schema: Any = Recorded(forgiving=forgiving).tool.listed()["inputSchema"]
    assert schema.get("additionalProperties", True) is forgiving


def test_the_schemas_say_how_long_each_tool_waits_by_itself() -> None:
    def waits(tool: str) -> dict[str, Any]:
        schema: Any = TABLE[tool].listed()["inputSchema"]
        return schema["properties"]["timeout_ms"]

    assert waits("execute_tool")["default"] == Timeouts().call_ms
    assert waits("await_activity")["default"] == FixedValues().await_s * 1000
    assert "as long as this client waits" in waits("get_task_result")["description"]
