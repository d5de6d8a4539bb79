"""What every answer may carry beside its own: events to be told, and questions that wait.

Events are cut to fit; questions are never left out, because a server is blocked on each of them.
"""

from collections.abc import Mapping
from typing import cast

from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.session import Session
from emceepee_stdio.state import Event, Lease, PendingRequest, RequestKind
from emceepee_stdio.wire.codec import to_json

__all__ = ["lease_events", "pending_client", "shown_elicitation", "shown_event", "shown_sampling"]


def lease_events(session: Session, lease: Lease) -> tuple[Lease, list[dict[str, object]]]:
    """The first events of a lease that fit into one answer; the others wait again."""
    limits = session.settings.limits
    shown: list[dict[str, object]] = []
    room = limits.response_event_bytes
    for event in lease.events[: limits.response_events]:
        entry = shown_event(session, event)
        room -= len(to_json(entry)) + 1
        if room < 0 and shown:
            break
        shown.append(entry)
    if len(shown) < len(lease.events):
        lease = session.events.keep_first(lease, len(shown))
    return lease, shown


def shown_event(session: Session, event: Event) -> dict[str, object]:
    data = event.data
    encoded = to_json(data)
    shown: dict[str, object] = {
        "id": event.id,
        "type": event.type.value,
        "server": event.server,
        "created_at": session.clock.iso(event.created_at),
        "data": data,
    }
    if event.count > 1:
        shown["count"] = event.count
    limit = session.settings.limits.event_data_bytes
    if len(encoded) > limit:
        shown["data"] = encoded[:limit].decode(errors="ignore")
        shown["truncated"] = True
    return shown


def pending_client(session: Session) -> dict[str, list[dict[str, object]]]:
    """Everything that waits on the client."""
    pending = session.requests.pending()
    return {
        "elicitations": [
            shown_elicitation(session, asked)
            for asked in pending
            if asked.kind is RequestKind.ELICITATION
        ],
        "sampling_requests": [
            shown_sampling(session, asked, whole=False)
            for asked in pending
            if asked.kind is RequestKind.SAMPLING
        ],
    }


def shown_elicitation(session: Session, asked: PendingRequest) -> dict[str, object]:
    """A question to the user: the message cut, schema and URL whole."""
    params = asked.params
    message = session.secrets.mask(str(params.get("message", "")))
    limit = session.settings.limits.question_chars
    shown = _head(session, asked)
    shown["message"] = message[:limit] + (" …" if len(message) > limit else "")
    shown["mode"] = params.get("mode", "form")
    if "url" in params:
        shown["url"] = params["url"]
    if "requestedSchema" in params:
        shown["schema"] = params["requestedSchema"]
    return shown


def shown_sampling(session: Session, asked: PendingRequest, *, whole: bool) -> dict[str, object]:
    """A question to the model: a preview, or all of it."""
    shown = _head(session, asked)
    if whole:
        shown["request"] = asked.params
        return shown
    preview = _last_text(asked.params)
    limit = session.settings.limits.sampling_preview_chars
    shown["preview"] = preview[:limit] + (" …" if len(preview) > limit else "")
    shown["whole_in"] = "get_sampling_requests"
    return shown


def _head(session: Session, asked: PendingRequest) -> dict[str, object]:
    now = session.clock.now()
    return {
        "request_id": asked.id,
        "server": asked.server,
        "age_ms": round((now - asked.created_at) * 1000),
        "expires_in_ms": max(round((asked.expires_at - now) * 1000), 0),
    }


def _last_text(params: Mapping[str, object]) -> str:
    """What the newest message of a sampling request says."""
    messages = params.get("messages")
    if not isinstance(messages, list) or not messages:
        return ""
    content = mapping(cast("list[object]", messages)[-1]).get("content")
    blocks = cast("list[object]", content) if isinstance(content, list) else [content]
    return " ".join(str(mapping(block).get("text", "")) for block in blocks).strip()
