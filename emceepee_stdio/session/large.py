"""Results too large for a model to read at once: kept whole, answered with both ends of them.

Only text is measured and stored; images and other blocks stay where they were. What would not even
fit into one line to the client is stored in any case.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from msgspec import Raw

from emceepee_stdio.errors import ResultTooLarge
from emceepee_stdio.session.reply import Reply, text_block
from emceepee_stdio.session.session import Session
from emceepee_stdio.wire.codec import to_json

__all__ = ["RESULTS", "fitted", "stored_whole"]

RESULTS = "emceepee://results/"
_END_CHARS = 2_000


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""


def fitted(session: Session, reply: Reply) -> Reply:
    """The reply itself, or one that holds the ends of its text and says where the whole is."""
    limit = session.settings.limits.result_chars
    if not limit or len(reply.content) <= limit:
        return reply
    blocks = msgspec.json.decode(b"[%b]" % reply.content, type=list[Raw])
    texts = [_text(block) for block in blocks]
    chars = sum(len(text) for text in texts if text is not None)
    if chars <= limit:
        return reply
    whole = "\n".join(text for text in texts if text is not None)
    kept = [bytes(block) for block, text in zip(blocks, texts, strict=True) if text is None]
    return _with_ends(session, reply, whole, kept)


def stored_whole(session: Session, reply: Reply, limit: int) -> Reply:
    """A reply that does not fit into one line: everything that it says, as stored text."""
    try:
        stored = session.results.put(f"[{reply.content.decode()}]", now=session.clock.now())
    except ResultTooLarge as error:
        return Reply.error(error)
    return Reply.sentence(
        f"The result has {reply.size} bytes; a client is sent at most {limit} at a time. "
        "It is stored as the JSON of its content blocks.",
        _where(stored.id, stored.chars),
    )


def _with_ends(session: Session, reply: Reply, whole: str, kept: Sequence[bytes]) -> Reply:
    try:
        stored = session.results.put(whole, now=session.clock.now())
    except ResultTooLarge as error:
        note = f"Only both ends are left of {len(whole)} characters: {error}"
        facts: dict[str, object] = {"chars": len(whole)}
    else:
        note = f"The result has {len(whole)} characters; here are both ends of it."
        facts = _where(stored.id, stored.chars)
    blocks = [
        text_block(whole[:_END_CHARS]),
        text_block(f"… {len(whole) - 2 * _END_CHARS} characters left out …"),
        text_block(whole[-_END_CHARS:]),
        text_block(note),
        text_block(to_json(facts).decode()),
        *kept,
    ]
    return replace(reply, content=b",".join(blocks))


def _where(result_id: str, chars: int) -> dict[str, object]:
    uri = f"{RESULTS}{result_id}"
    return {
        "stored_result": {
            "uri": uri,
            "chars": chars,
            "read": f'read_resource(server="emceepee", uri="{uri}", offset=0, limit=20000)',
            "search": f'read_resource(server="emceepee", uri="{uri}", pattern="…")',
        }
    }


def _text(block: Raw) -> str | None:
    try:
        read = msgspec.json.decode(block, type=_Block)
    except msgspec.MsgspecError:
        return None
    return read.text if read.type == "text" else None
