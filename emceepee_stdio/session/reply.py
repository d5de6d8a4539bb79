"""What a tool answers: content blocks as JSON, ready for the wire, and what belongs with them.

A backend's blocks keep their bytes. Our own are text blocks: a sentence, or one JSON object.
"""

from dataclasses import dataclass, replace

import msgspec
from msgspec import Raw

from emceepee_stdio.backends.result_types import COMPLETE, task_refused, type_refused
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.foreign_json import decode_value, envelope_decoder
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.content_blocks import mended, text_block
from emceepee_stdio.session.own_uris import is_own_uri
from emceepee_stdio.session.result_meta import MAX_META_BYTES, passed_meta
from emceepee_stdio.session.server_text import attributed, attributed_text, marked, names_our_key
from emceepee_stdio.wire.codec import to_json

__all__ = ["RESOURCE", "Reply"]

RESOURCE = "emceepee/resource"  # in `_meta` of a text block: the resource that it is from
_COMPARED_BYTES = 4 << 20  # reading more keeps others waiting; what is larger is paged anyway
_COMPARED_COMMAS = 100_000  # each may stand for a value, which takes 60 bytes of memory
_EXCERPT_BYTES = 500  # shows what came instead of a tool result
_WRAPPERS = ("result", "content")
_NULL = Raw(b"null")
_BESIDE_CONTENT = {"_meta", "isError", "resultType"}


class _Result(msgspec.Struct, rename="camel", omit_defaults=True):
    content: Raw | msgspec.UnsetType = msgspec.UNSET
    task: Raw | msgspec.UnsetType = msgspec.UNSET
    structured_content: Raw | msgspec.UnsetType = msgspec.UNSET
    is_error: object = False
    result_type: object = None
    meta: Raw | msgspec.UnsetType = msgspec.field(name="_meta", default=msgspec.UNSET)


class _TextContents(msgspec.Struct, rename="camel"):
    text: str
    uri: str | None = None
    mime_type: str | None = None
    meta: dict[str, Raw] | None = msgspec.field(name="_meta", default=None)


class _Contents(msgspec.Struct):
    contents: list[Raw]


class _TextOfBlock(msgspec.Struct):
    text: object = None


