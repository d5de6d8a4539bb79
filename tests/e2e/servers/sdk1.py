"""A server on the mcp SDK 1.x, which knows the handshake era only.

Usage: sdk1.py, by the Python of the peer `py-mcp1`
"""

import anyio
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel

server = FastMCP("sdk1")


class Consent(BaseModel):
    name: str


@server.tool()
async def echo(message: str) -> str:
    """Say it back."""
    return message


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the user for a name."""
    who = await ctx.elicit("Who are you?", Consent)
    return f"hello {who.data.name}" if who.action == "accept" else who.action


@server.tool()
async def slow(seconds: float) -> str:
    """Take that long."""
    await anyio.sleep(seconds)
    return f"slept {seconds}"


@server.tool()
async def progress(steps: int, ctx: Context) -> str:
    """Report every step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
        await anyio.sleep(0.01)
    return f"{steps} steps"


if __name__ == "__main__":
    server.run("stdio")
