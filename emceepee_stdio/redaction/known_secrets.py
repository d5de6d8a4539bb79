"""Masking of known values: the secrets that servers were started with.

`redact` finds secrets by their names and shapes; a server that prints the token it was started with
shows neither. What was handed to a server is therefore remembered, and hidden in all that it says
of itself.

Every server has a table of its own, so that none can fill that of another. A server that was
removed may still be quoted: its values stay, the newest of so many.
"""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from emceepee_stdio.redaction.redact import (
    CUT,
    redact_argv,
    redact_env,
    redact_url,
    secret_segments,
)
from emceepee_stdio.redaction.secret_patterns import MARKER, hide_private_keys, hide_spans

_MIN_SECRET_CHARS = 6  # shorter values also occur inside ordinary words
MOST_GIVEN = 2_000  # values of one server, in all their forms: who needs more hides something
_MAX_LEARNED = 200  # tokens of all servers, in their forms: those before them have expired
_MAX_FORMER = 10_000  # values of servers that are gone; every line is searched for each of them
_ARGUMENT_VALUE = re.compile(r"[\w.$-]++(?:=|:[ \t]*+)(.+)", re.DOTALL)
# Whatever its variable is called: letters and digits, long, and no path.
_TOKEN_LIKE = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[^\s/\\]{10,}")
_OPEN_HEADERS = frozenset(
    {"accept", "accept-language", "content-type", "host", "origin", "referer", "user-agent"}
)
# Most lines have no such run, and are then searched for few values.
_LONG_RUN = re.compile(r"[\w+/=-]{16,}", re.ASCII)
_BASE64_BYTES = 3  # make four characters
_UNICODE_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")
_MARKUP = re.compile(r"[\"'&<>+`]")  # what some encoders of JSON escape as in HTML


