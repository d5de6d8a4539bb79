"""A server over HTTP that has nothing of its own: all it answers, it gets through our tools.

Usage: python -m tests.conformance.bridge PORT BACKEND_URL ERA

Behind it runs a real proxy, which speaks to the server at BACKEND_URL in that era. Each request
of the suite becomes a call of the tool that does the same: `tools/call` becomes `execute_tool`,
`resources/read` becomes `read_resource`, and so on. A question that a call raised goes to the
suite's client in the way of its era, and its answer back by `respond_to_elicitation` or
`respond_to_sampling`. The transport is the SDK's, so what the suite says of it is not said of us.
"""

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client, types
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server

from tests.e2e.clients.raw import PROXY, ROOT, own_first, surroundings

SERVER = "everything"
OUR_KEYS = ("events_since_last_response", "pending_client_action", "proxy_task")
MODERN = "2026-07-28"

Json = dict[str, Any]
Context = ServerRequestContext["Bridge"]


class Bridge:
    """The tools of one proxy, as the requests of the protocol that they stand for."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def use(self, tool: str, /, progress: Any = None, **arguments: Any) -> Json:
        """What a tool answers, as the JSON that came."""
        result = await self._session.call_tool(tool, arguments, progress_callback=progress)
        answer = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**answer, "content": own_first(answer)}

    async def body(self, tool: str, /, **arguments: Any) -> Json:
        """The one JSON object that a tool of the proxy itself answers with."""
        return json.loads(_good(await self.use(tool, **arguments))["content"][0]["text"])

    async def listed(self, tool: str, key: str, **arguments: Any) -> list[Json]:
        """All pages of a list, without the name of the server that each item carries."""
        items: list[Json] = []
        cursor: Json = {}
        while True:
            page = await self.body(tool, server=SERVER, **arguments, **cursor)
            items += [{k: v for k, v in item.items() if k != "server"} for item in page[key]]
            if "next_cursor" not in page:
                return items
            cursor = {"cursor": page["next_cursor"]}

    async def run(self, context: Context, params: Any, tool: str, /, **arguments: Any) -> Json:
        """A call to its end: what it asks is asked of the client, as often as it asks."""
        if params.request_state:
            task = params.request_state
            await self._answer_all(params.input_responses or {})
            answer = await self.use("get_task_result", task_id=task)
        else:
            progress = context.session.report_progress if context.meta else None
            answer = await self.use(tool, progress=progress, server=SERVER, **arguments)
        while (task := _task_of(answer)) is not None:
            questions = await self._questions()
            if context.protocol_version == MODERN and questions:
                return {"inputRequests": questions, "requestState": task, "asked": True}
            for request_id, question in questions.items():
                await self._answer(request_id, await _ask(context, question))
            answer = await self.use("get_task_result", task_id=task)
        return _without_context(answer)

    async def _questions(self) -> dict[str, Json]:
        asked = (await self.body("get_elicitations"))["elicitations"]
        found = {
            e["request_id"]: {"method": "elicitation/create", "params": _form(e)} for e in asked
        }
        for sampling in (await self.body("get_sampling_requests"))["sampling_requests"]:
            params = sampling["request"]
            found[sampling["request_id"]] = {"method": "sampling/createMessage", "params": params}
        return found

    async def _answer_all(self, responses: dict[str, Any]) -> None:
        for request_id, response in responses.items():
            await self._answer(
                request_id, response.model_dump(mode="json", by_alias=True, exclude_none=True)
            )

    async def _answer(self, request_id: str, response: Json) -> None:
        if "action" in response:
            tool = "respond_to_elicitation"
            answered = await self.use(tool, request_id=request_id, **response)
            if answered.get("isError"):  # the suite answers some forms with what they do not offer
                await self.body(tool, request_id=request_id, action="cancel")
        else:
            given = {"content": response["content"], "model": response["model"]}
            await self.body("respond_to_sampling", request_id=request_id, **given)


def _form(asked: Json) -> Json:
    return {"mode": "form", "message": asked["message"], "requestedSchema": asked["schema"]}


async def _ask(context: Context, question: Json) -> Json:
    """Ask the suite's client, which answers at once."""
    if question["method"] == "elicitation/create":
        form = question["params"]
        answer = await context.session.elicit_form(
            form["message"], form["requestedSchema"], related_request_id=context.request_id
        )
    else:
        wanted = types.CreateMessageRequestParams.model_validate(question["params"])
        answer = await context.session.create_message(
            messages=wanted.messages,
            max_tokens=wanted.max_tokens,
            related_request_id=context.request_id,
        )
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _good(answer: Json) -> Json:
    """An error of the proxy becomes the protocol's, by the code in its brackets."""
    if answer.get("isError"):
        text = answer["content"][0]["text"]
        missing = "[resource_not_found]" in text or "[prompt_not_found]" in text
        raise MCPError(code=types.INVALID_PARAMS if missing else types.INTERNAL_ERROR, message=text)
    return answer


def _context_of(block: Json) -> Json:
    if block.get("type") != "text" or not block["text"].startswith("{"):
        return {}
    try:
        said = json.loads(block["text"])
    except ValueError:
        return {}
    return said if isinstance(said, dict) and said.keys() & set(OUR_KEYS) else {}


