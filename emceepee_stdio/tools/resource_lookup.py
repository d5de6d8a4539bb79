"""Which server has a resource that is asked for by its URI alone.

A host reads a link that stood in an answer by its URI; whose it is, it does not know. A server that
lists the URI comes before those with a template for it, and exposed servers, as they are listed,
also before they are up, come before the others of the configuration. As with a tool, whoever is
asked first must not get what another was meant for: servers that have not listed theirs are waited
for, a moment, and then the read goes to nobody. Those that a model added are reached by
read_resource.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

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

_CONNECTING_TIMEOUT_S = 1.0  # as long as a list waits for a server that is still connecting
_SHOWN_URI_CHARS = 200  # enough to recognise it by
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_SAY_WHICH = "Call read_resource and say which with `server`."


async def read_by_uri(
    runtime: Runtime, uri: str, *, within: float, call: CarriesMeta | None = None
) -> Raw:
    """What the one server that has it says; the error names the choice, or where to look."""
    backend = await _Lookup(runtime, uri).server()
    return await backend.read_resource(uri, within=within, call=call)


class _Lookup:
    """One URI, and the servers that have not said yet whether it is theirs."""

    def __init__(self, runtime: Runtime, uri: str) -> None:
        self._runtime = runtime
        self._uri = uri
        self._shown = repr(uri[:_SHOWN_URI_CHARS])
        self._missing: set[str] = set()

    async def server(self) -> Backend:
        members = self._runtime.servers.members.values()
        configured = [m.backend for m in members if m.origin is Origin.CONFIGURATION]
        exposed = [one for one in configured if self._runtime.surface.exposes_all(one.name)]
        having = (
            await self._having(exposed, Kind.RESOURCES, self._is_listed)
            or self._showing_pages(configured)
            or await self._having(configured, Kind.RESOURCES, self._is_listed)
            or await self._having(exposed, Kind.TEMPLATES, self._fits)
            or await self._having(configured, Kind.TEMPLATES, self._fits)
        )
        if len(having) == 1 and not self._missing:
            return having[0]
        raise self._unknown(having)

    def _is_listed(self, item: Mapping[str, object]) -> bool:
        return item.get("uri") == self._uri

    def _fits(self, item: Mapping[str, object]) -> bool:
        return fits_template(item.get("uriTemplate"), self._uri)

    def _showing_pages(self, among: Iterable[Backend]) -> list[Backend]:
        """Those with an exposed tool that it is the page of."""
        tools, shows = self._runtime.surface.lists.tools.values(), self._runtime.surface.shows
        names = {item.server for item in tools if item.page == self._uri and shows(item.server)}
        return [backend for backend in among if backend.name in names]

    async def _having(
        self, among: Iterable[Backend], kind: Kind, is_it: Callable[[Mapping[str, object]], bool]
    ) -> list[Backend]:
        asked = [backend for backend in among if backend.name not in self._missing]
        async with anyio.create_task_group() as tasks:
            for backend in asked:
                tasks.start_soon(self._list, backend, kind)
        return [one for one in asked if any(map(is_it, self._known(one, kind) or ()))]

    async def _list(self, backend: Backend, kind: Kind) -> None:
        """Have it listed as it is now; what stays unknown may still be found there."""
        if is_remembered(backend, kind) or backend.phase is Phase.FAILED:
            return
        is_up = backend.phase is Phase.CONNECTED
        if not is_up and self._known(backend, kind) is not None:
            return
        limit = QUICK_LIST_TIMEOUT_S if is_up else _CONNECTING_TIMEOUT_S
        with anyio.move_on_after(limit) as wait:
            try:
                await backend.list_all(kind, within=limit * 2)  # the wait ends before
            except ProxyError:  # a bad server costs itself
                return
        if wait.cancelled_caught and self._known(backend, kind) is None:
            self._missing.add(backend.name)

    def _known(self, backend: Backend, kind: Kind) -> Sequence[Mapping[str, object]] | None:
        known = backend.lists.known(kind)
        return self._runtime.surface.greeted(backend.name, kind) if known is None else known

    def _unknown(self, having: Sequence[Backend]) -> ProxyError:
        names = ", ".join(sorted(backend.name for backend in having))
        if len(having) > 1:
            fact = f"Several servers have a resource {self._shown}: {names}."
            return ResourceNotFound(fact, hint=_SAY_WHICH)
        who = names or "No configured server"
        fact = f"{who} lists a resource {self._shown}"
        if self._missing:
            have = "have not listed theirs" if len(self._missing) > 1 else "has not listed its own"
            missing = f"{', '.join(sorted(self._missing))} {have} yet"
            return ResourceNotFound(f"{fact}, but {missing}.", hint=_SAY_WHICH)
        hint = "Call list_resources to find it, then read_resource with its server."
        return ResourceNotFound(f"{fact}.", hint=hint)


def fits_template(template: object, uri: str) -> bool:
    """Whether a URI may be made from a template: literal parts as they are, anything between.

    A template that leaves the scheme open would fit whatever others have: it fits nothing.
    """
    if not isinstance(template, str):
        return False
    literals = _EXPRESSION.split(template)
    if len(literals) == 1 or not uri.startswith(literals[0]) or not uri.endswith(literals[-1]):
        return False
    if not _SCHEME.match(literals[0]):
        return False
    place = len(literals[0])
    for literal in literals[1:-1]:
        place = uri.find(literal, place)
        if place < 0:
            return False
        place += len(literal)
    return place <= len(uri) - len(literals[-1])
