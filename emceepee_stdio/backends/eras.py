"""How the two eras of MCP open a connection and stamp a request.

Pure: what to send, and what an answer means. The handshake comes first, because some servers die
on, or never answer, a method that they do not know.
"""

from collections.abc import Mapping
from typing import cast

import msgspec
from msgspec import Raw

from emceepee_stdio import __version__
from emceepee_stdio.backends.base import EXCERPT_BYTES, Era, Hello
from emceepee_stdio.errors import CannotConnect
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

__all__ = [
    "initialize_params",
    "offers_modern",
    "read_discovery",
    "read_handshake",
    "refuses_as_modern",
    "refuses_handshake",
    "stamp",
]

_US = {"name": "emceepee", "version": __version__}
_CAPABILITIES: dict[str, object] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
_ENVELOPE: dict[str, object] = {
    PROTOCOL_VERSION: MODERN_VERSION,
    CLIENT_INFO: _US,
    CLIENT_CAPABILITIES: _CAPABILITIES,
}


def initialize_params() -> dict[str, object]:
    return {
        "protocolVersion": LEGACY_VERSIONS[0],
        "capabilities": _CAPABILITIES,
        "clientInfo": _US,
    }


def stamp(
    era: Era,
    params: Mapping[str, object] | None,
    *,
    progress_token: RequestId | None,
    log_level: str | None = None,
) -> bytes | None:
    """The params of a request as they go out; None where the era allows to leave them out."""
    if era is Era.LEGACY and progress_token is None:
        return to_json(params) if params else None
    meta: dict[str, object] = dict(_ENVELOPE) if era is Era.MODERN else {}
    if progress_token is not None:
        meta["progressToken"] = progress_token
    if era is Era.MODERN and log_level is not None:
        meta[LOG_LEVEL] = log_level
    params = params or {}
    return to_json({**params, "_meta": {**mapping(params.get("_meta")), **meta}})


def read_handshake(result: Raw, *, server: str) -> Hello:
    """The answer to initialize; an error where we cannot go on from it."""
    fields = _object(result, server=server, method="initialize")
    version = fields.get("protocolVersion")
    if version not in LEGACY_VERSIONS:
        raise CannotConnect(
            f"{server} answered initialize with protocol version {_shown(version)}; "
            f"known are {', '.join(LEGACY_VERSIONS)}.",
            hint="Update the server, or set era to modern if it speaks 2026-07-28.",
        )
    return Hello(
        era=Era.LEGACY,
        protocol_version=str(version),
        server_info=mapping(fields.get("serverInfo")),
        capabilities=_capabilities(fields, server=server, method="initialize"),
        instructions=_text(fields.get("instructions")),
    )


def read_discovery(result: Raw, *, server: str) -> Hello:
    """The answer to server/discover; an error when it offers no version that we speak."""
    fields = _object(result, server=server, method="server/discover")
    if not _lists_modern(fields.get("supportedVersions")):
        offered = _shown(fields.get("supportedVersions"))
        raise CannotConnect(
            f"{server} offers the protocol versions {offered}, not {MODERN_VERSION}.",
            hint="Set era to legacy for this server.",
        )
    return Hello(
        era=Era.MODERN,
        protocol_version=MODERN_VERSION,
        server_info=mapping(mapping(fields.get("_meta")).get(SERVER_INFO)),
        capabilities=_capabilities(fields, server=server, method="server/discover"),
        instructions=_text(fields.get("instructions")),
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
    try:
        data: object = msgspec.json.decode(error.data or b"null")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return []
    supported = mapping(data).get("supported")
    return cast("list[object]", supported) if isinstance(supported, list) else []


def _lists_modern(versions: object) -> bool:
    return isinstance(versions, list) and MODERN_VERSION in versions


def _object(result: Raw, *, server: str, method: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(result, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        shown = bytes(result)[:EXCERPT_BYTES].decode(errors="replace")
        raise CannotConnect(
            f"{server} answered {method} with something that is no object: {shown}",
            hint="This is not an MCP server, or a broken one: check the command.",
        ) from None


def _capabilities(fields: Mapping[str, object], *, server: str, method: str) -> dict[str, object]:
    capabilities = fields.get("capabilities")
    if not isinstance(capabilities, dict):
        raise CannotConnect(
            f"{server} answered {method} without capabilities: {_shown(capabilities)}.",
            hint="This is not an MCP server, or a broken one: check the command.",
        )
    return cast("dict[str, object]", capabilities)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _shown(value: object) -> str:
    return to_json(value)[:EXCERPT_BYTES].decode(errors="replace")