def _task_of(answer: Json) -> str | None:
    """The task that a call has become, or that still works."""
    for block in answer["content"]:
        if task := _context_of(block).get("proxy_task"):
            return task["task_id"]
    return None


def _without_context(answer: Json) -> Json:
    return {**answer, "content": [b for b in answer["content"] if not _context_of(b)]}


# The requests of the suite


async def list_tools(context: Context, _params: object) -> types.ListToolsResult:
    tools = await context.lifespan_context.listed("list_tools", "tools", detail="full")
    return types.ListToolsResult.model_validate({"tools": tools})


async def call_tool(context: Context, params: types.CallToolRequestParams) -> Any:
    bridge = context.lifespan_context
    answer = await bridge.run(
        context, params, "execute_tool", tool=params.name, args=params.arguments or {}
    )
    if "asked" in answer:
        return types.InputRequiredResult.model_validate(answer)
    await _tell_logs(context, bridge)
    return types.CallToolResult.model_validate(answer)


async def _tell_logs(context: Context, bridge: Bridge) -> None:
    """What the server logged is read by a tool; the suite waits for it as notifications."""
    if context.protocol_version == MODERN:
        return
    lines = (await bridge.body("get_logs", server=SERVER, sources=["protocol"]))["logs"]
    for line in lines:
        await context.session.send_log_message(
            line["level"], line["text"], related_request_id=context.request_id
        )


async def list_resources(context: Context, _params: object) -> types.ListResourcesResult:
    found = await context.lifespan_context.listed("list_resources", "resources")
    return types.ListResourcesResult.model_validate({"resources": found})


async def list_templates(context: Context, _params: object) -> types.ListResourceTemplatesResult:
    found = await context.lifespan_context.listed("list_resource_templates", "resource_templates")
    return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": found})


async def read_resource(
    context: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    answer = _good(
        await context.lifespan_context.use("read_resource", server=SERVER, uri=str(params.uri))
    )
    contents = [_contents(block) for block in _without_context(answer)["content"]]
    return types.ReadResourceResult.model_validate({"contents": contents})


def _contents(block: Json) -> Json:
    """A resource is embedded, or text with what is known of it beside it."""
    if block["type"] == "resource":
        return block["resource"]
    return {**block["_meta"]["emceepee/resource"], "text": block["text"]}


async def subscribe(context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    await context.lifespan_context.body("subscribe_resource", server=SERVER, uri=str(params.uri))
    return types.EmptyResult()


async def unsubscribe(
    context: Context, params: types.UnsubscribeRequestParams
) -> types.EmptyResult:
    await context.lifespan_context.body("unsubscribe_resource", server=SERVER, uri=str(params.uri))
    return types.EmptyResult()


async def list_prompts(context: Context, _params: object) -> types.ListPromptsResult:
    found = await context.lifespan_context.listed("list_prompts", "prompts")
    return types.ListPromptsResult.model_validate({"prompts": found})


async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> Any:
    answer = await context.lifespan_context.run(
        context, params, "get_prompt", name=params.name, arguments=params.arguments or {}
    )
    if "asked" in answer:
        return types.InputRequiredResult.model_validate(answer)
    head, *blocks = _good(answer)["content"]
    roles = json.loads(head["text"])["roles"]
    messages = [{"role": role, "content": block} for role, block in zip(roles, blocks, strict=True)]
    return types.GetPromptResult.model_validate({"messages": messages})


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    ref = params.ref
    of = {"prompt": ref.name} if ref.type == "ref/prompt" else {"template": ref.uri}
    argument = {"argument": params.argument.name, "value": params.argument.value}
    found = await context.lifespan_context.body(
        "complete_argument", server=SERVER, **of, **argument
    )
    return types.CompleteResult.model_validate(found)


async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    await context.lifespan_context.body("set_log_level", server=SERVER, level=params.level)
    return types.EmptyResult()


def app(bridge: Bridge) -> Any:
    @asynccontextmanager
    async def lifespan(_server: Server[Bridge]) -> AsyncIterator[Bridge]:
        yield bridge

    handlers: dict[str, Callable[..., Awaitable[Any]]] = {
        "on_list_tools": list_tools,
        "on_call_tool": call_tool,
        "on_list_resources": list_resources,
        "on_list_resource_templates": list_templates,
        "on_read_resource": read_resource,
        "on_subscribe_resource": subscribe,
        "on_unsubscribe_resource": unsubscribe,
        "on_list_prompts": list_prompts,
        "on_get_prompt": get_prompt,
        "on_completion": complete,
        "on_set_logging_level": set_level,
    }
    return Server("bridge", version="1", lifespan=lifespan, **handlers).streamable_http_app()


async def serve(port: int, backend: str, era: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        command = StdioServerParameters(
            command=PROXY[0],
            args=list(PROXY[1:]),
            env=surroundings(home, {SERVER: {"url": backend, "era": era}}),
            cwd=ROOT,
        )
        async with (
            stdio_client(command, errlog=(home / "stderr.txt").open("w")) as (read, write),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            config = uvicorn.Config(app(Bridge(session)), port=port, log_level="error")
            await uvicorn.Server(config).serve()


if __name__ == "__main__":
    anyio.run(serve, int(sys.argv[1]), *sys.argv[2:])
