"""Results larger than a client shows: stored whole, answered with their beginning and end.

Only text is measured, in bytes, and stored; images and other blocks stay in their order. What would
not even fit into one line to the client is always stored.
"""

from dataclasses import replace

import msgspec
from msgspec import Raw

from emceepee_stdio.config import Settings
from emceepee_stdio.errors import ResultTooLarge
from emceepee_stdio.session.reply import Reply, attributed_text, text_block
from emceepee_stdio.session.session import Session
from emceepee_stdio.wire.codec import to_json

RESULTS = "emceepee://results/"
CLUSTER_CHARS = 64  # the longest emoji or accented character has some ten code points
_TAIL_BYTES = 4_000  # shows how it ends; the rest of the room is for its beginning
_NOTE_BYTES = 900  # how much is left out, and how to read it
_MAX_META_BYTES = 2_000  # what servers put there is small; more would not fit either
# A character takes up to six bytes on the wire; there is more on the line than the page.
_BYTES_PER_CHAR = 8


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""


def fitted(session: Session, reply: Reply, room: int, *, pointer_first: bool = False) -> Reply:
    """The reply itself, or one with as much of both ends of its text as `room` bytes allow.

    `pointer_first` is for clients that may cut the end: it says where the rest is.
    """
    if reply.size <= room:
        return reply
    blocks = msgspec.json.decode(b"[%b]" % reply.content, type=list[Raw])
    texts = [_text(block) for block in blocks]
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


def stored_whole(session: Session, reply: Reply, limit: int) -> Reply:
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


def kept_whole(session: Session, text: str, *, under: str) -> dict[str, object]:
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
    session: Session, whole: str, room: int, key: str | None
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


def _where(session: Session, result_id: str, chars: int, *, offset: int = 0) -> dict[str, object]:
    uri = f"{RESULTS}{result_id}"
    return {
        "stored_result": {
            "uri": uri,
            "chars": chars,
            "read": f'read_resource(server="emceepee", uri="{uri}", offset={offset})',
            "search": f'read_resource(server="emceepee", uri="{uri}", pattern="…")',
        },
        "word": session.word,
    }


def _text(block: Raw) -> str | None:
    try:
        read = msgspec.json.decode(block, type=_Block)
    except msgspec.MsgspecError:
        return None
    return read.text if read.type == "text" else None
