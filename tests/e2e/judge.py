"""The SDK's own types as judge of every message that we send."""

from collections.abc import Iterable
from typing import Any

from mcp_types import methods

_CONVERSATION = {"jsonrpc", "id", "method", "params", "result", "error"}


def judge_client(messages: Iterable[dict[str, Any]], version: str) -> list[str]:
    """Check what a client sent to a server of this version; the methods that were seen."""
    seen: list[str] = []
    for message in messages:
        assert message["jsonrpc"] == "2.0"
        assert set(message) <= _CONVERSATION
        assert message.get("params", {}) is not None
        method = message.get("method")
        if method is None:
            assert ("result" in message) != ("error" in message)
            continue
        seen.append(method)
        check = (
            methods.validate_client_request
            if "id" in message
            else methods.validate_client_notification
        )
        check(method, version, message.get("params"))
    return seen
