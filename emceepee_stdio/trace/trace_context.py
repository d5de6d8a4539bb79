"""`traceparent`, by the W3C's recommendation on trace context, as it stands in `_meta`."""

import re
import secrets

from msgspec import UNSET, Raw, UnsetType

__all__ = ["new_traceparent", "traceparent_in"]


_FORM = re.compile(rb'"([0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})"')
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


def traceparent_in(value: Raw | UnsetType) -> str | None:
    """What a client said, where it has the form; whatever else it is, is passed on unread."""
    found = None if value is UNSET else _FORM.fullmatch(memoryview(value))
    return None if found is None else found[1].decode()


def new_traceparent() -> str:
    """Of a trace that begins here, and is recorded."""
    return f"00-{secrets.token_hex(_TRACE_ID_BYTES)}-{secrets.token_hex(_SPAN_ID_BYTES)}-01"