_read_texts = envelope_decoder(list[_TextOfBlock])
_read_text_contents = msgspec.json.Decoder(_TextContents).decode
_read_result = envelope_decoder(_Result)
_read_keys = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`content` is the inside of a JSON array. A reply that is `whole` wants no context added.

    Its text is stored under `key`, if it has one, where it is too large to be shown. One that is
    `paged` was cut before, and says where it goes on: cutting it again would lose its middle. A
    `native` one is the result of an exposed tool: with its `structured` content, without context.
    """

    content: bytes = b""
    is_error: bool = False
    meta: Raw | None = None
    whole: bool = False
    paged: bool = False
    key: str | None = None
    native: bool = False
    structured: Raw | None = None

    @property
    def size(self) -> int:
        return len(self.content)

    @classmethod
    def text(cls, *texts: str, is_error: bool = False) -> "Reply":
        return cls(content=b",".join(map(text_block, texts)), is_error=is_error)

    @classmethod
    def json(cls, value: object, *, whole: bool = False) -> "Reply":
        """One text block that holds one JSON object."""
        return cls(content=text_block(to_json(value).decode()), whole=whole)

    @classmethod
    def sentence(cls, sentence: str, value: object) -> "Reply":
        """A sentence to read, then the facts to use."""
        return cls(content=text_block(sentence) + b"," + text_block(to_json(value).decode()))

    @classmethod
    def error(cls, error: ProxyError, *, native: bool = False) -> "Reply":
        return cls(content=text_block(attributed_text(str(error))), is_error=True, native=native)

    @classmethod
    def contents(cls, result: Raw, *, server: str) -> "Reply":
        """What a resource holds: text as text, anything else embedded as it came."""
        try:
            contents = msgspec.json.decode(result, type=_Contents).contents
            return cls(content=attributed(b",".join(map(_held, contents))))
        except (msgspec.MsgspecError, RecursionError):
            raise CallFailed(f"{server} gave a resource without readable contents.") from None

    @classmethod
    def result(cls, result: Raw, *, server: str, native: bool = False) -> "Reply":
        """A backend's result: its blocks untouched, structured content as text where it is news.

        A `native` one keeps structured content as that.
        """
        try:
            parts = _read_result(result)
            content = _inside(parts.content, server=server)
        except RecursionError:
            raise CallFailed(f"{server} gave a result that is nested too deeply.") from None
        except msgspec.MsgspecError:
            shown = bytes(memoryview(result)[:_EXCERPT_BYTES]).decode(errors="replace")
            raise CallFailed(f"{server} gave a result that is no tool result: {shown}") from None
        structured = parts.structured_content
        kept = _kept_as_is(structured) if native else None
        if structured is not msgspec.UNSET:
            content = content if kept else _with_structured(content, structured)
        elif parts.content is msgspec.UNSET:
            content = _without_content(result, parts, server=server)
        content, meta = attributed(content), None
        if parts.meta is not msgspec.UNSET:
            meta = passed_meta(parts.meta)
            content = _with_lost_meta(content, parts.meta)
        return cls(
            content=content,
            is_error=parts.is_error is True,
            meta=meta,
            native=native,
            structured=kept,
        )

    def as_text(self) -> "Reply":
        """The same with its structured content among the blocks."""
        if self.structured is None:
            return self
        content = attributed(_with_structured(self.content, self.structured))
        return replace(self, content=content, structured=None)


def _kept_as_is(structured: Raw | msgspec.UnsetType) -> Raw | None:
    """Clients refuse a result whose `structuredContent` is null.

    What could be taken for ours has to be marked. No mark fits into data that somebody reads by a
    schema, and some clients show a model nothing beside it: it becomes a text, which is marked.
    """
    if structured is msgspec.UNSET or bytes(memoryview(structured)[:1]) != b"{":
        return None
    return None if names_our_key(bytes(structured)) else structured


def _with_lost_meta(content: bytes, meta: Raw) -> bytes:
    """A word on what is too large to be passed on."""
    if (size := len(memoryview(meta))) <= MAX_META_BYTES:
        return content
    note = f"The _meta of the result has {size} bytes; more than {MAX_META_BYTES} are left out."
    return content + b"," + text_block(note) if content else text_block(note)


def _held(contents: Raw) -> bytes:
    """A host shows text best as text; what else the resource is goes with it."""
    try:
        held = _read_text_contents(contents)
    except msgspec.MsgspecError:
        return mended(b'[{"type":"resource","resource":%b}]' % bytes(contents))
    text = marked(held.text) if held.uri is not None and is_own_uri(held.uri) else held.text
    about = {"uri": held.uri, "mimeType": held.mime_type}
    known = {name: value for name, value in about.items() if value is not None}
    meta = {**(held.meta or {}), RESOURCE: known}
    return to_json({"type": "text", "text": text, "_meta": meta})


def _inside(content: Raw | msgspec.UnsetType, *, server: str) -> bytes:
    if content is msgspec.UNSET:
        return b""
    raw = bytes(content).strip()
    if raw == b"null":
        return b""
    if not raw.startswith(b"["):
        raise CallFailed(f"{server} gave a result whose content is no list of blocks.")
    return mended(raw)


def _without_content(result: Raw, parts: _Result, *, server: str) -> bytes:
    """What came in place of content must not look like a success without a word."""
    if parts.task is not msgspec.UNSET:
        raise task_refused(server, parts.task)
    if parts.result_type not in (None, COMPLETE):
        raise type_refused(server, parts.result_type, result)
    if not _read_keys(result).keys() - _BESIDE_CONTENT:
        return b""
    return text_block(f"The server sent a result without content: {bytes(result).decode()}")


def _with_structured(content: bytes, structured: Raw) -> bytes:
    """Some clients show a model nothing but structured content: it becomes a text block."""
    if structured == _NULL or _says(content, structured):
        return content
    block = text_block(bytes(structured).decode())
    return content + b"," + block if content else block


def _says(content: bytes, structured: Raw) -> bool:
    """Whether a text is the same value. What cannot be read or compared is not the same."""
    if _is_much(bytes(structured)):
        return False
    try:
        value = decode_value(structured)
        blocks = _read_texts(b"[%b]" % content)
    except (msgspec.MsgspecError, RecursionError):
        return False
    wrapped = _wrapped(value)
    return any(_is_text_of(block.text, value, wrapped) for block in blocks)


def _wrapped(value: object) -> object:
    """What SDKs and servers put alone into an object, because structured content has to be one."""
    fields = mapping(value)
    return (
        next((fields[key] for key in _WRAPPERS if key in fields), None)
        if len(fields) == 1
        else None
    )


def _is_text_of(text: object, value: object, wrapped: object) -> bool:
    if not isinstance(text, str):
        return False
    if text == wrapped:
        return True
    if _is_much(text.encode(errors="replace")):
        return False
    try:
        said = decode_value(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return said == value or (wrapped is not None and said == wrapped)


def _is_much(text: bytes) -> bool:
    """Whether reading it would take long, or much memory."""
    return len(text) > _COMPARED_BYTES or text.count(b",") > _COMPARED_COMMAS
