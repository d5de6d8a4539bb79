"""The reply of a tool: content blocks, metadata, and a remark on text that imitates our own.

A backend's blocks keep their bytes. Our own are text blocks: a sentence, or one JSON object.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from emceepee_stdio.backends.exchange import COMPLETE, task_refused, type_refused
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.foreign_json import decoded, decoder, number, values_in
from emceepee_stdio.json_values import mapping
from emceepee_stdio.wire.codec import to_json

# Which addresses are ours: `emceepee:` in every spelling that somebody could take for it.


OWN = "emceepee"

_LOOKED_AT_CHARS = 1_000  # of what may stand before the scheme: blanks, spelt out or not
_DECODINGS = 3  # of `%25…`: nobody decodes more often


def is_own_uri(uri: str) -> bool:
    """Whether somebody could take an address for one of ours, however it is spelt."""
    start = uri.lstrip()[:_LOOKED_AT_CHARS]
    for _ in range(_DECODINGS):
        start = unquote(start)
    letters = unicodedata.normalize("NFKC", start)
    seen = "".join(char for char in letters if char.isprintable() and not char.isspace())
    return seen.casefold().startswith(f"{OWN}:")


# Content blocks as the protocol has them: what is one, and what to show of what is none.
#
# Blocks are checked where they lie and passed on as the bytes that they were. Clients refuse a
# whole result of which one block is none: that one becomes a text that says so. Of a block that is
# one but for something beside its content (a null, annotations of another shape), that is left out.


_BESIDE_BLOCK = {"annotations", "_meta", "title", "description", "mimeType", "size"}
_BESIDE_CONTENTS = {"_meta", "mimeType"}
_SHOWN_BYTES = 64 << 10  # of what is no content at all: enough to see what it is
_MOST_BLOCKS = 5_000  # nobody reads so many, and each costs more than its bytes do
_MENDED = 1_000  # so many at most are mended one by one: tens of milliseconds


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


class _BlockContents(msgspec.Struct, rename="camel", gc=False):
    uri: str
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET
    meta: _Object | UnsetType = msgspec.field(name="_meta", default=UNSET)

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("Object has neither `text` nor `blob`")


class _Resource(_Base, tag="resource"):
    resource: _BlockContents


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
_read_contents = msgspec.json.Decoder(_BlockContents).decode
_read_all_contents = msgspec.json.Decoder(list[_BlockContents]).decode
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
        blocks = _read_list(content) if values_in(content) <= _COMPARED_VALUES else ()
        if 0 < len(blocks) <= _MENDED:
            return b",".join(map(_mended_block, blocks))
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


# Text of servers that could be taken for ours: it is marked as the server's.
#
# Blocks of our own stand among those of a server: what happened, what waits, a task in the place of
# a result. They carry the word of the session, which no server is told. A server's block that names
# one of our keys cannot have that word, and says itself whose it is. Nothing else of a server is
# touched.


MARK = "[From the server, not from emceepee: emceepee's own blocks carry its word.]\n"
_KEYS = (
    "events_since_last_response",
    "events_remaining",
    "pending_client_action",
    "pending_on_server",
    "proxy_task",
    "stored_result",
    "saved_result",
)
# A letter of a key may be spelt as an escape.
_ESCAPE = re.compile(r"\\u00([567][0-9A-Fa-f])")
_SPELT = {
    (spelling % ord(letter)).encode(): letter.encode()
    for letter in sorted(set("".join(_KEYS)))
    for spelling in ("u00%02x", "u00%02X")
}
_LOOKED_INTO_BYTES = 256 << 10  # taking a block apart takes a millisecond for each 10 KB
_read_for_keys = decoder(object, values=_LOOKED_INTO_BYTES)


def attributed(content: bytes) -> bytes:
    """Blocks of a server, with a mark on each that could be taken for ours."""
    if not _is_suspect(content):
        return content
    if len(content) > _LOOKED_INTO_BYTES:
        return text_block(MARK) + b"," + content if _may_name_a_key(content) else content
    try:
        blocks = _read_list(b"[%b]" % content)
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
        value = to_json(_read_for_keys(json)).decode()
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
        or b"ed_result" in json  # stored, saved
        or b"\\u005" in json
        or b"\\u006" in json
        or b"\\u007" in json
    )


def _attributed(block: bytes) -> bytes:
    if not names_our_key(block):
        return block
    said = mapping(decoded(block, object))
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


# The `_meta` of a server's result, as a client may get it.
#
# It passes as the server gave it, without keys that the protocol or we ourselves speak by: those
# would be read as said by us. What is large without measure is left out.


MAX_META_BYTES = 1 << 20  # the data of a page of an App; a line to the client holds 8 times that
_OF_THE_PROTOCOL = frozenset(("modelcontextprotocol", "mcp"))
_OURS = "emceepee"

_read_keys = msgspec.json.Decoder(dict[str, Raw]).decode


def passed_meta(meta: Raw) -> Raw | None:
    """None for what is no object, too large, or empty without what is reserved."""
    if bytes(memoryview(meta)[:1]) != b"{" or len(memoryview(meta)) > MAX_META_BYTES:
        return None
    fields = _read_keys(meta)
    kept = {key: value for key, value in fields.items() if not _is_reserved(key)}
    if len(kept) == len(fields):
        return meta
    return Raw(to_json(kept)) if kept else None


def _is_reserved(key: str) -> bool:
    """By the labels of its prefix, as every version of the protocol reserves them."""
    prefix, slash, _ = key.strip().casefold().partition("/")
    labels = prefix.split(".")
    if _OURS in labels:
        return True
    return bool(slash) and not _OF_THE_PROTOCOL.isdisjoint([*labels[:-1], *labels[1:2]])


RESOURCE = "emceepee/resource"  # in `_meta` of a text block: the resource that it is from
_COMPARED_BYTES = 4 << 20  # reading more keeps others waiting; what is larger is paged anyway
_COMPARED_VALUES = 100_000  # each takes 60 bytes of memory
_EXCERPT_BYTES = 500  # shows what came instead of a tool result
_WRAPPERS = ("result", "content")
_NULL = Raw(b"null")
_TRUE = Raw(b"true")
_BESIDE_CONTENT = {"_meta", "isError", "resultType"}


class _Result(msgspec.Struct, rename="camel", omit_defaults=True):
    content: Raw | msgspec.UnsetType = msgspec.UNSET
    task: Raw | msgspec.UnsetType = msgspec.UNSET
    structured_content: Raw | msgspec.UnsetType = msgspec.UNSET
    is_error: Raw | msgspec.UnsetType = msgspec.UNSET
    result_type: Raw | msgspec.UnsetType = msgspec.UNSET
    meta: Raw | msgspec.UnsetType = msgspec.field(name="_meta", default=msgspec.UNSET)


class _TextContents(msgspec.Struct, rename="camel"):
    text: str
    uri: str | None = None
    mime_type: str | None = None
    meta: dict[str, Raw] | None = msgspec.field(name="_meta", default=None)


class _Contents(msgspec.Struct):
    contents: Raw


class _TextOfBlock(msgspec.Struct):
    text: str | None = None


_read_texts = msgspec.json.Decoder(list[_TextOfBlock]).decode
_read_text_contents = msgspec.json.Decoder(_TextContents).decode
_read_result = msgspec.json.Decoder(_Result).decode
_read_compared = decoder(object, values=_COMPARED_VALUES)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """`content` is the inside of a JSON array. A reply that is `whole` wants no context added.

    Its text is stored under `key`, if it has one, where it is too large to be shown. One that is
    `paged` was cut before, and says where it goes on: cutting it again would lose its middle. A
    `native` one is the result of an exposed tool: with its `structured` content, without context.
    Another one has that only to be read again, by a program that selects from it.
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
    def json(
        cls, value: object, *, whole: bool = False, meta: Mapping[str, object] | None = None
    ) -> "Reply":
        """One text block that holds one JSON object."""
        known = None if meta is None else Raw(to_json(meta))
        return cls(content=text_block(to_json(value).decode()), whole=whole, meta=known)

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
            raw = msgspec.json.decode(result, type=_Contents).contents
            if values_in(bytes(raw)) > _COMPARED_VALUES:
                raise CallFailed(f"{server} gave a resource of {len(bytes(result))} bytes, unread.")
            contents = _read_list(raw)
            if len(contents) > _MENDED:
                _read_all_contents(raw)
            return cls(content=attributed(b",".join(map(_held, contents))))
        except (msgspec.MsgspecError, RecursionError):
            raise CallFailed(f"{server} gave a resource without readable contents.") from None

    @classmethod
    def result(
        cls,
        result: Raw,
        *,
        server: str,
        native: bool = False,
        whole: bool = False,
        keeps_data: bool = False,
    ) -> "Reply":
        """A backend's result: its blocks untouched, structured content as text where it is news.

        A `native` one keeps structured content as that; so does one of which `keeps_data` says that
        it may be read again, for nobody to be shown.
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
            is_error=parts.is_error == _TRUE,
            meta=meta,
            native=native,
            whole=whole,
            structured=_data(structured) if keeps_data else kept,
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


def _data(structured: Raw | msgspec.UnsetType) -> Raw | None:
    if structured is msgspec.UNSET or structured == _NULL:
        return None
    return structured.copy()  # without the rest of the message


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
    if parts.result_type is not msgspec.UNSET:
        said = decoded(parts.result_type, object)
        if parts.result_type != _NULL and said != COMPLETE:
            raise type_refused(server, said, result)
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
    try:
        blocks = _read_texts(b"[%b]" % content)
    except (msgspec.MsgspecError, RecursionError):
        return False
    value = _compared(bytes(structured))
    if value is None:
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
    said = _compared(text.encode(errors="replace"))
    return said is not None and said in (value, wrapped)


def _compared(text: bytes) -> object:
    """What it says; None where it cannot be read, or reading it would take long or much memory."""
    if len(text) > _COMPARED_BYTES:
        return None
    try:
        return _read_compared(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
