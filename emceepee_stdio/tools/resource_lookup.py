"""Which server has a resource that is asked for by its URI alone.

A host reads a link that stood in an answer by its URI; whose it is, it does not know. Exposed
servers come first, as they are listed, also before they are up; then the others of the
configuration, which are asked. Those that a model added are reached by read_resource.
"""

import re
from collections.abc import Mapping, Sequence

import anyio
from msgspec import Raw

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.base import CarriesMeta
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.errors import ProxyError, ResourceNotFound
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin
from emceepee_stdio.state import Phase
from emceepee_stdio.tools.listing import QUICK_LIST_TIMEOUT_S, is_remembered

__all__ = ["fits_template", "read_by_uri"]

_SHOWN_URI_CHARS = 200  # enough to recognise it by
_EXPRESSION = re.compile(r"\{[^{}]*\}")


async def read_by_uri(
    runtime: Runtime, uri: str, *, within: float, call: CarriesMeta | None = None
) -> Raw:
    """What the one server that has it says; the error names the choice, or where to look."""
    having = _exposing(runtime, uri) or await _having(runtime, uri)
    if len(having) == 1:
        return await having[0].read_resource(uri, within=within, call=call)
    shown = uri[:_SHOWN_URI_CHARS]
    if having:
        names = ", ".join(sorted(backend.name for backend in having))
        raise ResourceNotFound(
            f"Several servers have a resource {shown!r}: {names}.",
            hint="Call read_resource and say which with `server`.",
        )
    raise ResourceNotFound(
        f"No configured server lists a resource {shown!r}.",
        hint="Call list_resources to find it, then read_resource with its server.",
    )


def _exposing(runtime: Runtime, uri: str) -> list[Backend]:
    """The exposed servers of which the client was listed it, or a tool that it is the page of."""
    lists = runtime.surface.lists
    items = (
        [item for item in lists.resources if item.own == uri]
        or [item for item in lists.tools.values() if item.page == uri]
        or [item for item in lists.templates if fits_template(item.own, uri)]
    )
    names = dict.fromkeys(item.server for item in items if runtime.surface.shows(item.server))
    return [runtime.servers.get(name) for name in names]


async def _having(runtime: Runtime, uri: str) -> list[Backend]:
    """Those that list it; else those with a template for it."""
    members = [m for m in runtime.servers.members.values() if m.origin is Origin.CONFIGURATION]
    asked = [
        m.backend
        for m in members
        if m.backend.phase is Phase.CONNECTED or is_remembered(m.backend, Kind.RESOURCES)
    ]
    listed: dict[str, bool] = {}
    templated: dict[str, bool] = {}

    async def ask(backend: Backend) -> None:
        resources = await _listed(backend, "resources")
        listed[backend.name] = any(item.get("uri") == uri for item in resources)
        templates = await _listed(backend, "resource_templates")
        templated[backend.name] = any(
            fits_template(item.get("uriTemplate"), uri) for item in templates
        )

    async with anyio.create_task_group() as tasks:
        for backend in asked:
            tasks.start_soon(ask, backend)
    plain = [backend for backend in asked if listed[backend.name]]
    return plain or [backend for backend in asked if templated[backend.name]]


async def _listed(backend: Backend, kind: str) -> Sequence[Mapping[str, object]]:
    if is_remembered(backend, Kind(kind)):
        return backend.lists.known(Kind(kind)) or ()
    try:
        return await backend.list_all(kind, within=QUICK_LIST_TIMEOUT_S)
    except ProxyError:
        return ()


def fits_template(template: object, uri: str) -> bool:
    """Whether a URI may be made from a template: literal parts as they are, anything between."""
    if not isinstance(template, str):
        return False
    literals = _EXPRESSION.split(template)
    if len(literals) == 1 or not uri.startswith(literals[0]) or not uri.endswith(literals[-1]):
        return False
    place = len(literals[0])
    for literal in literals[1:-1]:
        place = uri.find(literal, place)
        if place < 0:
            return False
        place += len(literal)
    return place <= len(uri) - len(literals[-1])
