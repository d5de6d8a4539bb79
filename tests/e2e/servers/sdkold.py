"""A server on an old mcp SDK (1.6): an unknown first method deafens it, EOF does not end it.

Usage: sdkold.py, by the Python of the peer `py-old`
"""

from mcp.server.fastmcp import FastMCP

server = FastMCP("sdkold")


@server.tool()
def echo(message: str) -> str:
    """Say it back."""
    return message


if __name__ == "__main__":
    server.run("stdio")
