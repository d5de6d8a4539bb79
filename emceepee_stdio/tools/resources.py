"""read_resource, so far for the proxy's own resources."""

from typing import Annotated

from msgspec import Meta

from emceepee_stdio.session.calls import Call
from emceepee_stdio.session.own import OWN, read_own
from emceepee_stdio.session.reply import Reply, text_block
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.registry import Params

__all__ = ["ReadResource", "read_resource"]


class ReadResource(Params):
    """Which resource of whom."""

    server: Annotated[str, Meta(description=f"The server; {OWN} for the proxy's own.")]
    uri: Annotated[str, Meta(description="The resource's URI.")]


async def read_resource(runtime: Runtime, p: ReadResource, call: Call) -> Reply:
    if p.server == OWN:
        return Reply(content=text_block(read_own(runtime, p.uri)))
    link = runtime.servers.get(p.server)
    runtime.session.begin(
        call, server=link.name, tool="read_resource", within=_patience(runtime, call)
    )
    limit = runtime.settings.timeouts.task_ttl_ms / 1000
    result = await link.read_resource(p.uri, within=limit, call=call)
    return Reply.contents(result, server=link.name)


def _patience(runtime: Runtime, call: Call) -> float:
    return min(runtime.settings.timeouts.call_ms / 1000, call.ceiling)
