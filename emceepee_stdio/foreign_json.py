"""Decodes JSON that a server, a client or a file wrote, at a bounded cost.

msgspec takes 20 µs and more for a number such as `1e308`, and a long integer costs the square of
its length: a few megabytes of them stop the event loop for half a minute. So the standard library
reads the floats, and integers that nothing in the protocol needs are refused before decoding. So is
what holds more values than can be read while others wait: the bulk of a message stays `Raw`.

A field that is typed as `float` does not go through this: type it as `Raw` and call `number`.
"""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

T = TypeVar("T")

MAX_VALUES = 20_000  # about 10 ms to read; nothing in the protocol but lists and results has more
_MAX_DIGITS = 100  # a 300-bit integer; every real id, count and timestamp is far shorter
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_RUN = b"0" * (_MAX_DIGITS + 1)
# A string that never ends is one match, too: else each quote in it would be tried anew.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)
_LONG_INTEGER = re.compile(rb"(?<![\d.])\d{%d,}+(?![.eE])" % (_MAX_DIGITS + 1))


def decoder(kind: type[T], *, values: int = MAX_VALUES) -> Callable[[bytes | str | Raw], T]:
    """A function that decodes JSON as this type; what it cannot read raises a MsgspecError."""
    decode_checked = envelope_decoder(kind)

    def decode_foreign(data: bytes | str | Raw) -> T:
        text = data.encode(errors="replace") if isinstance(data, str) else bytes(data)
        if len(text) > values and values_in(text) > values:
            raise msgspec.ValidationError(f"Expected at most {values:,} values")
        _refuse_long_integers(text)
        return decode_checked(data)

    return decode_foreign


def envelope_decoder(kind: type[T]) -> Callable[[bytes | str | Raw], T]:
    """As `decoder`, where the bulk stays `Raw`: long integers in it are passed on as they are."""
    return msgspec.json.Decoder(kind, float_hook=_finite).decode


def values_in(text: bytes) -> int:
    """About how many values it holds, without reading it."""
    found = text.count(b",") + text.count(b"[") + text.count(b"{")
    if found <= MAX_VALUES:
        return found  # at most: strings may hold such characters, too
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * MAX_VALUES:
        return found
    outside = b"".join(bare.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def decoded(data: bytes | str | Raw, kind: type[T]) -> T | None:
    """The JSON as this type, or None if it cannot be read as such."""
    try:
        return _decoder_of(kind, decoder)(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def opened(data: bytes | str | Raw, kind: type[T]) -> T | None:
    """The same where the bulk stays `Raw`."""
    try:
        return _decoder_of(kind, envelope_decoder)(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


@cache
def _decoder_of(
    kind: type[T], make: Callable[[type[T]], Callable[[bytes | str | Raw], T]]
) -> Callable[[bytes | str | Raw], T]:
    return make(kind)


def _finite(text: str) -> float:
    """The standard library makes infinity of a number that no float can hold; msgspec refuses."""
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number out of range")
    return value


def _refuse_long_integers(text: bytes) -> None:
    # Most data ends here, and this takes 2 ms for a megabyte; strings may hold such a run, too.
    if len(text) <= _MAX_DIGITS or _LONG_RUN not in text.translate(_DIGITS_AS_ZEROS):
        return
    if _LONG_INTEGER.search(_STRING.sub(b"", text)):
        raise msgspec.DecodeError(f"JSON has an integer of more than {_MAX_DIGITS} digits")


decode_value = decoder(object)
decode_object = decoder(dict[str, object])


def number(raw: Raw | UnsetType) -> int | float | None:
    """The number that it is; None where it is absent or null, and a ValidationError otherwise."""
    value = None if raw is UNSET else decode_value(raw)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise msgspec.ValidationError("Expected a number")
    return value
