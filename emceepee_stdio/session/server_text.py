"""Text of servers that could be taken for ours: it is marked as the server's.

Blocks of our own stand among those of a server: what happened, what waits, a task in the place of a
result. They carry the word of the session, which no server is told. A server's block that names one
of our keys cannot have that word, and says itself whose it is. Nothing else of a server is touched.
"""

import re

import msgspec
from msgspec import Raw

from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.content_blocks import text_block
from emceepee_stdio.wire.codec import to_json

__all__ = ["MARK", "attributed", "attributed_text", "marked", "names_our_key"]

MARK = "[From the server, not from emceepee: emceepee's own blocks carry its word.]\n"
_KEYS = (
    "events_since_last_response",
    "events_remaining",
    "pending_client_action",
    "pending_on_server",
    "proxy_task",
    "stored_result",
)
# A letter of a key may be spelt as an escape.
_ESCAPE = re.compile(r"\\u00([567][0-9A-Fa-f])")
_SPELT = {
    (spelling % ord(letter)).encode(): letter.encode()
    for letter in sorted(set("".join(_KEYS)))
    for spelling in ("u00%02x", "u00%02X")
}
_LOOKED_INTO_BYTES = 256 << 10  # taking a block apart takes a millisecond for each 10 KB


def attributed(content: bytes) -> bytes:
    """Blocks of a server, with a mark on each that could be taken for ours."""
    if not _is_suspect(content):
        return content
    if len(content) > _LOOKED_INTO_BYTES:
        return text_block(MARK) + b"," + content if _may_name_a_key(content) else content
    try:
        blocks = msgspec.json.decode(b"[%b]" % content, type=list[Raw])
    except (msgspec.MsgspecError, RecursionError):
        return text_block(MARK) + b"," + content
    return b",".join(_attributed(bytes(block)) for block in blocks)


def names_our_key(json: bytes) -> bool:
    """Whether what a server says names one of our keys, however it is spelt; in doubt it does."""
    if not _is_suspect(json):
        return False
    if len(json) > _LOOKED_INTO_BYTES:
        return _may_name_a_key(json)
    try:
        value = to_json(decode_value(json)).decode()
        return _names_a_key(value) or _names_a_key(json.decode())
    except (msgspec.MsgspecError, RecursionError, ValueError):  # too deep, or too long a number
        return True


def attributed_text(text: str) -> str:
    return marked(text) if _names_a_key(text) else text


def marked(text: str) -> str:
    return text if text.startswith(MARK) else MARK + text


def _is_suspect(json: bytes) -> bool:
    """Cheap first: every key has an underscore, plain or spelt as an escape."""
    if b"_" not in json and b"\\u005" not in json:
        return False
    return (
        b"events_" in json
        or b"pending_" in json
        or b"proxy_task" in json
        or b"stored_result" in json
        or b"\\u005" in json
        or b"\\u006" in json
        or b"\\u007" in json
    )


def _attributed(block: bytes) -> bytes:
    if not names_our_key(block):
        return block
    try:
        said = mapping(decode_value(block))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        said = mapping(None)
    if said.get("type") == "text" and isinstance(text := said.get("text"), str):
        fields = msgspec.json.decode(block, type=dict[str, Raw])
        return to_json({**fields, "text": marked(text)})
    return text_block(MARK) + b"," + block


def _may_name_a_key(content: bytes) -> bool:
    """The same for what is too long to be taken apart; in doubt it does."""
    bare = content.translate(None, b"\\")
    if b"u00" in bare:
        for spelling, letter in _SPELT.items():
            bare = bare.replace(spelling, letter)
    return any(key.encode() in bare for key in _KEYS)


def _names_a_key(text: str) -> bool:
    if len(text) > _LOOKED_INTO_BYTES:
        return _may_name_a_key(text.encode(errors="replace"))
    if "\\u00" in text:
        text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    return any(key in text for key in _KEYS)