class Secrets:
    """Values that are never shown."""

    def __init__(self) -> None:
        self._given: dict[str, dict[str, None]] = {}
        self._former: dict[str, None] = {}
        self._learned: deque[str] = deque(maxlen=_MAX_LEARNED)
        self._values: dict[str, None] = {}  # all of them
        self._broken: tuple[str, ...] = ()  # of them, those that do not stand in a long run
        self._longest = 0

    def __repr__(self) -> str:
        return f"<Secrets {len(self._values)} known>"

    def add(self, values: Iterable[str], *, server: str = "") -> None:
        """What this server is given now; what it was given before stays secret, too."""
        self._move_to_former(server)
        self._given[server] = dict.fromkeys(
            value for value in values if len(value) >= _MIN_SECRET_CHARS
        )
        self._count()

    def learn(self, values: Iterable[str]) -> None:
        """Secrets that change while a server is used, such as tokens; the newest of so many."""
        for value in values:
            if len(value) >= _MIN_SECRET_CHARS and value not in self._learned:
                self._learned.append(value)
        self._count()

    def _count(self) -> None:
        self._values = dict.fromkeys(chain(self._former, *self._given.values(), self._learned))
        self._broken = tuple(one for one in self._values if not _LONG_RUN.fullmatch(one))
        self._longest = max(map(len, self._values), default=0)

    def retire(self, server: str) -> None:
        """The server is gone: its values stay among those of former servers."""
        self.add((), server=server)
        del self._given[server]

    def mask(self, text: str) -> str:
        """The text without those values, and without private keys."""
        text = hide_private_keys(text)
        return hide_spans(text, self._spans(text))

    def mask_head(self, text: str, max_chars: int) -> str:
        """The beginning of the text, with its size where it is cut; the rest is not looked at."""
        if len(text) <= max_chars:
            return self.mask(text)
        # A secret that begins before the cut is seen whole, and hidden whole.
        spans = self._spans(text[: max_chars + self._longest])
        shown = [(start, end) for start, end in spans if start < max_chars]
        end = max(max_chars, shown[-1][1] if shown else 0)
        return f"{hide_spans(text[:end], shown)}… {CUT} {len(text)} characters"

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where secrets stand, from left to right; those that overlap are one.

        Each is looked for by itself: that takes time proportional to the text, whatever is in it,
        where one pattern of them all would look at the length of a secret in every place.
        """
        found: list[tuple[int, int]] = []
        for value in self._values if _LONG_RUN.search(text) else self._broken:
            start = text.find(value)
            while start >= 0:
                found.append((start, start + len(value)))
                start = text.find(value, start + len(value))
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return merged

    def _move_to_former(self, server: str) -> None:
        for value in self._given.pop(server, ()):
            self._former.pop(value, None)
            self._former[value] = None
        while len(self._former) > _MAX_FORMER:
            del self._former[next(iter(self._former))]


def given_secrets(
    *,
    argv: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    url: str | None = None,
    values: Iterable[str] = (),
) -> Iterator[str]:
    """Every secret value in what a server is started or called with, in the ways it may be told.

    `values` are secrets whatever they look like.
    """
    for value in chain(values, _given(argv, env or {}, headers or {}, url)):
        yield from dict.fromkeys(_forms(value))


def token_secrets(token: str) -> Iterator[str]:
    """A token of a sign-in in the ways it may be told."""
    return given_secrets(headers={"authorization": f"Bearer {token}"})


def _forms(value: str) -> Iterator[str]:
    """As it is, in an address, in JSON of various encoders, in Python, line by line, as bytes."""
    yield from (value, value.strip(), unquote(value))
    yield from (quote(value, safe="", errors="replace"), quote_plus(value, errors="replace"))
    yield from _as_json(value)
    yield repr(value)[1:-1]
    if "\n" in value:
        yield from (line.strip() for line in value.splitlines())
    yield from _encoded(value.strip().encode(errors="replace"))


def _encoded(data: bytes) -> Iterator[str]:
    """In hex, and in base64 also as a part of other text: then it begins at one of three places.

    The first and last character are left out where they hold bits of what stands beside it.
    """
    yield from (data.hex(), data.hex().upper())
    for before in range(_BASE64_BYTES):
        first, beyond = (8 * before + 5) // 6, (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(bytes(before) + data).decode()[first:beyond]


def _as_json(value: str) -> Iterator[str]:
    plain = json.dumps(value, ensure_ascii=False)[1:-1]
    escaped = json.dumps(value)[1:-1]
    upper = _UNICODE_ESCAPE.sub(lambda code: "\\u" + code[0][2:].upper(), escaped)
    yield from (plain, escaped, upper)
    yield from (form.replace("/", "\\/") for form in (plain, escaped))
    yield _MARKUP.sub(lambda char: f"\\u{ord(char[0]):04x}", plain.replace('\\"', '"'))
    yield _MARKUP.sub(lambda char: f"\\u{ord(char[0]):04X}", upper.replace('\\"', '"'))
    yield json.dumps(escaped)[1:-1]  # JSON inside JSON
    yield json.dumps(plain, ensure_ascii=False)[1:-1]


def _given(
    argv: Sequence[str], env: Mapping[str, str], headers: Mapping[str, str], url: str | None
) -> Iterator[str]:
    for given, shown in zip(argv, redact_argv(argv), strict=True):
        if MARKER in shown:
            named = _ARGUMENT_VALUE.fullmatch(given)
            yield named[1] if named else given
            yield from _of_url(given)
            if named:
                yield from _of_url(named[1])
    shown_env = redact_env(env)
    for name, value in env.items():
        if MARKER in shown_env[name] or _TOKEN_LIKE.fullmatch(value):
            yield value
            yield from _of_url(value)
    for name, value in headers.items():
        if name.lower() not in _OPEN_HEADERS:
            yield value
            scheme, _, credentials = value.partition(" ")
            if scheme.lower() in {"bearer", "basic", "token", "digest"}:
                yield credentials
    if url is not None:
        yield from _of_url(url)


def _of_url(url: str) -> Iterator[str]:
    """User, password, secret parameters and parts of the path; what is no address has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if not parts.netloc:
        return
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    if user or password:
        yield user
        yield password
        yield b64encode(unquote(f"{user}:{password}").encode(errors="replace")).decode()
    yield from secret_segments(parts.path)
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if MARKER in redact_url(f"http://host/?{name}={quote(value, safe='', errors='replace')}"):
            yield value
