import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import methods
from msgspec import Raw

from emceepee_stdio import __version__
from emceepee_stdio.backends.eras import (
    initialize_params,
    read_discovery,
    read_handshake,
    refuses_handshake,
    stamp,
)
from emceepee_stdio.backends.interface import Era, Hello
from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.versions import LEGACY_VERSIONS, MODERN_VERSION, UNSUPPORTED_VERSION
from emceepee_stdio.wire.codec import RpcError, encode_request, to_json

PREFIX = "io.modelcontextprotocol/"
ENVELOPE = {f"{PREFIX}protocolVersion", f"{PREFIX}clientInfo", f"{PREFIX}clientCapabilities"}
CLIENT_REQUESTS: dict[str, dict[str, Any]] = {
    "tools/list": {},
    "tools/call": {"name": "t", "arguments": {"a": 1}},
    "resources/list": {"cursor": "c"},
    "resources/templates/list": {},
    "resources/read": {"uri": "x://1"},
    "prompts/list": {},
    "prompts/get": {"name": "p", "arguments": {"a": "b"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "p"},
        "argument": {"name": "a", "value": "b"},
    },
    "ping": {},
    "logging/setLevel": {"level": "info"},
    "resources/subscribe": {"uri": "x://1"},
    "resources/unsubscribe": {"uri": "x://1"},
    "server/discover": {},
    "subscriptions/listen": {"notifications": {"toolsListChanged": True}},
}


def stamped(era: Era, params: Any, token: Any = None) -> Any:
    sent = stamp(era, params, progress_token=token)
    return None if sent is None else json.loads(to_json(sent))


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


# What goes out


def test_the_handshake_offers_the_newest_legacy_version_and_what_we_can_do():
    params = initialize_params()
    assert params == {
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {"tools": {}},
            "roots": {"listChanged": True},
        },
        "clientInfo": {"name": "emceepee", "version": __version__},
    }


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
def test_the_handshake_is_valid_for_every_legacy_version(version: str):
    methods.validate_client_request("initialize", version, initialize_params())


def test_a_legacy_request_without_params_has_none():
    assert stamp(Era.LEGACY, None, progress_token=None) is None
    assert stamp(Era.LEGACY, {}, progress_token=None) is None


def test_a_legacy_request_goes_out_as_it_was_given():
    given = {"name": "t", "arguments": Raw(b'{"a" : 1.50}'), "_meta": {"x": 1}}
    assert stamp(Era.LEGACY, given, progress_token=None) is given
    assert encode_request(7, "tools/call", given) == (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call",'
        b'"params":{"name":"t","arguments":{"a" : 1.50},"_meta":{"x":1}}}\n'
    )


@pytest.mark.parametrize("token", [0, 1, "", "t"])
def test_every_progress_token_is_one_even_zero(token: Any):
    assert stamped(Era.LEGACY, None, token) == {"_meta": {"progressToken": token}}
    assert stamped(Era.MODERN, {"a": 1}, token)["_meta"]["progressToken"] == token


def test_a_modern_request_always_carries_the_envelope():
    for params in (None, {}, {"a": 1}, {"_meta": None}):
        got = stamped(Era.MODERN, params)
        assert set(got["_meta"]) == ENVELOPE
        assert got["_meta"][f"{PREFIX}protocolVersion"] == MODERN_VERSION
        assert got["_meta"][f"{PREFIX}clientInfo"] == initialize_params()["clientInfo"]
        declared = got["_meta"][f"{PREFIX}clientCapabilities"]
        assert declared | {"roots": {"listChanged": True}} == initialize_params()["capabilities"]
        assert declared["roots"] == {}, "this era has no word for a change"


@pytest.mark.parametrize("era", list(Era))
def test_what_is_given_as_meta_is_kept_but_the_stamp_wins(era: Era):
    given = {"_meta": {"x/y": [1], "progressToken": "old", f"{PREFIX}protocolVersion": "old"}}
    got = stamped(era, given, 5)["_meta"]
    assert (got["x/y"], got["progressToken"]) == ([1], 5)
    expected = MODERN_VERSION if era is Era.MODERN else "old"
    assert got[f"{PREFIX}protocolVersion"] == expected


