"""Tools on the mcp SDK 2.x that ask in the way of one era only, whatever the client speaks.

Usage: sdk2_ask.py
"""

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import InputRequiredResult
from pydantic import BaseModel

server = MCPServer("sdk2_ask")
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}


class Consent(BaseModel):
    name: str


@server.tool()
async def push(ctx: Context) -> str:
    """Ask by request, as handshake servers do."""
    who = await ctx.elicit("Who are you?", Consent)
    return f"hello {who.data.name}" if who.action == "accept" else who.action


@server.tool()
async def in_rounds() -> InputRequiredResult:
    """Ask inside the answer, as modern servers do; for ever."""
    return InputRequiredResult.model_validate({"inputRequests": {"who": FORM}, "requestState": "x"})


if __name__ == "__main__":
    server.run("stdio")
