"""The tools of `sdk1` over HTTP, on the mcp SDK 1.x, which knows the handshake era only.

Usage: http_sdk1.py TRANSPORT PORT, by the Python of the peer `py-mcp1`; TRANSPORT is
streamable-http or sse
"""

import sys

from sdk1 import server

if __name__ == "__main__":
    server.settings.port = int(sys.argv[2])
    server.run(sys.argv[1])
