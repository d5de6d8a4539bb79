"""What secrets look like inside text, wherever they stand in it.

Every search here takes time proportional to the text: a pattern either starts at the beginning of
a run, or takes the run whole, or is bounded. Each is preceded by a plain substring test, because
most text holds no secret at all.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from emceepee_stdio.journal.secret_names import (
    counts_things,
    holds_a_header,
    holds_a_password,
    is_secret_name,
)

__all__ = ["MARKER", "hide_private_keys", "is_plain_value", "redact_text"]

MARKER = "[redacted]"

# No pattern here matches a shorter text that is all letters and digits.
_MIN_TOKEN_CHARS = 20

_NAME_HINTS = (
    *("auth", "bearer", "cookie", "cred", "jwt", "key", "otp", "pass"),
    *("pat", "psk", "pw", "secret", "sess", "sid", "sig", "token"),
)

# A run of name characters, then what may close a quoted name, then the sign. Names of two words
# ("api key: …") are how people write them.
_ASSIGNMENT = re.compile(
    r"(?<![\w.-])"
    r"((?:(?:access|account|api|auth|encryption|private|secret|session|signing)[ ])?[\w.-]++)"
    r"[\"'\\\])]{0,5}+[ \t]*+(={1,3}>?|:=|:(?!:))[ \t]*+",
    re.IGNORECASE,
)
_FLAG = re.compile(r"(?<![\w.-])(--?[A-Za-z][\w.-]*+)([ \t]++|[\"'],[ \t]*+)(?!--)")

_STRING = re.compile(
    r"""(?s:
      "((?:[^"\\]|\\.)*+)
    | '((?:[^'\\]|\\.)*+)
    | \\["']((?:\\\\(?:\\.|[^\\])|[^\\])*+)
    | \\{2,}["']([^"'\r\n]*+)
    )""",
    re.VERBOSE,
)
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_BARE = re.compile(r"[^\s\"'&]++")
_LINE = re.compile(r"[^\r\n]++")
_LINE_UP_TO = {quote: re.compile(rf"[^\r\n{quote}]++") for quote in "\"'"}
_NO_SECRET = re.compile(r"(?:true|false|null|none|undefined)(?![\w.-])", re.IGNORECASE)
_NUMBER = re.compile(r"\d++(?:\.\d++)?(?![\w.-])")

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
    r"(?:.*?-----END [A-Z0-9 ]{0,60}-----|.*)",
    re.DOTALL,
)
# The second form is a password with an unescaped slash in it; a port is not a password.
_USERINFO = re.compile(
    r"://(?!git@)(?:[^\s/?#\"'<>\\]*@"
    r"|[^\s/?#\"'<>\\@:\[\]]{0,256}+:(?!\d{1,5}[/?#])[^\s\"'<>\\@]{0,256}+@)"
)
_PARAMETER = re.compile(r"(?<=[?&#;])([\w.\[\]%-]++)=([^&#\s\"'<>]++)")
# In an address these short names carry credentials; elsewhere they are ordinary words.
_PARAMETER_NAMES = frozenset({"code", "key", "pass", "s", "sid"})
_BEARER = re.compile(
    r"(?<![A-Za-z0-9])(bearer(?:[ \t]|%20|\+){1,4}+)"
    r"(?!(?:tokens?|auth|authentication|authorization|scheme|format)\b|[a-z_]{1,40}=\")"
    r"[^\s\"',;<>\\&]{4,}+",
    re.IGNORECASE,
)
_BASIC = re.compile(r"(?<![A-Za-z0-9])(basic[ \t]{1,4}+)([A-Za-z0-9+/_-]{4,}+)=*+", re.IGNORECASE)

# Where a token may begin: not in the middle of a word, but right after an escape.
_START = r"(?:(?<![A-Za-z0-9_-])|(?<=\\[bfnrt])|(?<=%[0-9A-Fa-f]{2}))"
# Every token below holds a run of at least this length.
_LONG_RUN = re.compile(r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]{13}")
_PREFIXES = re.split(
    r"\s+",
    "dapi dckr_pat_ doo_v1_ dop_v1_ dor_v1_ figd_ github_pat_ gho_ ghp_ ghr_ ghs_ ghu_ glcbt- "
    "gldt- glft- glpat- glptt- glrt- glsoat- gsk_ lin_api_ ntn_ nvapi- pplx- r8_ rk_live_ "
    "rk_test_ shpat_ shpca_ shppa_ shpss_ sk- sk_live_ sk_test_ sntrys_ tskey- tvly- whsec_ xai- "
    "ya29.",
)
_TOKENS = [
    (hints, re.compile(_START + pattern))
    for hints, pattern in (
        (["eyJ"], r"eyJ[A-Za-z0-9_-]{5,}+\.[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+){0,3}"),
        (_PREFIXES, rf"(?:{'|'.join(map(re.escape, _PREFIXES))})[A-Za-z0-9_-]{{16,}}+"),
        (["AKIA", "ASIA"], r"A[KS]IA[A-Z0-9]{16,}+"),
        (["AIza"], r"AIza[A-Za-z0-9_-]{30,}+"),
        (["npm_", "hf_"], r"(?:npm|hf)_[A-Za-z0-9]{30,}+"),
        (["pypi-"], r"pypi-[A-Za-z0-9_-]{30,}+"),
        (["xox", "xapp-"], r"x(?:ox[a-z]|app)-[A-Za-z0-9-]{8,}+"),
        (["SG."], r"SG\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"),
        (["AGE-SECRET"], r"AGE-SECRET-KEY-1[A-Z0-9]{30,}+"),
    )
]


def redact_text(text: str) -> str:
    """The text with every secret in it replaced by the marker."""
    if len(text) < _MIN_TOKEN_CHARS and text.isalnum():
        return text
    text = hide_private_keys(text)
    if "@" in text and "://" in text:
        text = _USERINFO.sub(f"://{MARKER}@", text)
    lower = text.lower()
    for hint in _NAME_HINTS:
        if hint in lower:
            text = _hide_named(text, lower)
            break
    if "=" in text:
        text = _PARAMETER.sub(_hide_parameter, text)
    if "basic" in lower:
        text = _BASIC.sub(_hide_basic, text)
    return _hide_tokens(text) if _LONG_RUN.search(text) else text


def hide_private_keys(text: str) -> str:
    """Each from its first line to its last; one without a last line, to the end of the text."""
    return _PRIVATE_KEY.sub(MARKER, text) if "-----BEGIN" in text else text


def is_plain_value(name: str, value: str) -> bool:
    """Whether this is no secret even under a secret name: `false`, or the 512 of `tokens`."""
    return bool(_NO_SECRET.fullmatch(value) or (counts_things(name) and _NUMBER.fullmatch(value)))


def _hide_named(text: str, lower: str) -> str:
    if ":" in text or "=" in text:
        text = _hide_spans(text, _spans(text, _ASSIGNMENT, _assigned_span))
    if "-" in text:
        text = _hide_spans(text, _spans(text, _FLAG, _flag_span))
    return _BEARER.sub(rf"\1{MARKER}", text) if "bearer" in lower else text


def _hide_tokens(text: str) -> str:
    for hints, pattern in _TOKENS:
        for hint in hints:
            if hint in text:
                text = pattern.sub(MARKER, text)
                break
    return text


def _hide_spans(text: str, spans: Iterator[tuple[int, int]]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        pieces += (text[done:start], MARKER)
        done = end
    return "".join([*pieces, text[done:]])


def _spans(
    text: str,
    pattern: re.Pattern[str],
    find: Callable[[re.Match[str]], tuple[int, int] | None],
) -> Iterator[tuple[int, int]]:
    """Where the values of secret names stand, from left to right.

    After a harmless name the search goes on at its value, which may hold a secret name in turn.
    """
    match = pattern.search(text)
    while match:
        span = find(match) if is_secret_name(match[1]) else None
        if span:
            yield span
        match = pattern.search(text, span[1] if span else match.end())


def _assigned_span(match: re.Match[str]) -> tuple[int, int] | None:
    text, start, name = match.string, match.end(), match[1]
    plain = _NO_SECRET.match(text, start) or (counts_things(name) and _NUMBER.match(text, start))
    if plain:
        return None
    if span := _delimited_span(text, start):
        return span
    if holds_a_header(name) or (match[2] == ":" and holds_a_password(name)):
        before = text[match.start() - 1 : match.start()]
        value = _LINE_UP_TO.get(before, _LINE).match(text, start)
    else:
        value = _BARE.match(text, start)
    return value.span() if value else None


def _flag_span(match: re.Match[str]) -> tuple[int, int] | None:
    text, start = match.string, match.end()
    if span := _delimited_span(text, start):
        return span
    value = _BARE.match(text, start)
    return value.span() if value else None


def _delimited_span(text: str, start: int) -> tuple[int, int] | None:
    """A quoted string without its quotes, or a whole array or object."""
    string = _STRING.match(text, start)
    if string and string.lastindex:
        return string.span(string.lastindex)
    if not text.startswith(("[", "{"), start):
        return None
    depth = 0
    for token in _BRACKET.finditer(text, start):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth == 0:
            return start, token.end()
    return start, len(text)


def _hide_parameter(match: re.Match[str]) -> str:
    name = unquote(match[1])
    secret = name.lower() in _PARAMETER_NAMES or is_secret_name(name)
    return f"{match[1]}={MARKER}" if secret and not is_plain_value(name, match[2]) else match[0]


def _hide_basic(match: re.Match[str]) -> str:
    """Hide user and password; leave `basic usage` alone."""
    try:
        pair = base64.b64decode(match[2] + "=" * (-len(match[2]) % 4), altchars=b"-_")
    except (ValueError, binascii.Error):
        return match[0]
    return match[1] + MARKER if b":" in pair else match[0]
