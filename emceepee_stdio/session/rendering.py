"""Fits an answer into its room: events, open questions, and a result that is cut if too large.

Events are cut to fit; questions are never left out, because a server is blocked on each of them. A
result larger than the client shows is stored whole, and answered with its beginning and end. Only
text is measured, in bytes, and stored, that of embedded resources too; images and other blocks stay
in their order. What would not even fit into one line to the client is always stored.
"""

from collections.abc import Mapping
from typing import Protocol, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import ResultTooLarge
from emceepee_stdio.journal import Secrets
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.client_link import ClientLink
from emceepee_stdio.session.questions import question_of, url_warning
from emceepee_stdio.session.reply import Reply, attributed_text, text_block
from emceepee_stdio.session.server_output import Logged, Notified
from emceepee_stdio.state.event_log import Lease
from emceepee_stdio.state.event_types import Event, Excerpt
from emceepee_stdio.state.pending_requests import PendingRequest, Recipient, RequestKind
from emceepee_stdio.state.session_state import SessionState
from emceepee_stdio.wire.codec import to_json

_QUESTIONS_BYTES = 8 << 10  # in every answer, as much as events take
_FACTS_BYTES = 500  # what a tool says about its page, and the frame of the blocks
_LINE_CHARS = 80  # enough to recognise a question by
_LINE_LOOK_CHARS = 1_000  # of which the line is made


class _Session(Protocol):
    """What of the session is looked at; the session itself shows questions, too."""

    client: ClientLink
    clock: Clock
    settings: Settings
    secrets: Secrets
    state: SessionState[Notified, Logged, Call]


def answer_budget(settings: Settings, shown: int) -> int:
    """Bytes of an answer: what its client shows or a person has set, and fits into a line."""
    line = settings.fixed.client_line_bytes
    configured = settings.limits.result_bytes
    return min(shown if configured is None else configured or line, line)


