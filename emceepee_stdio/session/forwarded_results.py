"""Results of resources/read and prompts/get, as their server gave them but for what is ours.

A text that could be taken for one of ours is marked as the server's, as in the result of a tool;
before what holds no text a mark is put. So is whatever is labelled with an address of ours.
"""

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw

from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.session.content_blocks import text_block
from emceepee_stdio.session.own_uris import is_own_uri
from emceepee_stdio.session.result_meta import passed_meta
from emceepee_stdio.session.server_text import MARK, attributed, marked, names_our_key
from emceepee_stdio.wire.codec import to_json

__all__ = ["Fields", "prompt_fields", "resource_fields"]

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
