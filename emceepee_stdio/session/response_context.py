"""The context of every answer: events since the last one, and open questions.

Events are cut to fit; questions are never left out, because a server is blocked on each of them.
"""

import sys
from collections.abc import Mapping
from typing import Protocol, cast

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Settings
from emceepee_stdio.journal import Secrets
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.questions import question_of, url_warning
from emceepee_stdio.session.server_output import Logged, Notified
from emceepee_stdio.state import (
    Event,
    Excerpt,
    Lease,
    PendingRequest,
    Recipient,
    RequestKind,
    SessionState,
)
from emceepee_stdio.wire.codec import to_json

_QUESTIONS_BYTES = 8 << 10  # in every answer, as much as events take
_FACTS_BYTES = 500  # what a tool says about its page, and the frame of the blocks
_LINE_CHARS = 80  # enough to recognise a question by
_LINE_LOOK_CHARS = 1_000  # of which the line is made


class _Session(Protocol):
    """What of the session is looked at; the session itself shows questions, too."""

    clock: Clock
    settings: Settings
    secrets: Secrets
    state: SessionState[Notified, Logged, Call]


def room_beside_context(session: _Session, budget: int) -> int:
    """How many bytes of an answer are left for what the tool itself says: a quarter at least."""
    if not budget:
        return sys.maxsize
    events = 0
    if session.state.events.undelivered:
        events = _share(session.settings.fixed.response_event_bytes, budget)
    questions = len(to_json(pending_client(session, budget))) if session.state.requests.open else 0
    beside = (events + questions) * 3 // 2  # quotes are escaped
    return max(budget - beside - _FACTS_BYTES, budget // 4)


def _share(most: int, budget: int) -> int:
    """What one kind of context may take of an answer; a budget of 0 is none."""
    return min(most, budget // 4) if budget else most


def lease_events(
    session: _Session, lease: Lease, budget: int
) -> tuple[Lease, list[dict[str, object]]]:
    """The first events of a lease that fit into one answer; the others wait again."""
    fixed = session.settings.fixed
    shown: list[dict[str, object]] = []
    room = _share(fixed.response_event_bytes, budget)
    for event in lease.events[: fixed.response_events]:
        entry = shown_event(session, event)
        room -= len(to_json(entry)) + 1
        if room < 0 and shown:
            break
        shown.append(entry)
    if len(shown) < len(lease.events):
        lease = session.state.events.keep_first(lease, len(shown))
    return lease, shown


def shown_event(session: _Session, event: Event) -> dict[str, object]:
    data = event.data
    is_cut = isinstance(data, Excerpt)
    shown: dict[str, object] = {
        "id": event.id,
        "type": event.type.value,
        "server": event.server,
        "created_at": session.clock.iso(event.created_at),
        "data": data.text if is_cut else data,
    }
    if event.count > 1:
        shown["count"] = event.count
    if is_cut:
        shown |= {"truncated": True, "data_bytes": data.size}
    return shown


def pending_client(session: _Session, budget: int) -> dict[str, list[dict[str, object]]]:
    """Everything that waits on the client; what no longer fits is named in one line each."""
    shown: dict[RequestKind, list[dict[str, object]]] = {kind: [] for kind in RequestKind}
    room = whole = _share(_QUESTIONS_BYTES, budget)
    lines = whole  # for those that are named in one line; the rest have only their ids
    pending = session.state.requests.pending()
    session.state.requests.shown.update(a.id for a in pending if a.recipient is Recipient.TOOLS)
    for asked in pending:
        is_form = asked.kind is RequestKind.ELICITATION
        entry = (
            shown_elicitation(session, asked)
            if is_form
            else shown_sampling(session, asked, whole=False)
        )
        size = len(to_json(entry))
        is_first = room == whole and not (budget and size > budget // 2)
        if size <= room or is_first:  # the first is whole, also where it takes more than its share
            room -= size
        else:
            entry = _one_line(session, asked)
            lines -= len(to_json(entry))
            if lines < 0:
                entry.pop("line", None)
        shown[asked.kind].append(entry)
    return {
        "elicitations": shown[RequestKind.ELICITATION],
        "sampling_requests": shown[RequestKind.SAMPLING],
    }


def _one_line(session: _Session, asked: PendingRequest) -> dict[str, object]:
    """A question that is there, and where to read it."""
    if asked.recipient is Recipient.PERSON:
        return shown_elicitation(session, asked)
    is_form = asked.kind is RequestKind.ELICITATION
    text = str(asked.params.get("message", "")) if is_form else _last_text(asked.params)
    line = " ".join(session.secrets.mask(text)[:_LINE_LOOK_CHARS].split())
    return {
        "request_id": asked.id,
        "server": asked.server,
        "line": line[:_LINE_CHARS] + (" …" if len(line) > _LINE_CHARS else ""),
        "whole_in": "get_elicitations" if is_form else "get_sampling_requests",
    }


def shown_elicitations(session: _Session, server: str) -> list[dict[str, object]]:
    """What a server asks the user, in the same words wherever it is shown."""
    pending = session.state.requests.pending(kind=RequestKind.ELICITATION, server=server)
    return [shown_elicitation(session, asked) for asked in pending]


def shown_elicitation(session: _Session, asked: PendingRequest) -> dict[str, object]:
    """A question to the user: the message cut, schema and URL whole.

    What the person is being asked is theirs to answer: of that only the fact is told.
    """
    if asked.recipient is Recipient.PERSON:
        return _head(session, asked) | {"asked": asked.recipient.value}
    params = asked.params
    message = session.secrets.mask(str(params.get("message", "")))
    limit = session.settings.fixed.question_chars
    shown = _head(session, asked)
    shown["message"] = message[:limit] + (" …" if len(message) > limit else "")
    shown["mode"] = params.get("mode", "form")
    if "url" in params:
        shown["url"] = params["url"]
        if warning := url_warning(str(params["url"])):
            shown["warning"] = warning
    if "elicitationId" in params:  # by which the server says that the visit is done
        shown["elicitation_id"] = params["elicitationId"]
    if "requestedSchema" in params:
        shown["schema"] = params["requestedSchema"]
    return shown


def shown_sampling(session: _Session, asked: PendingRequest, *, whole: bool) -> dict[str, object]:
    """A question to the model: a preview, or all of it."""
    shown = _head(session, asked)
    if whole:
        shown["request"] = asked.params
        return shown
    preview = _last_text(asked.params)
    limit = session.settings.fixed.sampling_preview_chars
    shown["preview"] = preview[:limit] + (" …" if len(preview) > limit else "")
    shown["whole_in"] = "get_sampling_requests"
    return shown


def task_of(asked: PendingRequest) -> str | None:
    """The task that a question belongs to, where it is known which call asked."""
    call = question_of(asked).call
    return call.task if isinstance(call, Call) else None


def _head(session: _Session, asked: PendingRequest) -> dict[str, object]:
    now, task = session.clock.now(), task_of(asked)
    return {
        "request_id": asked.id,
        "server": asked.server,
        **({} if task is None else {"task_id": task}),
        "age_ms": round((now - asked.created_at) * 1000),
        "expires_in_ms": max(round((asked.expires_at - now) * 1000), 0),
    }


def _last_text(params: Mapping[str, object]) -> str:
    """What the newest message of a sampling request says."""
    messages = params.get("messages")
    if not isinstance(messages, list) or not messages:
        return ""
    return _text_of(mapping(cast("list[object]", messages)[-1]).get("content")).strip()


def _text_of(content: object) -> str:
    """The words of one block or several; of the result of a tool, what the tool said."""
    if isinstance(content, list):
        return " ".join(map(_text_of, cast("list[object]", content)))
    block = mapping(content)
    if block.get("type") == "tool_result":
        return _text_of(block.get("content"))
    return str(block.get("text") or block.get("name") or "")
