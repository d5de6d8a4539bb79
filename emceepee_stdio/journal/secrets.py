"""Secrets that are known to the letter: what servers are given, wherever they may repeat it.

`redact` finds secrets by their names and shapes; a server that prints the token it was started with
shows neither. What was handed to a server is therefore remembered, and hidden in all that it says
of itself.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from emceepee_stdio.journal.redact import CUT, redact_argv, redact_env, redact_url
from emceepee_stdio.journal.secret_patterns import MARKER

__all__ = ["Secrets", "given_secrets"]

_MIN_SECRET_CHARS = 6  # shorter values also occur inside ordinary words
_MAX_SECRETS = 10_000  # bounds the pattern that every line is searched with
_ARGUMENT_VALUE = re.compile(r"[\w.$-]++(?:=|:[ \t]*+)(.+)", re.DOTALL)
# Whatever its variable is called: letters and digits, long, and no path.
_TOKEN_LIKE = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[^\s/\\]{10,}")
_OPEN_HEADERS = frozenset(
    {"accept", "accept-language", "content-type", "host", "origin", "referer", "user-agent"}
)


class Secrets:
    """Values that are never shown. What was once secret stays so."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._longest = 0

    def __repr__(self) -> str:
        return f"<Secrets {len(self._values)} known>"

    def add(self, values: Iterable[str]) -> None:
        for value in values:
            if len(value) >= _MIN_SECRET_CHARS and len(self._values) < _MAX_SECRETS:
                self._values[value] = None
                self._longest = max(self._longest, len(value))

    def mask(self, text: str) -> str:
        spans = self._spans(text)
        return _hidden(text, spans) if spans else text

    def mask_head(self, text: str, max_chars: int) -> str:
        """The beginning of the text, with its size where it is cut; the rest is not looked at."""
        if len(text) <= max_chars:
            return self.mask(text)
        # A secret that begins before the cut is seen whole, and hidden whole.
        spans = self._spans(text[: max_chars + self._longest])
        shown = [(start, end) for start, end in spans if start < max_chars]
        end = max(max_chars, shown[-1][1] if shown else 0)
        return f"{_hidden(text[:end], shown)}… {CUT} {len(text)} characters"

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where secrets stand, from left to right; those that overlap are one.

        Each is looked for by itself: that takes time proportional to the text, whatever is in it,
        where one pattern of them all would look at the length of a secret in every place.
        """
        found: list[tuple[int, int]] = []
        for value in self._values:
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


def _hidden(text: str, spans: Sequence[tuple[int, int]]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        pieces += (text[done:start], MARKER)
        done = end
    return "".join([*pieces, text[done:]])


def given_secrets(
    *,
    argv: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    url: str | None = None,
) -> Iterator[str]:
    """Every secret value in what a server is started or called with, in the ways it may be told."""
    for value in _given(argv, env or {}, headers or {}, url):
        yield from dict.fromkeys((value, value.strip(), unquote(value), quote(value, safe="")))


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
    """User, password and secret parameters; an address that cannot be taken apart has none."""
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
        yield b64encode(unquote(f"{user}:{password}").encode()).decode()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if MARKER in redact_url(f"http://host/?{name}={quote(value, safe='')}"):
            yield value
