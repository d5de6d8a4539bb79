"""The proxy's own resources (`emceepee://…`): diagrams, status, last requests."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import msgspec
from msgspec import Raw

from emceepee_stdio import __version__
from emceepee_stdio.backends.interface import Snapshot
from emceepee_stdio.errors import ResourceNotFound
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.session.rendering import CLUSTER_CHARS, RESULTS, page_chars, whole_characters
from emceepee_stdio.session.reply import (
    MARK,
    OWN,
    attributed,
    attributed_text,
    is_own_uri,
    marked,
    names_our_key,
    passed_meta,
    text_block,
)
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state.diagrams import diagrams
from emceepee_stdio.trace.trace_reader import as_json, without_payloads
from emceepee_stdio.wire.codec import to_json

# Results of resources/read and prompts/get, as their server gave them but for what is ours.
#
# A text that could be taken for one of ours is marked as the server's, as in the result of a tool;
# before what holds no text a mark is put. So is whatever is labelled with an address of ours.


_OF_AN_ERA = frozenset(("resultType", "ttlMs", "cacheScope"))  # said for this client by ourselves

Fields = dict[str, object]


class _Held(msgspec.Struct):
    """Contents of a resource."""

    uri: object = ""
    text: object = None


class _Message(msgspec.Struct):
    role: object = "user"
    content: Raw = Raw(b"null")


_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_read_held = envelope_decoder(_Held)
_read_message = envelope_decoder(_Message)


def resource_fields(result: Raw) -> Fields:
    """Of a result of resources/read; what has no list of contents raises."""
    return _fields(result, "contents", _attributed_contents)


def prompt_fields(result: Raw) -> Fields:
    """Of a result of prompts/get; what has no list of messages raises."""
    return _fields(result, "messages", _attributed_message)


def _fields(result: Raw, key: str, attribute: Callable[[Raw], Iterator[object]]) -> Fields:
    given = _read_fields(result)
    items = _read_list(given.pop(key, Raw(b"null")))
    fields: Fields = {key: [part for item in items for part in attribute(item)]}
    for name, value in given.items():
        if name == "_meta":
            fields[name] = passed_meta(value)
        elif name not in _OF_AN_ERA:
            fields[name] = _beside(name, value)
    return {name: value for name, value in fields.items() if value is not None}


def _beside(name: str, value: Raw) -> object:
    """What else a result says: text that could be taken for ours is marked, and nothing else is."""
    if not names_our_key(b"{%b:%b}" % (to_json(name), bytes(value))):
        return value
    is_text = name == "description" and bytes(memoryview(value)[:1]) == b'"'
    return marked(msgspec.json.decode(value, type=str)) if is_text else None


def _attributed_contents(item: Raw) -> Iterator[object]:
    held = _read_held(item)
    uri = held.uri if isinstance(held.uri, str) else ""
    if not is_own_uri(uri) and not names_our_key(bytes(item)):
        yield item
    elif isinstance(held.text, str):
        yield {**_read_fields(item), "text": marked(held.text)}
    else:
        yield {"uri": uri, "mimeType": "text/plain", "text": MARK}
        yield item


def _attributed_message(item: Raw) -> Iterator[object]:
    if not names_our_key(bytes(item)):
        yield item
        return
    message = _read_message(item)
    content = bytes(message.content)
    said = attributed(content)
    if said == content:  # a key stands beside it
        yield {"role": message.role, "content": Raw(text_block(MARK))}
    for block in _read_list(b"[%b]" % said):
        yield {**_read_fields(item), "content": block}


_SHOWN_URI_CHARS = 200  # every address of ours is shorter; what was asked for may be anything
_DIAGRAMS = "emceepee://diagrams"
_STATUS = "emceepee://status"
_TRACE = "emceepee://trace"


def read_own(runtime: Runtime, uri: str) -> str:
    """The text of one of them."""
    if uri == _DIAGRAMS:
        return json.dumps({"diagrams": [asdict(diagram) for diagram in diagrams()]})
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
    page = runtime.session.state.results.page(
        uri.removeprefix(RESULTS), offset=0, limit=limit, now=runtime.clock.now()
    )
    if page.next_offset is None:
        return page.text
    text = whole_characters(page.text, max(limit - CLUSTER_CHARS, 1))
    return (
        f"{text}\n… {page.total - len(text)} characters left out: "
        f'read_resource(server="{OWN}", uri="{uri}", offset={len(text)}) has them …'
    )


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
    session.state.starting.clear()  # their phases are told here
    events = session.state.events.statistics()
    journal = runtime.journal.statistics()
    return {
        "version": __version__,
        "started_at": clock.iso(runtime.started_at),
        "uptime_ms": round((clock.now() - runtime.started_at) * 1000),
        "servers": [_server(backend.snapshot()) for backend in runtime.servers],
        "events": {"kept": events.kept, "waiting": events.waiting, "capacity": events.capacity},
        "calls_in_flight": session.state.tasks.in_flight,
        "working_tasks": len(session.state.tasks.working()),
        "tasks": {status.value: count for status, count in session.state.tasks.totals().items()},
        "pending_requests": len(session.state.requests),
        "active_timers": len(session.state.timers.all()),
        "stored_result_bytes": session.state.results.size,
        "journal": {"lines": journal.lines_written, "dropped": journal.lines_dropped},
    }