def test_without_a_token_of_ours_the_one_that_was_given_stays():
    got = stamped(Era.MODERN, {"_meta": {"progressToken": "theirs"}})
    assert got["_meta"]["progressToken"] == "theirs"


@pytest.mark.parametrize("token", [None, 0, 3])
def test_only_a_modern_request_asks_for_a_log_level(token: int | None):
    def meta(era: Era) -> dict[str, Any]:
        sent = stamp(era, {"a": 1}, progress_token=token, log_level="info")
        assert sent is not None
        return json.loads(to_json(sent)).get("_meta", {})

    expected = {f"{PREFIX}logLevel", *ENVELOPE} | (
        {"progressToken"} if token is not None else set()
    )
    assert set(meta(Era.MODERN)) == expected
    assert meta(Era.MODERN)[f"{PREFIX}logLevel"] == "info"
    assert f"{PREFIX}logLevel" not in meta(Era.LEGACY)
    assert f"{PREFIX}logLevel" not in stamped(Era.MODERN, {"a": 1}, token)["_meta"]


def test_stamping_changes_neither_what_was_given_nor_the_next_stamp():
    given: dict[str, Any] = {"a": 1, "_meta": {"b": 2}}
    stamped(Era.MODERN, given, 7)
    assert given == {"a": 1, "_meta": {"b": 2}}
    assert "progressToken" not in stamped(Era.MODERN, None)["_meta"]


@pytest.mark.parametrize("token", [None, 0, 3])
@pytest.mark.parametrize("method", CLIENT_REQUESTS)
def test_a_stamped_request_is_valid_in_every_version_that_knows_it(method: str, token: int | None):
    params = CLIENT_REQUESTS[method]
    known = [
        version
        for version in (*LEGACY_VERSIONS, MODERN_VERSION)
        if (method, version) in methods.CLIENT_REQUESTS
    ]
    assert known
    for version in known:
        era = Era.MODERN if version == MODERN_VERSION else Era.LEGACY
        methods.validate_client_request(method, version, stamped(era, params, token))


def test_every_request_of_the_modern_era_is_covered():
    modern = {name for name, version in methods.CLIENT_REQUESTS if version == MODERN_VERSION}
    assert modern <= set(CLIENT_REQUESTS)


# The handshake


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
def test_every_legacy_version_is_accepted(version: str):
    result = {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "s", "version": "1"},
        "instructions": "Be kind.",
    }
    methods.validate_server_result("initialize", version, result)
    assert read_handshake(raw(result), server="s") == Hello(
        era=Era.LEGACY,
        protocol_version=version,
        server_info={"name": "s", "version": "1"},
        capabilities={"tools": {"listChanged": True}},
        instructions="Be kind.",
    )


@pytest.mark.parametrize("odd", [None, 5, [], ""])
def test_what_is_not_needed_may_be_odd(odd: Any):
    result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "serverInfo": odd,
        "instructions": odd or None,
    }
    hello = read_handshake(raw(result), server="s")
    assert (hello.server_info, hello.instructions) == ({}, None)


@pytest.mark.parametrize(
    "version", [None, "", "2026-07-28", "2099-01-01", "1.0", 20251125, [], {}, ["2025-11-25"]]
)
def test_any_other_version_cannot_be_gone_on_with(version: Any):
    with pytest.raises(CannotConnect) as caught:
        read_handshake(raw({"protocolVersion": version, "capabilities": {}}), server="weather")
    error = caught.value
    assert error.code == "server_failed"
    assert error.fact.startswith("weather answered initialize with protocol version ")
    assert json.dumps(version, separators=(",", ":")) in error.fact
    assert "2024-11-05" in error.fact
    assert "era" in error.next_step


@pytest.mark.parametrize("shape", [b"null", b"[]", b'"x"', b"5", b"true", b'{"a":', b"[" * 100_000])
def test_an_answer_that_is_no_object_is_no_server(shape: bytes):
    for read, method in ((read_handshake, "initialize"), (read_discovery, "server/discover")):
        with pytest.raises(CannotConnect) as caught:
            read(Raw(shape), server="weather")
        assert caught.value.fact.startswith(f"weather answered {method} with something that is no")
        assert len(caught.value.fact) < 400
        assert "check the command" in caught.value.next_step


