"""Has a Python SDK of either major version ask its person, and reports what it was to show.

`plan` as in `talk.py`, with `cases`: for each the question of the server and the person's answer.
"""

import json
from typing import Any

import anyio
import mcp
from talk import Answer, Listener, plan, report

_is_v1 = hasattr(mcp, "stdio_client") and not hasattr(mcp, "Client")


def wire(model: Any) -> Answer:
    return model.model_dump(mode="json", by_alias=True, exclude_unset=True)


async def main() -> None:
    wanted, listener = plan(), Listener()
    facts: Answer = {"shown": [], "results": []}
    answers = iter([case["answer"] for case in wanted["cases"]])

    async def elicit(_context: object, params: Any) -> Any:
        facts["shown"].append(wire(params))
        if _is_v1:
            return mcp.types.ElicitResult(**next(answers))
        from mcp_types import ElicitResult  # noqa: PLC0415 - only there

        return ElicitResult(**next(answers))

    async def run(call_tool: Any) -> None:
        for case in wanted["cases"]:
            args = {"question": json.dumps(case["question"])}
            call = {"server": "configured", "tool": "ask_this", "args": args}
            facts["results"].append(wire(await call_tool("execute_tool", call)))

    command = mcp.StdioServerParameters(
        command=wanted["command"][0],
        args=wanted["command"][1:],
        env=wanted["env"],
        cwd=wanted["cwd"],
    )
    if _is_v1:
        async with (
            mcp.stdio_client(command) as (read, write),
            mcp.ClientSession(read, write, elicitation_callback=elicit) as session,
        ):
            await session.initialize()
            await run(session.call_tool)
    else:
        async with mcp.Client(command, mode=wanted["mode"], elicitation_callback=elicit) as client:
            await run(client.call_tool)
    facts["complaints"] = listener.received
    report(facts)


anyio.run(main)
