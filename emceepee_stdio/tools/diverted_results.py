"""Results that need not pass through the model: a jq program selects of them, or a file gets them.

The whole result is stored before a program runs, and answered where it cannot be written: whatever
comes of that, the tool was called, and its result can be read.
"""

import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import replace

from emceepee_stdio.errors import InvalidArguments, InvalidSelect, ResultTooLarge, SaveRefused
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.client_link import directory_of, is_project
from emceepee_stdio.session.rendering import RESULTS, fitted, room_beside_context, text_in
from emceepee_stdio.session.reply import MARK, OWN, Reply, attributed_text, text_block
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.storage.saved_files import NotSavedError, place_of
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.environment import BEHIND_HTTP

_FACTS_BYTES = 1_000  # where the whole is, beside what was selected

SelectProgram = Annotated[str, Meta(description="jq program: you get what it selects.")]


async def selected(runtime: Runtime, call: Call, reply: Reply, program: str | UnsetType) -> Reply:
    """What a program selects of a result; all of it if there is none, or if it is an error."""
    if program is UNSET or reply.is_error:
        return reply
    blocks = msgspec.json.decode(b"[%b]" % reply.content, type=list[Raw])
    texts = [text_in(block) for block in blocks]
    others = [bytes(block) for block, text in zip(blocks, texts, strict=True) if text is None]
    text = whole_text(reply, texts)
    answer = await _selected(runtime, call, text, program, _kept(runtime, text, reply.key))
    return replace(answer, content=b",".join([answer.content, *others]))


def whole_text(reply: Reply, texts: Sequence[str | None]) -> str:
    """What a result says: its structured content, else the texts of its blocks."""
    if reply.structured is not None:
        return bytes(reply.structured).decode(errors="replace")
    return "\n".join(text.removeprefix(MARK) for text in texts if text not in (None, MARK))


async def selected_from_stored(runtime: Runtime, call: Call, uri: str, program: str) -> Reply:
    text = _stored(runtime, uri)
    facts = {"stored_result": {"uri": uri, "chars": len(text)}}
    return await _selected(runtime, call, text, program, facts)


def _stored(runtime: Runtime, uri: str) -> str:
    now, stored = runtime.clock.now(), runtime.session.state.results
    return stored.page(uri.removeprefix(RESULTS), offset=0, limit=sys.maxsize, now=now).text


def _kept(runtime: Runtime, text: str, key: str | None) -> dict[str, object]:
    """Store the whole; a task's once, apart from its blocks."""
    under = None if key is None else f"{key}-data"
    try:
        stored = runtime.session.state.results.put(text, now=runtime.clock.now(), under=under)
    except ResultTooLarge as error:
        return {"not_stored": str(error)}
    return {"stored_result": {"uri": f"{RESULTS}{stored.id}", "chars": stored.chars}}


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


# Results that are written to a file: `save_to` of execute_tool, and `save_result` for stored ones.
#
# Before the tool is called, the place is checked, and once more when the file is written. What
# cannot be saved then is answered as it would have been without.


SAVE_RESULT = "save_result"
_ROOTS_S = 5.0  # for a client to say which directories it works in
_SHOWN_LINES, _SHOWN_CHARS = 5, 400  # of what was saved: enough to recognise it by
SavePath = Annotated[str, Meta(description="New file to write the result to.")]
Overwrite = Annotated[bool, Meta(description="Replace a file that save_to wrote.")]


class Saving(msgspec.Struct, frozen=True):
    """Where a result goes."""

    path: str
    overwrite: bool = False


class _SaveResult(Saving, frozen=True, forbid_unknown_fields=True):
    uri: str = ""


async def check_saving(runtime: Runtime, call: Call, saving: Saving) -> None:
    """Raise before anything is called if the file could not be written now."""
    call.wants_roots = True
    try:
        place = place_of(saving.path, await _roots(runtime))
        check = partial(runtime.saved.check, place, overwrite=saving.overwrite)
        await anyio.to_thread.run_sync(check, abandon_on_cancel=True)
    except NotSavedError as error:
        raise SaveRefused(f"{saving.path[:_SHOWN_CHARS]!r} is not written: {error}.") from None
    finally:
        call.wants_roots = False


async def saved(runtime: Runtime, reply: Reply, saving: Saving) -> Reply:
    """Write it, and say where it is; an error is answered as it is."""
    if reply.is_error:
        return reply
    try:
        data, beside = file_data(reply)
        place = place_of(saving.path, await _roots(runtime))  # they may be others by now
        write = partial(runtime.saved.write, place, data, overwrite=saving.overwrite)
        await anyio.to_thread.run_sync(write)
    except NotSavedError as error:
        refusal = SaveRefused(f"The result was not saved: {error}.", hint="It follows here.")
        return replace(reply, content=b",".join([text_block(str(refusal)), reply.content]))
    word = runtime.session.client.word
    facts = {"saved_result": {"path": str(place), "bytes": len(data)}, "word": word}
    return Reply(content=b",".join([*beside, text_block(to_json(facts).decode())]))


async def save_result(runtime: Runtime, call: Call, args: Raw) -> Reply:
    """A stored result into a file."""
    p = decoded(args, _SaveResult)
    if p is None or not p.uri.startswith(RESULTS):
        raise InvalidArguments(f"save_result takes uri ({RESULTS}…), path and overwrite.")
    text = _stored(runtime, p.uri)
    await check_saving(runtime, call, p)
    return await saved(runtime, Reply(content=text_block(text)), p)


def file_data(reply: Reply) -> tuple[bytes, list[bytes]]:
    """The bytes of its file, and the blocks to show: the first lines, or what a picture is not."""
    blocks = msgspec.json.decode(b"[%b]" % reply.content, type=list[Raw])
    media = {n: data for n, block in enumerate(blocks) if (data := _encoded(block)) is not None}
    if len(media) > 1:
        raise NotSavedError(f"it has {len(media)} pictures or other data, and a file holds one")
    if media:
        [(number, encoded)] = media.items()
        beside = [bytes(block) for n, block in enumerate(blocks) if n != number]
        try:
            return b64decode(encoded, validate=True), beside
        except ValueError:
            raise NotSavedError("its data is not base64") from None
    text = whole_text(reply, [text_in(block) for block in blocks])
    lines = "\n".join(text[:_SHOWN_CHARS].split("\n")[:_SHOWN_LINES])
    shown = lines if len(lines) == len(text) else f"{lines} …"
    return text.encode(errors="replace"), [text_block(attributed_text(shown))]


def _encoded(block: Raw) -> str | None:
    """The data of a block that is shown as none: of a picture, a sound or a resource."""
    held = mapping(decoded(block, object))
    if held.get("type") == "resource":
        data = mapping(held.get("resource")).get("blob")
    else:
        data = held.get("data") if held.get("type") in ("image", "audio") else None
    return data if isinstance(data, str) else None


async def _roots(runtime: Runtime) -> list[Path]:
    """The directories of the client or the configuration, without a home or what holds homes."""
    if BEHIND_HTTP in runtime.environment.environ:
        raise NotSavedError("over HTTP nothing is saved at the proxy's machine")
    known = anyio.Event()
    runtime.roots.tell(lambda _roots: known.set())
    with anyio.move_on_after(_ROOTS_S):
        await known.wait()
    given = [path for root in runtime.roots.chosen if (path := directory_of(root))]
    home = runtime.environment.home
    return await anyio.to_thread.run_sync(
        lambda: [place for place in given if is_project(place, home)], abandon_on_cancel=True
    )