@pytest.mark.parametrize("capabilities", [None, [], "x", 1, True])
def test_without_capabilities_it_is_no_server(capabilities: Any):
    legacy = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
    modern = {"supportedVersions": [MODERN_VERSION], "capabilities": capabilities}
    with pytest.raises(CannotConnect, match="answered initialize without capabilities"):
        read_handshake(raw(legacy), server="s")
    with pytest.raises(CannotConnect, match="answered server/discover without capabilities"):
        read_discovery(raw(modern), server="s")
    with pytest.raises(CannotConnect, match="without capabilities: null"):
        read_handshake(raw({"protocolVersion": "2025-11-25"}), server="s")


# Discovery


def test_a_discovery_is_read_with_its_server_info_from_meta():
    result = {
        "resultType": "complete",
        "supportedVersions": ["2025-11-25", MODERN_VERSION],
        "capabilities": {"tools": {}},
        "instructions": "Hi.",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {f"{PREFIX}serverInfo": {"name": "s", "version": "1"}},
    }
    methods.validate_server_result("server/discover", MODERN_VERSION, result)
    assert read_discovery(raw(result), server="s") == Hello(
        era=Era.MODERN,
        protocol_version=MODERN_VERSION,
        server_info={"name": "s", "version": "1"},
        capabilities={"tools": {}},
        instructions="Hi.",
    )


def test_a_discovery_needs_no_meta():
    result = {"supportedVersions": [MODERN_VERSION], "capabilities": {}}
    assert read_discovery(raw(result), server="s").server_info == {}
    assert read_discovery(raw({**result, "_meta": 5}), server="s").server_info == {}


@pytest.mark.parametrize("versions", [None, [], ["2025-11-25"], "2026-07-28", {}, [5], [None]])
def test_a_discovery_without_our_version_says_what_is_offered(versions: Any):
    with pytest.raises(CannotConnect) as caught:
        read_discovery(raw({"supportedVersions": versions, "capabilities": {}}), server="weather")
    error = caught.value
    assert error.fact.startswith("weather offers the protocol versions ")
    assert MODERN_VERSION in error.fact
    assert error.next_step == "Set era to legacy for this server."


# The refusal


def test_the_code_of_an_unsupported_version_refuses_the_handshake():
    assert refuses_handshake(RpcError(UNSUPPORTED_VERSION, "no"))
    assert refuses_handshake(RpcError(UNSUPPORTED_VERSION, "no", raw({"supported": ["x"]})))


def test_a_list_that_names_our_version_refuses_it_too():
    assert refuses_handshake(RpcError(-32602, "no", raw({"supported": [MODERN_VERSION]})))


@pytest.mark.parametrize(
    "data",
    [
        *(b"null", b"5", b"[]", b"{}", b'{"supported":null}', b'{"supported":["2025-11-25"]}'),
        *(b'{"supported":"2026-07-28"}', b'{"x":1e999}', b'"\\ud800"', b"[" * 100_000, b"{"),
    ],
)
def test_any_other_error_is_just_an_error_whatever_its_data(data: bytes):
    assert not refuses_handshake(RpcError(-32602, "Invalid request parameters", Raw(data)))


@pytest.mark.parametrize("code", [-32602, -32600, 0, -32000])
def test_without_data_only_the_code_counts(code: int):
    assert not refuses_handshake(RpcError(code, "no"))


def test_a_server_that_has_never_heard_of_initialize_is_tried_as_modern():
    assert refuses_handshake(RpcError(-32601, "Method not found"))


@given(data=st.binary(max_size=60))
@example(data=b'"\x80"')
def test_no_data_makes_it_raise(data: bytes):
    refuses_handshake(RpcError(1, "m", Raw(data)))
    for read in (read_handshake, read_discovery):
        with pytest.raises(CannotConnect):
            read(Raw(data), server="s")
