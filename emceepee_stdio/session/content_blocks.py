"""Content blocks as the protocol has them: what is one, and what to show of what is none.

Blocks are checked where they lie and passed on as the bytes that they were. Clients refuse a whole
result of which one block is none: that one becomes a text that says so.
"""

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.wire.codec import to_json

__all__ = ["mended", "sampled_problem", "text_block"]


_MENDED_COMMAS = 10_000  # so many blocks at most are mended one by one: tens of milliseconds


class _Text(msgspec.Struct, tag="text", tag_field="type", gc=False):
    text: str


class _Image(msgspec.Struct, tag="image", tag_field="type", rename="camel", gc=False):
    data: str
    mime_type: str


class _Audio(msgspec.Struct, tag="audio", tag_field="type", rename="camel", gc=False):
    data: str
    mime_type: str


class _ResourceLink(msgspec.Struct, tag="resource_link", tag_field="type", gc=False):
    uri: str
    name: str


class _Contents(msgspec.Struct, gc=False):
    uri: str
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("Object has neither `text` nor `blob`")


class _Resource(msgspec.Struct, tag="resource", tag_field="type", gc=False):
    resource: _Contents


class _ToolUse(msgspec.Struct, tag="tool_use", tag_field="type", gc=False):
    id: str
    name: str
    input: dict[str, Raw]


_Block = _Text | _Image | _Audio | _ResourceLink | _Resource


class _ToolResult(msgspec.Struct, tag="tool_result", tag_field="type", rename="camel", gc=False):
    tool_use_id: str
    content: list[_Block]


_Sampled = _Text | _Image | _Audio | _ToolUse | _ToolResult

_read_block = msgspec.json.Decoder(_Block).decode
_read_blocks = msgspec.json.Decoder(list[_Block]).decode
_read_sampled = msgspec.json.Decoder(_Sampled).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode


def text_block(text: str) -> bytes:
    return b'{"type":"text","text":%b}' % to_json(text)


def mended(content: bytes) -> bytes:
    """The inside of a list of blocks: as it came, where all of them are blocks.

    What is nested too deeply to be looked at raises RecursionError.
    """
    try:
        _read_blocks(content)
    except msgspec.MsgspecError as error:
        if content.count(b",") > _MENDED_COMMAS:
            return _said_so(content, error)
        return b",".join(map(_mended_block, _read_list(content)))
    return content[1:-1].strip()


def sampled_problem(content: Raw) -> str | None:
    """Why a model cannot have said this; None when it can: a block, or a list of them."""
    is_list = bytes(memoryview(content)[:1]) == b"["
    try:
        for block in _read_list(content) if is_list else [content]:
            _read_sampled(block)
    except (msgspec.MsgspecError, RecursionError) as error:
        return str(error)
    return None


def _mended_block(raw: Raw) -> bytes:
    try:
        _read_block(raw)
    except msgspec.MsgspecError as error:
        return _said_so(bytes(raw), error)
    return bytes(raw)


def _said_so(raw: bytes, error: msgspec.MsgspecError) -> bytes:
    shown = raw.decode(errors="replace")
    return text_block(f"The server sent something that is no content block ({error}): {shown}")
