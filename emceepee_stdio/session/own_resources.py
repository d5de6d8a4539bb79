"""The proxy's own resources: its diagrams, how it is doing, and the last requests."""

import json

from emceepee_stdio import __version__
from emceepee_stdio.backends.base import Snapshot
from emceepee_stdio.errors import ResourceNotFound
from emceepee_stdio.session.large_results import (
    CLUSTER_CHARS,
    RESULTS,
    page_chars,
    whole_characters,
)
from emceepee_stdio.session.own_uris import OWN
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_text import attributed_text
from emceepee_stdio.state.diagrams import diagrams
from emceepee_stdio.trace.exports import as_json, without_payloads
from emceepee_stdio.wire.codec import to_json

__all__ = ["OWN", "read_own"]

_SHOWN_URI_CHARS = 200  # every address of ours is shorter; what was asked for may be anything
_DIAGRAMS = "emceepee://diagrams"
_STATUS = "emceepee://status"
_TRACE = "emceepee://trace"


def read_own(runtime: Runtime, uri: str) -> str:
    """The text of one of them."""
    if uri == _DIAGRAMS:
        return json.dumps(
            {"diagrams": [_diagram(d.name, d.description, d.mermaid) for d in diagrams()]}
        )
    if uri == _STATUS:
        return json.dumps(_status(runtime))
    if uri == _TRACE:
        return to_json(_trace(runtime)).decode()
    if uri.startswith(RESULTS):
        return attributed_text(_stored(runtime, uri))
    raise ResourceNotFound(
        f"The proxy has no resource {uri[:_SHOWN_URI_CHARS]!r}.",
        hint=f"It has {_DIAGRAMS}, {_STATUS} and {_TRACE}.",
    )


def _stored(runtime: Runtime, uri: str) -> str:
    """A stored result, as much of it as one line holds; what is left out is said."""
    limit = page_chars(runtime.settings)
    page = runtime.session.results.page(
        uri.removeprefix(RESULTS), offset=0, limit=limit, now=runtime.clock.now()
    )
    if page.next_offset is None:
        return page.text
    text = whole_characters(page.text, max(limit - CLUSTER_CHARS, 1))
    return (
        f"{text}\n… {page.total - len(text)} characters left out: "
        f'read_resource(server="{OWN}", uri="{uri}", offset={len(text)}) has them …'
    )


def _diagram(name: str, description: str, mermaid: str) -> dict[str, str]:
    return {"name": name, "description": description, "mermaid": mermaid}


def _server(snapshot: Snapshot) -> dict[str, object]:
    shown: dict[str, object] = {
        "name": snapshot.name,
        "phase": snapshot.phase.value,
        "restarts": max(snapshot.starts - 1, 0),
    }
    if snapshot.remembered_at is not None:
        shown["from_catalogue"] = snapshot.remembered_at
    return shown


def _trace(runtime: Runtime) -> object:
    """The requests that ended last, for a model that looks into its own work."""
    log = runtime.session.trace
    return as_json([without_payloads(record) for record in log.recent()], dropped=log.dropped)


def _status(runtime: Runtime) -> dict[str, object]:
    session, clock = runtime.session, runtime.clock
    session.starting.clear()  # their phases are told here
    events = session.events.statistics()
    journal = runtime.journal.statistics()
    return {
        "version": __version__,
        "started_at": clock.iso(runtime.started_at),
        "uptime_ms": round((clock.now() - runtime.started_at) * 1000),
        "servers": [_server(backend.snapshot()) for backend in runtime.servers],
        "events": {"kept": events.kept, "waiting": events.waiting, "capacity": events.capacity},
        "calls_in_flight": session.tasks.in_flight,
        "working_tasks": len(session.tasks.working()),
        "tasks": {status.value: count for status, count in session.tasks.totals().items()},
        "pending_requests": len(session.requests),
        "active_timers": len(session.timers.all()),
        "stored_result_bytes": session.results.size,
        "journal": {"lines": journal.lines_written, "dropped": journal.lines_dropped},
    }
