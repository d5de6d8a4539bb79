"""Content blocks as the protocol has them: what is one, and what to show of what is none.

Blocks are checked where they lie and passed on as the bytes that they were. Clients refuse a whole
result of which one block is none: that one becomes a text that says so. Of a block that is one but
for something beside its content (a null, annotations of another shape), that is left out.
"""

from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.foreign_json import number
from emceepee_stdio.wire.codec import to_json

__all__ = ["mended", "sampled_problem", "text_block"]

_BESIDE_BLOCK = {"annotations", "_meta", "title", "description", "mimeType", "size"}
_BESIDE_CONTENTS = {"_meta", "mimeType"}
_SHOWN_BYTES = 64 << 10  # of what is no content at all: enough to see what it is
_MOST_BLOCKS = 5_000  # nobody reads so many, and each costs more than its bytes do
_MENDED_COMMAS = 10_000  # so many blocks at most are mended one by one: tens of milliseconds


class _Object(msgspec.Struct, gc=False):
    """Any object: what it holds is passed over, however much it is."""


class _Annotations(msgspec.Struct, rename="camel", gc=False):
    priority: Raw | UnsetType = UNSET  # typed as a float, its value could take 20 µs to read
    last_modified: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.priority is not UNSET and not _is_share(self.priority):
            raise ValueError("Expected `priority` from 0 to 1")


def _is_share(raw: Raw) -> bool:
    try:
        value = number(raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return value is not None and 0 <= value <= 1


class _Base(msgspec.Struct, kw_only=True, rename="camel", tag_field="type", gc=False):
    annotations: _Annotations | UnsetType = UNSET
    meta: _Object | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _Text(_Base, tag="text"):
    text: str


class _Image(_Base, tag="image"):
    data: str
    mime_type: str


class _Audio(_Base, tag="audio"):
    data: str
    mime_type: str


class _ResourceLink(_Base, tag="resource_link"):
    uri: str
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET


class _Contents(msgspec.Struct, rename="camel", gc=False):
    uri: str
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET
    meta: _Object | UnsetType = msgspec.field(name="_meta", default=UNSET)

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("Object has neither `text` nor `blob`")


class _Resource(_Base, tag="resource"):
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
_read_contents = msgspec.json.Decoder(_Contents).decode
_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def text_block(text: str) -> bytes:
    return b'{"type":"text","text":%b}' % to_json(text)


def mended(content: bytes) -> bytes:
    """The inside of a list of blocks: as it came, where all of them are blocks.

    What is nested too deeply to be looked at raises RecursionError.
    """
    try:
        count = len(_read_blocks(content))
    except msgspec.MsgspecError as error:
        if content.count(b",") <= _MENDED_COMMAS:
            return b",".join(map(_mended_block, _read_list(content)))
        if not any(f".{name}" in str(error) for name in _BESIDE_BLOCK):
            cut = f"{error}; cut from {len(content)} bytes"
            return _said_so(content[:_SHOWN_BYTES], cut)
        count = content.count(b'"type"')
    if count > _MOST_BLOCKS:
        return _said_so(content, f"but {count} of them")
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
        return _trimmed_block(raw) or _said_so(bytes(raw), str(error))
    return bytes(raw)


def _said_so(raw: bytes, why: str) -> bytes:
    shown = raw.decode(errors="replace")
    return text_block(f"The server sent something that is no content block ({why}): {shown}")


def _trimmed_block(raw: Raw) -> bytes | None:
    """The block without what is wrong beside its content; None where the content is."""
    try:
        fields = _read_fields(raw)
        if "resource" in fields:
            contents = _read_fields(fields["resource"])
            fields["resource"] = _trimmed(contents, _BESIDE_CONTENTS, _read_contents)
        return bytes(_trimmed(fields, _BESIDE_BLOCK, _read_block))
    except msgspec.MsgspecError:
        return None


def _trimmed(fields: dict[str, Raw], beside: set[str], read: Callable[[bytes], object]) -> Raw:
    """Each field that is beside the content is kept if it is valid there."""
    content = {key: value for key, value in fields.items() if key not in beside}
    if "mimeType" in fields and not _reads(content, read):
        content["mimeType"] = fields["mimeType"]  # of an image it is no side issue
    read(to_json(content))
    kept = {
        key: value
        for key, value in fields.items()
        if key in content or _reads({**content, key: value}, read)
    }
    return Raw(to_json(kept))


def _reads(fields: dict[str, Raw], read: Callable[[bytes], object]) -> bool:
    try:
        read(to_json(fields))
    except msgspec.MsgspecError:
        return False
    return True
