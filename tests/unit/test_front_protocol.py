import json
from typing import Any

import pytest
from mcp_types import methods

from emceepee_stdio.front.protocol import Protocol, Refused, elicitation_modes
from emceepee_stdio.greeting import Greeting
from emceepee_stdio.tools import TABLE
from emceepee_stdio.versions import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LEGACY_VERSIONS,
    MODERN_VERSION,
    PROTOCOL_VERSION,
)

ENVELOPE = {
    PROTOCOL_VERSION: MODERN_VERSION,
    CLIENT_CAPABILITIES: {},
    CLIENT_INFO: {"name": "c", "version": "1"},
}
STATIC = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
CAPABILITIES = {what: {"listChanged": True} for what in ("tools", "prompts", "resources")}


def asked(method: str, **params: Any) -> Any:
    answer = Protocol().answer(method, params)
    assert isinstance(answer, bytes), answer
    return json.loads(answer)


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
def test_a_known_version_is_echoed_and_the_answer_is_valid_in_it(version: str) -> None:
    result = asked("initialize", protocolVersion=version)
    assert result["protocolVersion"] == version
    methods.validate_server_result("initialize", version, result)


@pytest.mark.parametrize("version", ["2099-01-01", MODERN_VERSION, "", None, 7, ["2025-11-25"]])
def test_an_unknown_version_gets_our_newest_of_the_handshake(version: object) -> None:
    assert asked("initialize", protocolVersion=version)["protocolVersion"] == LEGACY_VERSIONS[0]


def test_the_modern_era_has_no_handshake() -> None:
    params = {"protocolVersion": "2025-11-25", "_meta": ENVELOPE}
    protocol = Protocol()
    answer = protocol.answer("initialize", params)
    assert isinstance(answer, Refused)
    assert answer.code == -32601
    assert protocol.version is None


@pytest.mark.parametrize("method", STATIC)
@pytest.mark.parametrize("version", [*LEGACY_VERSIONS, MODERN_VERSION])
def test_every_static_answer_is_valid_in_every_version(method: str, version: str) -> None:
    modern = version == MODERN_VERSION
    result = asked(method, **({"_meta": ENVELOPE} if modern else {}))
    methods.validate_server_result(method, version, result)
    assert ("resultType" in result) is modern


def test_discover_is_valid_and_tells_only_the_modern_version() -> None:
    result = asked("server/discover", _meta=ENVELOPE)
    methods.validate_server_result("server/discover", MODERN_VERSION, result)
    assert result["supportedVersions"] == [MODERN_VERSION]
    assert result["capabilities"] == CAPABILITIES


def test_each_session_has_a_word_of_its_own_that_the_instructions_tell_in_both_eras() -> None:
    protocol, other = Protocol(), Protocol()
    assert protocol.word != other.word
    for method, params in (("initialize", {}), ("server/discover", {"_meta": ENVELOPE})):
        answer = protocol.answer(method, params)
        assert isinstance(answer, bytes)
        assert f'"word": "{protocol.word}"' in json.loads(answer)["instructions"]
    assert asked("server/discover", _meta=ENVELOPE)["ttlMs"] == 0, "nobody keeps an old word"


def test_the_instructions_and_the_tools_stay_small() -> None:
    assert len(asked("initialize")["instructions"].encode()) < 2_000
    assert len(json.dumps(asked("tools/list"), separators=(",", ":")).encode()) < 22_000


def test_the_prebuilt_tools_are_those_of_the_table_and_every_schema_is_closed() -> None:
    listed = asked("tools/list")["tools"]
    assert listed == json.loads(json.dumps([tool.listed() for tool in TABLE.values()]))
    for tool in listed:
        assert tool["inputSchema"]["type"] == "object"
        closed = tool["inputSchema"].get("additionalProperties") is False
        assert closed is (tool["name"] != "execute_tool")
        for name, schema in tool["inputSchema"].get("properties", {}).items():
            assert schema.get("description"), (tool["name"], name)


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
@pytest.mark.parametrize("modern", [False, True])
def test_what_needs_the_session_is_left_to_it(method: str, *, modern: bool) -> None:
    assert Protocol().answer(method, {"_meta": ENVELOPE} if modern else {}) is None


def test_a_stream_of_changes_exists_in_the_modern_era_only() -> None:
    wanted = {"notifications": {}}
    assert Protocol().answer("subscriptions/listen", {**wanted, "_meta": ENVELOPE}) is None
    refused = Protocol().answer("subscriptions/listen", wanted)
    assert isinstance(refused, Refused)
    assert refused.code == -32601


def test_a_stream_tells_of_the_lists_that_were_asked_for_and_of_nothing_else() -> None:
    protocol = Protocol()
    wanted = {"toolsListChanged": True, "promptsListChanged": 1, "resourceSubscriptions": ["x:y"]}
    note = json.loads(protocol.listen("l", {"notifications": wanted}))
    assert note["notifications"] == {"toolsListChanged": True}
    assert protocol.streams == {"l": {"tools"}}


