"""The versions of MCP that are spoken, and the names that the modern one uses in `_meta`.

Only constants: this is loaded before anything else.
"""

__all__ = [
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "LEGACY_VERSIONS",
    "LOG_LEVEL",
    "MODERN_VERSION",
    "PROTOCOL_VERSION",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "UNSUPPORTED_VERSION",
]

LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN_VERSION = "2026-07-28"
UNSUPPORTED_VERSION = -32022

_PREFIX = "io.modelcontextprotocol/"
PROTOCOL_VERSION = f"{_PREFIX}protocolVersion"
CLIENT_CAPABILITIES = f"{_PREFIX}clientCapabilities"
CLIENT_INFO = f"{_PREFIX}clientInfo"
SERVER_INFO = f"{_PREFIX}serverInfo"
SUBSCRIPTION_ID = f"{_PREFIX}subscriptionId"
LOG_LEVEL = f"{_PREFIX}logLevel"
