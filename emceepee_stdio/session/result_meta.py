"""The `_meta` of a server's result, as a client may get it.

It passes as the server gave it, without keys that the protocol or we ourselves speak by: those
would be read as said by us. What is large without measure is left out.
"""

import msgspec
from msgspec import Raw

from emceepee_stdio.wire.codec import to_json

__all__ = ["MAX_META_BYTES", "passed_meta"]

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
