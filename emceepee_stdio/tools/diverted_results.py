"""Results that need not pass through the model: it gets what a jq program selects of them.

The whole result is stored before the program runs: whatever comes of that, the tool was called, and
its result can be read.
"""

import sys
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import replace

from emceepee_stdio.errors import InvalidSelect, ResultTooLarge
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.rendering import RESULTS, fitted, room_beside_context, text_in
from emceepee_stdio.session.reply import MARK, OWN, Reply, attributed_text, text_block
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.codec import to_json

_FACTS_BYTES = 1_000  # where the whole is, beside what was selected

SelectProgram = Annotated[
    str, Meta(description="jq program: answers what it selects; the whole is stored.")
]


async def selected(runtime: Runtime, call: Call, reply: Reply, program: str | UnsetType) -> Reply:
    """What a program selects of a result; all of it if there is none, or if it is an error."""
    if program is UNSET or reply.is_error:
        return reply
    blocks = msgspec.json.decode(b"[%b]" % reply.content, type=list[Raw])
    texts = [text_in(block) for block in blocks]
    others = [bytes(block) for block, text in zip(blocks, texts, strict=True) if text is None]
    said = [text.removeprefix(MARK) for text in texts if text not in (None, MARK)]
    if reply.structured is not None:
        said = [bytes(reply.structured).decode(errors="replace")]
    text = "\n".join(said)
    answer = await _selected(runtime, call, text, program, _kept(runtime, text, reply.key))
    return replace(answer, content=b",".join([answer.content, *others]))


async def selected_from_stored(runtime: Runtime, call: Call, uri: str, program: str) -> Reply:
    now, stored = runtime.clock.now(), runtime.session.state.results
    page = stored.page(uri.removeprefix(RESULTS), offset=0, limit=sys.maxsize, now=now)
    return await _selected(runtime, call, page.text, program, _where(uri, page.total))


def _kept(runtime: Runtime, text: str, key: str | None) -> dict[str, object]:
    """Store the whole; a task's once, apart from its blocks."""
    under = None if key is None else f"{key}-data"
    try:
        stored = runtime.session.state.results.put(text, now=runtime.clock.now(), under=under)
    except ResultTooLarge as error:
        return {"not_stored": str(error)}
    return _where(f"{RESULTS}{stored.id}", stored.chars)


def _where(uri: str, chars: int) -> dict[str, object]:
    return {"stored_result": {"uri": uri, "chars": chars}}


async def _selected(
    runtime: Runtime, call: Call, text: str, program: str, facts: Mapping[str, object]
) -> Reply:
    session = runtime.session
    pointer = to_json({**facts, "word": session.client.word}).decode()
    try:
        found = await runtime.selection.run(program, text.removeprefix(MARK))
    except InvalidSelect as error:
        hint = f"The whole result is kept: {pointer} Correct the program, and call read_resource"
        hint = f"{hint} with server {OWN!r}, its uri and select."
        raise InvalidSelect(error.fact, hint=hint) from None
    value = bytes(found.value)
    if found.about:  # it selected nothing
        facts = {**facts, "selected_from": attributed_text(found.about)}
        pointer = to_json({**facts, "word": session.client.word}).decode()
    shown = msgspec.json.decode(value, type=str) if value[:1] == b'"' else value.decode()
    room = max(room_beside_context(session, call.client.budget) - _FACTS_BYTES, _FACTS_BYTES)
    first = call.client.context_first
    reply = Reply(content=text_block(attributed_text(shown)))
    reply = fitted(session, reply, room, pointer_first=first)
    parts = [reply.content, text_block(pointer)]
    return replace(reply, content=b",".join(reversed(parts) if first else parts), paged=True)
