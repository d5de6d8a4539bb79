"""The two eras of MCP: how each opens a connection and stamps a request.

Pure: what to send, and what an answer means. The handshake comes first, because some servers die
on, or never answer, a method that they do not know.
"""

from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import Raw

from emceepee_stdio import __version__
from emceepee_stdio.backends.interface import EXCERPT_BYTES, Era, Hello
from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.foreign_json import decoded, opened
from emceepee_stdio.json_values import mapping
from emceepee_stdio.versions import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HEADER_MISMATCH,
    LEGACY_VERSIONS,
    LOG_LEVEL,
    MISSING_CAPABILITY,
    MODERN_VERSION,
    PROTOCOL_VERSION,
    SERVER_INFO,
    UNSUPPORTED_VERSION,
)
from emceepee_stdio.wire.codec import METHOD_NOT_FOUND, RequestId, RpcError, to_json

_US = {"name": "emceepee", "version": __version__}
_CAPABILITIES: dict[str, object] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
_TEXT_CHARS = 256 << 10  # of instructions, which are no values that take more than their bytes
_HELLO_BYTES = 64 << 10  # of each thing that a server says of itself; a page, and an icon
_HANDSHAKE_CAPABILITIES = _CAPABILITIES | {"roots": {"listChanged": True}}
_ENVELOPE: dict[str, object] = {
    PROTOCOL_VERSION: MODERN_VERSION,
    CLIENT_INFO: _US,
    CLIENT_CAPABILITIES: _CAPABILITIES,
}


_NULL = Raw(b"null")
_NO_SERVER = "This is not an MCP server, or a broken one: check the command."


class _Fields(msgspec.Struct, rename="camel"):
    """What a server says of itself, in either era."""

    protocol_version: Raw = _NULL
    supported_versions: Raw = _NULL
    server_info: Raw = _NULL
    capabilities: Raw = _NULL
    instructions: Raw = _NULL
    meta: Raw = msgspec.field(name="_meta", default=_NULL)


def initialize_params() -> dict[str, object]:
    return {
        "protocolVersion": LEGACY_VERSIONS[0],
        "capabilities": _HANDSHAKE_CAPABILITIES,
        "clientInfo": _US,
    }


def stamp(
    era: Era,
    params: Mapping[str, object] | None,
    *,
    progress_token: RequestId | None,
    log_level: str | None = None,
) -> Mapping[str, object] | None:
    """The params of a request as they go out; None where the era allows to leave them out."""
    if era is Era.LEGACY and progress_token is None:
        return params or None
    meta: dict[str, object] = dict(_ENVELOPE) if era is Era.MODERN else {}
    if progress_token is not None:
        meta["progressToken"] = progress_token
    if era is Era.MODERN and log_level is not None:
        meta[LOG_LEVEL] = log_level
    params = params or {}
    return {**params, "_meta": {**mapping(params.get("_meta")), **meta}}


def read_handshake(result: Raw, *, server: str) -> Hello:
    """The answer to initialize; an error where we cannot go on from it."""
    fields = _fields(result, server=server, method="initialize")
    version = _value(fields.protocol_version)
    if version not in LEGACY_VERSIONS:
        raise CannotConnect(
            f"{server} answered initialize with protocol version {_shown(version)}; "
            f"known are {', '.join(LEGACY_VERSIONS)}.",
            hint="Update the server, or set era to modern if it speaks 2026-07-28.",
        )
    return Hello(
        era=Era.LEGACY,
        protocol_version=str(version),
        server_info=mapping(_value(fields.server_info)),
        capabilities=_capabilities(fields, server=server, method="initialize"),
        instructions=_text(fields.instructions),
    )


def read_discovery(result: Raw, *, server: str) -> Hello:
    """The answer to server/discover; an error when it offers no version that we speak."""
    fields = _fields(result, server=server, method="server/discover")
    versions = _value(fields.supported_versions)
    if not _lists_modern(versions):
        offered = _shown(versions)
        raise CannotConnect(
            f"{server} offers the protocol versions {offered}, not {MODERN_VERSION}.",
            hint="Set era to legacy for this server.",
        )
    return Hello(
        era=Era.MODERN,
        protocol_version=MODERN_VERSION,
        server_info=mapping(mapping(_value(fields.meta)).get(SERVER_INFO)),
        capabilities=_capabilities(fields, server=server, method="server/discover"),
        instructions=_text(fields.instructions),
    )


def wrong_era(server: str, chosen: Era, said: str) -> CannotConnect:
    """The error for a server that does not speak the era that its settings name."""
    speaks = "does not speak" if chosen is Era.MODERN else "speaks only"
    return CannotConnect(
        f"{server} {speaks} the modern era: {said}",
        hint=f"Remove era: {chosen} from this server's settings.",
    )


def refuses_handshake(error: RpcError) -> bool:
    """Whether this error to initialize means: I speak the modern era only."""
    known = error.code in (UNSUPPORTED_VERSION, METHOD_NOT_FOUND)
    return known or MODERN_VERSION in _supported(error)


def offers_modern(error: RpcError) -> bool:
    """Whether this error to server/discover names the very version that it refused."""
    return error.code == UNSUPPORTED_VERSION and MODERN_VERSION in _supported(error)


def refuses_as_modern(error: RpcError) -> bool:
    """Whether only a modern server answers server/discover so: a handshake is out of place then."""
    if error.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return True
    supported = _supported(error) if error.code == UNSUPPORTED_VERSION else []
    return bool(supported) and not any(version in LEGACY_VERSIONS for version in supported)


def _supported(error: RpcError) -> list[object]:
    """The versions that an error names, if any."""
    supported = mapping(_value(error.data or _NULL)).get("supported")
    return cast("list[object]", supported) if isinstance(supported, list) else []


def _lists_modern(versions: object) -> bool:
    return isinstance(versions, list) and MODERN_VERSION in versions


def _fields(result: Raw, *, server: str, method: str) -> _Fields:
    """One level of it: what is inside may be of any size, and is looked at field by field."""
    if (fields := opened(result, _Fields)) is not None:
        return fields
    shown = bytes(result)[:EXCERPT_BYTES].decode(errors="replace")
    raise CannotConnect(
        f"{server} answered {method} with something that is no object: {shown}", hint=_NO_SERVER
    )


def _value(raw: Raw) -> object:
    """What a field says; one that is too large to be kept says only how large it is."""
    if _is_large(raw):
        return {"truncated": True, "bytes": len(memoryview(raw))}
    return decoded(raw, object)


def _is_large(raw: Raw) -> bool:
    return len(memoryview(raw)) > _HELLO_BYTES


def _capabilities(fields: _Fields, *, server: str, method: str) -> dict[str, object]:
    capabilities = _value(fields.capabilities)
    if _is_large(fields.capabilities) or not isinstance(capabilities, dict):
        raise CannotConnect(
            f"{server} answered {method} without capabilities: {_shown(capabilities)}.",
            hint=_NO_SERVER,
        )
    return cast("dict[str, object]", capabilities)


def _text(raw: Raw) -> str | None:
    """A text, or as much of it as is kept."""
    said = decoded(raw, str)
    if said is None or len(said) <= _TEXT_CHARS:
        return said
    return f"{said[:_TEXT_CHARS]} … (cut from {len(said)} characters)"


def _shown(value: object) -> str:
    return to_json(value)[:EXCERPT_BYTES].decode(errors="replace")
