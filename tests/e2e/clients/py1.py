"""Drive the proxy with `ClientSession` over `stdio_client` of the mcp SDK 1.x."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamablehttp_client
from talk import Answer, Listener, plan, report, talk


class Sdk1:
    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def tools(self) -> list[Answer]:
        return [wire(tool) for tool in (await self._session.list_tools()).tools]

    async def resources(self) -> list[Answer]:
        return [wire(resource) for resource in (await self._session.list_resources()).resources]

    async def read(self, uri: str) -> list[Answer]:
        return [wire(content) for content in (await self._session.read_resource(uri)).contents]

    async def call(
        self, name: str, arguments: Answer, on_progress: Callable[..., Awaitable[None]]
    ) -> Answer:
        return wire(await self._session.call_tool(name, arguments, progress_callback=on_progress))


def wire(model: Any) -> Answer:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


@asynccontextmanager
async def transport(wanted: Answer) -> AsyncGenerator[tuple[Any, Any]]:
    """Over HTTP where the plan has a URL, else stdio."""
    if "url" in wanted:
        async with streamablehttp_client(wanted["url"], wanted["headers"]) as (read, write, _):
            yield read, write
        return
    command = StdioServerParameters(
        command=wanted["command"][0],
        args=wanted["command"][1:],
        env=wanted["env"],
        cwd=wanted["cwd"],
    )
    async with stdio_client(command) as streams:
        yield streams


async def main() -> None:
    wanted, listener = plan(), Listener()
    strange: list[str] = []

    async def on_message(message: object) -> None:
        if isinstance(message, Exception):
            strange.append(repr(message))

    async with (
        transport(wanted) as (read, write),
        ClientSession(read, write, message_handler=on_message) as session,
    ):
        hello = await session.initialize()
        await session.send_ping()
        facts = await talk(Sdk1(session), wanted["server"])
        facts["version"] = hello.protocolVersion
        facts["server_info"] = wire(hello.serverInfo)
        facts["instructions"] = hello.instructions
        try:
            await session.read_resource("emceepee://nothing")
        except McpError as error:
            facts["not_found"] = [error.error.code, error.error.message]
    facts["complaints"] = listener.received + strange
    report(facts)


anyio.run(main)
