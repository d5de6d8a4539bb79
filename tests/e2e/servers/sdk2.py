"""A server on the mcp SDK 2.x, in both eras; `ask` elicits in the way of the client's era.

Usage: sdk2.py
"""

from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve
from pydantic import BaseModel

server = MCPServer("sdk2")


class Consent(BaseModel):
    name: str


def _who() -> Elicit[Consent]:
    return Elicit("Who are you?", Consent)


@server.tool()
async def echo(message: str) -> str:
    """Say it back."""
    return message


@server.tool()
async def ask(who: Annotated[ElicitationResult[Consent], Resolve(_who)]) -> str:
    """Ask the user for a name."""
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
