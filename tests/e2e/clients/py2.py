"""Drive the proxy with `Client` of the mcp SDK 2.x; `mode` is auto, legacy or a modern version."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from talk import Answer, Listener, plan, report, talk


class Sdk2:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def tools(self) -> list[Answer]:
        listed = await self._client.list_tools()
        return [wire(tool) for tool in listed.tools]

    async def resources(self) -> list[Answer]:
        return [wire(resource) for resource in (await self._client.list_resources()).resources]

    async def read(self, uri: str) -> list[Answer]:
        return [wire(content) for content in (await self._client.read_resource(uri)).contents]

    async def call(
        self, name: str, arguments: Answer, on_progress: Callable[..., Awaitable[None]]
    ) -> Answer:
        return wire(await self._client.call_tool(name, arguments, progress_callback=on_progress))


def wire(model: Any) -> Answer:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def target(wanted: Answer) -> Any:
    """Over HTTP where the plan has a URL, else stdio."""
    if "url" in wanted:
        http = httpx2.AsyncClient(headers=wanted["headers"], timeout=60.0)
        return streamable_http_client(wanted["url"], http_client=http)
    return StdioServerParameters(
        command=wanted["command"][0],
        args=wanted["command"][1:],
        env=wanted["env"],
        cwd=wanted["cwd"],
    )


async def main() -> None:
    wanted, listener = plan(), Listener()
    strange: list[str] = []

    async def on_message(message: object) -> None:
        if isinstance(message, Exception):
            strange.append(repr(message))

    async with Client(target(wanted), mode=wanted["mode"], message_handler=on_message) as client:
        facts = await talk(Sdk2(client), wanted["server"])
        facts["version"] = client.protocol_version
        facts["server_info"] = wire(client.server_info) if client.server_info else None
        facts["instructions"] = client.instructions
        try:
            await client.read_resource("emceepee://nothing")
        except MCPError as error:
            facts["not_found"] = [error.error.code, error.error.message]
    facts["complaints"] = listener.received + strange
    report(facts)


anyio.run(main)