def room_beside_context(session: _Session, budget: int) -> int:
    """How many bytes of an answer are left for what the tool itself says: a quarter at least."""
    events = 0
    if session.state.events.undelivered:
        events = _share(session.settings.fixed.response_event_bytes, budget)
    questions = len(to_json(pending_client(session, budget))) if session.state.requests.open else 0
    beside = (events + questions) * 3 // 2  # quotes are escaped
    return max(budget - beside - _FACTS_BYTES, budget // 4)


def _share(most: int, budget: int) -> int:
    """What one kind of context may take of an answer."""
    return min(most, budget // 4)


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
        is_first = room == whole and size <= budget // 2
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


# Results larger than a client shows.


RESULTS = "emceepee://results/"
CLUSTER_CHARS = 64  # the longest emoji or accented character has some ten code points
_TAIL_BYTES = 4_000  # shows how it ends; the rest of the room is for its beginning
_NOTE_BYTES = 900  # how much is left out, and how to read it
_MAX_META_BYTES = 2_000  # what servers put there is small; more would not fit either
# A character takes up to six bytes on the wire; there is more on the line than the page.
_BYTES_PER_CHAR = 8


class _Contents(msgspec.Struct):
    uri: str = ""
    text: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    resource: _Contents | None = None


def fitted(session: _Session, reply: Reply, room: int, *, pointer_first: bool = False) -> Reply:
    """The reply itself, or one with as much of both ends of its text as `room` bytes allow.

    `pointer_first` is for clients that may cut the end: it says where the rest is.
    """
    if reply.size <= room:
        return reply
    blocks = msgspec.json.decode(b"[%b]" % reply.content, type=list[Raw])
    texts = [text_in(block) for block in blocks]
    if sum(_size(text) for text in texts if text is not None) <= room:
        return reply
    whole = "\n".join(text for text in texts if text is not None)
    first = next(index for index, text in enumerate(texts) if text is not None)
    before = [bytes(block) for block in blocks[:first]]
    others = zip(blocks[first:], texts[first:], strict=True)
    after = [bytes(block) for block, text in others if text is None]
    ends, pointer = _ends(session, whole, max(room - _NOTE_BYTES, room // 2), reply.key)
    order = [*pointer, *before, *ends] if pointer_first else [*before, *ends, *pointer]
    return replace(reply, content=b",".join([*order, *after]))


def stored_whole(session: _Session, reply: Reply, limit: int) -> Reply:
    """A reply that does not fit into one line: everything that it says, as stored text."""
    try:
        stored = session.state.results.put(f"[{reply.content.decode()}]", now=session.clock.now())
    except ResultTooLarge as error:
        return Reply.error(error)
    told = Reply.sentence(
        f"The result has {reply.size} bytes; a client is sent at most {limit} at a time. "
        "It is stored as the JSON of its content blocks.",
        _where(session, stored.id, stored.chars),
    )
    small = reply.meta is not None and len(bytes(reply.meta)) <= _MAX_META_BYTES
    return replace(told, is_error=reply.is_error, meta=reply.meta if small else None)


def kept_whole(session: _Session, text: str, *, under: str) -> dict[str, object]:
    """Where a text can be read that is too large for an answer; or why it cannot be."""
    try:
        stored = session.state.results.put(text, now=session.clock.now(), under=under)
    except ResultTooLarge as error:
        return {"not_stored": str(error)}
    return _where(session, stored.id, stored.chars)


def page_chars(settings: Settings) -> int:
    """The longest page of which the client can be sent every character."""
    return settings.fixed.client_line_bytes // _BYTES_PER_CHAR


def whole_characters(text: str, end: int) -> str:
    """The beginning of a text, about that long: nothing is torn from its accents or its emoji."""
    if len(text) <= end or text[max(end - 1, 0) : end + 1].isascii():
        return text[:end]
    import regex  # noqa: PLC0415 - most texts never need it

    start = max(end - CLUSTER_CHARS, 0)
    edges = [match.start() for match in regex.finditer(r"\X", text[start : end + CLUSTER_CHARS])]
    fitting = [start + edge for edge in edges if 0 < start + edge <= end]
    if fitting:
        return text[: fitting[-1]]
    return text[: next((start + edge for edge in edges if start + edge > end), end)]


def head_within(text: str, max_bytes: int) -> str:
    """The beginning of a text, in about so many bytes; no character is split."""
    part = text[:max_bytes]
    if not part.isascii():
        part = part.encode()[:max_bytes].decode(errors="ignore")
    return whole_characters(text, len(part))


def _tail_within(text: str, max_bytes: int) -> str:
    part = text[len(text) - min(max_bytes, len(text)) :]
    if not part.isascii():
        part = part.encode()[-max_bytes:].decode(errors="ignore")
    return text[len(whole_characters(text, len(text) - len(part))) :]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _ends(
    session: _Session, whole: str, room: int, key: str | None
) -> tuple[list[bytes], list[bytes]]:
    """What a model sees of a text that is too long, and where the rest is."""
    at_end = min(_TAIL_BYTES, room // 4)
    head = head_within(whole, room - at_end)
    tail = _tail_within(whole[len(head) :], at_end)
    try:
        stored = session.state.results.put(whole, now=session.clock.now(), under=key)
    except ResultTooLarge as error:
        note = f"Only both ends are left of {len(whole)} characters: {error}"
        facts: dict[str, object] = {"chars": len(whole)}
    else:
        note = f"The result has {len(whole)} characters; here are both ends of it."
        facts = _where(session, stored.id, stored.chars, offset=len(head))
    ends = [
        text_block(attributed_text(head)),
        text_block(f"… {len(whole) - len(head) - len(tail)} characters left out …"),
        text_block(attributed_text(tail)),
    ]
    return ends, [text_block(note), text_block(to_json(facts).decode())]


def _where(session: _Session, result_id: str, chars: int, *, offset: int = 0) -> dict[str, object]:
    uri = f"{RESULTS}{result_id}"
    return {
        "stored_result": {
            "uri": uri,
            "chars": chars,
            "read": f'read_resource(server="emceepee", uri="{uri}", offset={offset})',
            "search": f'read_resource(server="emceepee", uri="{uri}", pattern="…")',
        },
        "word": session.client.word,
    }


def text_in(block: Raw) -> str | None:
    try:
        read = msgspec.json.decode(block, type=_Block)
    except msgspec.MsgspecError:
        return None
    if read.type == "resource" and read.resource is not None and read.resource.text is not None:
        return f"{read.resource.uri}:\n{read.resource.text}"
    return read.text if read.type == "text" else None
