"""What a client is shown of a server: a line, or all that is known of it."""

from collections.abc import Mapping

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.base import Hello, SessionIds, Snapshot
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.session.catalogue import TOO_LARGE
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin
from emceepee_stdio.tools.listing import shown_names
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.environment import BEHIND_HTTP

__all__ = ["cut_text", "describe", "described", "short_line", "shown_counts"]

_SHORT = (
    "name",
    "phase",
    "counts",
    "from_catalogue",
    "not_remembered",
    "sign_in",
    "last_error",
    "next_retry_ms",
    "health",
)
_SHOWN_EXPOSED = 50  # names of tools: a page
_SHORT_ERROR_CHARS = 300  # the fact; what a server printed before it is longer
_SHOWN_ID_CHARS = 8  # enough to find it in a server's log
_MAX_SERVER_TEXT_CHARS = 4_000  # instructions are a page; a hostile server has no more room


def short_line(facts: Mapping[str, object]) -> dict[str, object]:
    """A server in short: whether it can be used, what it has, and what is wrong with it."""
    line = {key: facts[key] for key in _SHORT if key in facts}
    error = line.get("last_error")
    if isinstance(error, str) and len(error) > _SHORT_ERROR_CHARS:
        line["last_error"] = f"{error[:_SHORT_ERROR_CHARS]} … (whole with name)"
    return line


async def described(runtime: Runtime, backend: Backend) -> dict[str, object]:
    """As `describe`, without what a person has to see first."""
    snapshot = backend.snapshot()
    facts = describe(runtime, snapshot)
    if "instructions" in facts and runtime.pins.enforced:
        listed = runtime.servers.listed(backend.name, ())
        said = None if listed is None else await runtime.pins.instructions(listed)
        facts["instructions"] = cut_text(said or "")
    exposed = runtime.surface.lists.listed_names().items()
    if names := [name for (server, _), name in exposed if server == backend.name]:
        more = [f"and {len(names) - _SHOWN_EXPOSED} more: list_tools"]
        facts["exposed_as"] = names[:_SHOWN_EXPOSED] + more * (len(names) > _SHOWN_EXPOSED)
    return facts


def describe(runtime: Runtime, snapshot: Snapshot) -> dict[str, object]:
    """A server as the client sees it."""
    clock, now = runtime.clock, runtime.clock.now()
    shown: dict[str, object] = {
        "name": snapshot.name,
        "phase": snapshot.phase.value,
        "transport": snapshot.transport,
        "target": runtime.session.secrets.mask(snapshot.target),
    }
    member = runtime.servers.members.get(snapshot.name)
    if member is not None and member.origin is Origin.CLIENT:
        shown["admitted"] = member.admission.grounds
    if snapshot.pid is not None:
        shown["pid"] = snapshot.pid
    if snapshot.up_since is not None:
        shown["connected_at"] = clock.iso(snapshot.up_since)
        shown["uptime_ms"] = round((now - snapshot.up_since) * 1000)
    if snapshot.hello is not None:
        shown |= _introduction(snapshot.hello)
    if snapshot.session is not None:
        shown["session"] = _session(snapshot.session, runtime.environment.environ)
    shown |= _known(None if member is None else member.backend, snapshot)
    if member is not None and runtime.servers.is_too_large(member.admission):
        shown["not_remembered"] = TOO_LARGE
    shown["restarts"] = max(snapshot.starts - 1, 0)
    shown |= runtime.sign_ins.facts(snapshot.name, snapshot.error)
    if snapshot.last_error is not None:
        shown["last_error"] = runtime.session.secrets.mask(snapshot.last_error)
    if snapshot.next_retry_at is not None:
        shown["next_retry_ms"] = max(round((snapshot.next_retry_at - now) * 1000), 0)
    if snapshot.degraded:
        shown["health"] = "degraded"
    return shown


def _session(ids: SessionIds, environ: Mapping[str, str]) -> dict[str, object]:
    """Our name for a connection beside the server's, of which no client over HTTP needs all."""
    theirs = ids.upstream_id
    if BEHIND_HTTP not in environ:
        return {"proxy_id": ids.proxy_id, "upstream_id": theirs}
    cut = None if theirs is None else f"{theirs[: min(_SHOWN_ID_CHARS, len(theirs) // 2)]}…"
    return {"http_id": environ[BEHIND_HTTP], "proxy_id": ids.proxy_id, "upstream_id": cut}


def _known(backend: Backend | None, snapshot: Snapshot) -> dict[str, object]:
    """How much it has, and from when that is known where it does not run."""
    known: dict[str, object] = {}
    if snapshot.counts:
        known["counts"] = shown_counts(backend, snapshot)
    if snapshot.remembered_at is not None:
        known["from_catalogue"] = snapshot.remembered_at
    return known


def _introduction(hello: Hello) -> dict[str, object]:
    """What a server says of itself, no more of it than fits beside the others."""
    shown: dict[str, object] = {
        "era": hello.era.value,
        "protocol_version": hello.protocol_version,
        "server_info": _bounded(hello.server_info),
        "capabilities": _bounded(hello.capabilities),
    }
    if hello.instructions:
        shown["instructions"] = cut_text(hello.instructions)
    return shown


def _bounded(said: Mapping[str, object]) -> object:
    text = to_json(said).decode()
    return said if len(text) <= _MAX_SERVER_TEXT_CHARS else cut_text(text)


def cut_text(text: str) -> str:
    if len(text) <= _MAX_SERVER_TEXT_CHARS:
        return text
    return f"{text[:_MAX_SERVER_TEXT_CHARS]} … (cut from {len(text)} characters)"


def shown_counts(backend: Backend | None, snapshot: Snapshot) -> dict[str, int]:
    """How much there is of each kind, without the tools that a rule hides."""
    counts = dict(snapshot.counts)
    if backend is not None and backend.rules is not None and Kind.TOOLS in counts:
        tools = backend.lists.known(Kind.TOOLS) or ()
        counts[Kind.TOOLS] = len(shown_names(backend, (str(tool.get("name")) for tool in tools)))
    return counts
