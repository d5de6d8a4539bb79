"""Which server a call means that names none: the only one that has the tool.

It is not known to be the only one before every configured server has listed its tools; whoever is
asked first must not get what another was meant for. So they are waited for, a moment, and then the
model has to say which it means. Names that begin with `SERVER__` are those of that server, whatever
another one lists: so its tools are called where it is exposed.
"""

import anyio

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.errors import InvalidArguments, ProxyError, ServerNotFound
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin
from emceepee_stdio.session.suggestions import SHOWN_NAME_CHARS
from emceepee_stdio.state import Phase
from emceepee_stdio.tools.listing import is_remembered

__all__ = ["server_of_tool"]

_LISTING_S = 1.0  # as long as a list waits for a server that is still connecting
_SAY_WHICH = "Say which is meant with `server`."


async def server_of_tool(
    runtime: Runtime, tool: str, *, greeted: str | None = None, hint: str = _SAY_WHICH
) -> Backend:
    """The one; the error says between whom to choose, and `hint` how.

    `greeted` is a server that had the tool when it was listed last, and need not be up.
    """
    failed = await _list_tools(runtime, tool, greeted)
    having = _having(runtime, tool, greeted)
    names = ", ".join(sorted(backend.name for backend in having))
    if len(having) > 1:
        raise InvalidArguments(
            f"Several servers have a tool {tool[:SHOWN_NAME_CHARS]!r}: {names}.", hint=hint
        )
    if not having and (meant := runtime.servers.claiming(tool)):
        raise InvalidArguments(
            f"A name that begins with {meant[0]}__ means a tool of {meant[0]}, which does not list "
            f"{tool[:SHOWN_NAME_CHARS]!r}.",
            hint=f"{hint} The tool's own name goes without {meant[0]}__.",
        )
    missing = _unlisted(runtime) - {greeted}
    if not having or _is_configured(runtime, having[0]):
        missing -= failed  # a bad server costs itself, unless one of a model would stand in for it
    if missing:
        runtime.session.starting -= missing
        listed = f"{names} has a tool {tool[:SHOWN_NAME_CHARS]!r}, but " if having else ""
        have = "have not listed their" if len(missing) > 1 else "has not listed its"
        raise InvalidArguments(f"{listed}{', '.join(sorted(missing))} {have} tools yet.", hint=hint)
    if having:
        return having[0]
    known = ", ".join(runtime.servers.marked_names().values()) or "none"
    raise ServerNotFound(
        f"No server has a tool {tool[:SHOWN_NAME_CHARS]!r}; the servers are: {known}.",
        hint="Call list_servers, or add_server to add the one that has it.",
    )


async def _list_tools(runtime: Runtime, tool: str, greeted: str | None) -> set[str]:
    """Have the tools listed that have to be known; the servers that cannot list theirs."""
    failed = {name for name, entry in runtime.servers.broken.items() if not entry.switched_off}

    async def ask(backend: Backend) -> None:
        try:
            await backend.list_all("tools", within=_LISTING_S * 2)  # the wait ends before
        except ProxyError:
            failed.add(backend.name)

    asked = [one for one in runtime.servers if not is_remembered(one, Kind.TOOLS)]
    if _having(runtime, tool, greeted):
        unlisted = _unlisted(runtime) - {greeted}
        asked = [backend for backend in asked if backend.name in unlisted]
    with anyio.move_on_after(_LISTING_S):
        async with anyio.create_task_group() as tasks:
            for backend in asked:
                if backend.phase is Phase.FAILED:  # it is not started again for a list
                    failed.add(backend.name)
                else:
                    tasks.start_soon(ask, backend)
    return failed


def _having(runtime: Runtime, tool: str, greeted: str | None) -> list[Backend]:
    """Those that list it; one in which it is off only where no other has it."""
    found = [
        backend
        for backend in runtime.servers
        if (backend.lists.tool(tool) is not None or backend.name == greeted)
        and not runtime.servers.claiming(tool, but=backend.name)
    ]
    return [one for one in found if one.rules is None or not one.rules.hides(tool)] or found[:1]


def _unlisted(runtime: Runtime) -> set[str]:
    """The configured servers of whose tools nothing is known."""
    broken = {name for name, entry in runtime.servers.broken.items() if not entry.switched_off}
    return broken | {
        backend.name
        for backend in runtime.servers
        if backend.lists.tools is None and _is_configured(runtime, backend)
    }


def _is_configured(runtime: Runtime, backend: Backend) -> bool:
    member = runtime.servers.members.get(backend.name)
    return member is not None and member.origin is Origin.CONFIGURATION
