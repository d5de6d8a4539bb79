"""The supported versions of MCP, and the `_meta` keys of the modern one.

Only constants: this is loaded before anything else.
"""

LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
MODERN_VERSION = "2026-07-28"
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

PREFIX = "io.modelcontextprotocol/"
PROTOCOL_VERSION = f"{PREFIX}protocolVersion"
CLIENT_CAPABILITIES = f"{PREFIX}clientCapabilities"
CLIENT_INFO = f"{PREFIX}clientInfo"
SERVER_INFO = f"{PREFIX}serverInfo"
SUBSCRIPTION_ID = f"{PREFIX}subscriptionId"
LOG_LEVEL = f"{PREFIX}logLevel"

# Of ours: between a session's process and the HTTP front, the request for which something is asked.
HTTP_REQUEST = "emceepee/httpRequest"
NO_READER = -32099  # the error with which the front refuses a question: no client reads the stream