@pytest.mark.parametrize("modern", [False, True])
def test_what_is_exposed_stands_in_the_lists_behind_ours(*, modern: bool) -> None:
    exposed = {"tools": b'{"name":"s__x"}', "prompts": b'{"name":"s__p"},{"name":"s__q"}'}
    protocol = Protocol(Greeting(exposed=exposed))
    for method, key, count in (("tools/list", "tools", 1), ("prompts/list", "prompts", 2)):
        answer = protocol.answer(method, {"_meta": ENVELOPE} if modern else {})
        assert isinstance(answer, bytes)
        result = json.loads(answer)
        assert [item["name"][:3] for item in result[key][-count:]] == ["s__"] * count
        assert result.get("ttlMs", 0) == 0
    assert asked("prompts/list")["prompts"] == []


@pytest.mark.parametrize("wanted", [{}, {"notifications": None}, {"notifications": ["tools"]}])
def test_a_stream_of_nothing_is_refused(wanted: dict[str, Any]) -> None:
    refused = Protocol().answer("subscriptions/listen", {**wanted, "_meta": ENVELOPE})
    assert isinstance(refused, Refused)
    assert refused.code == -32602


@pytest.mark.parametrize(
    ("method", "meta", "code"),
    [
        ("ping", ENVELOPE, -32601),
        ("completion/complete", ENVELOPE, -32601),
        ("completion/complete", {}, -32601),
        ("server/discover", {}, -32602),
        ("tools/list", {**ENVELOPE, PROTOCOL_VERSION: "2027-01-01"}, -32022),
        ("tools/call", {**ENVELOPE, PROTOCOL_VERSION: 7}, -32022),
        ("tools/list", {**ENVELOPE, PROTOCOL_VERSION: None}, -32022),
        ("tools/list", {PROTOCOL_VERSION: MODERN_VERSION}, -32602),
        ("tools/call", {**ENVELOPE, CLIENT_CAPABILITIES: None}, -32602),
    ],
)
def test_refusals_have_their_codes(method: str, meta: dict[str, Any], code: int) -> None:
    answer = Protocol().answer(method, {"_meta": meta} if meta else {})
    assert isinstance(answer, Refused)
    assert answer.code == code
    if code == -32022:
        assert answer.data == {
            "supported": [MODERN_VERSION],
            "requested": {None: "null", 7: "7"}.get(meta[PROTOCOL_VERSION], "2027-01-01"),
        }


@pytest.mark.parametrize("method", ["tools/list", "resources/list", "resources/templates/list"])
@pytest.mark.parametrize("meta", [{}, ENVELOPE])
def test_a_cursor_that_we_never_gave_is_refused(method: str, meta: dict[str, Any]) -> None:
    refused = Protocol().answer(method, {"cursor": "2", "_meta": meta})
    assert isinstance(refused, Refused)
    assert refused.code == -32602
    assert isinstance(Protocol().answer(method, {"cursor": None, "_meta": meta}), bytes)


def test_what_was_asked_for_is_not_repeated_whole() -> None:
    refused = Protocol().answer("m" * 5_000, {})
    assert isinstance(refused, Refused)
    assert len(refused.message) < 300


@pytest.mark.parametrize("params", [{"_meta": None}, {"_meta": []}, {"_meta": "x"}, {"more": 1}])
def test_an_odd_envelope_is_as_good_as_none(params: dict[str, Any]) -> None:
    assert isinstance(Protocol().answer("tools/list", params), bytes)


def test_whoever_speaks_is_known_by_name() -> None:
    protocol = Protocol()
    declared = {"x": {}, "elicitation": {}}
    info = {"name": "codex", "version": "0.166"}
    protocol.answer("initialize", {"clientInfo": info, "capabilities": declared})
    assert (protocol.client_name, protocol.fills_forms) == ("codex", True)
    assert protocol.client_version == "0.166"
    assert (protocol.offers_roots, protocol.modern_roots) == (False, False)
    protocol.answer("tools/list", {"_meta": {**ENVELOPE, CLIENT_INFO: {"name": "gemini"}}})
    assert (protocol.client_name, protocol.client_version) == ("gemini", "")
    protocol.answer("initialize", {"clientInfo": 7, "capabilities": None})
    assert (protocol.client_name, protocol.fills_forms) == ("gemini", False)
    assert "2025-11-25" in repr(protocol)


@pytest.mark.parametrize(
    ("declared", "fills"),
    [
        ({}, False),
        ({"x": {}}, False),
        ({"elicitation": {}}, True),
        ({"elicitation": {"form": {}}}, True),
        ({"elicitation": {"form": {}, "url": {}}}, True),
        ({"elicitation": {"url": {}}}, False),
        ({"elicitation": None}, False),
        ({"elicitation": True}, False),
    ],
    ids=str,
)
def test_a_client_fills_in_forms_where_it_says_so(declared: dict[str, Any], *, fills: bool) -> None:
    assert ("form" in elicitation_modes(declared)) is fills
    protocol = Protocol()
    assert protocol.fills_forms is False
    protocol.answer("initialize", {"capabilities": declared})
    assert protocol.fills_forms is fills
