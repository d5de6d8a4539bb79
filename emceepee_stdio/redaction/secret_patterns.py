"""Secrets by their form: patterns of tokens, names of keys, private keys; `redact_text` hides them.

Such a key is known by its first line only. So each source of lines has a `PrivateKeyLines`, which
remembers that a key has begun. It forgets that after the last line of the
key, after more lines than any key has, and after some lines in which there is nothing of a key: the
words "-----BEGIN PRIVATE KEY-----" in a message must not hide the log that follows.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from urllib.parse import unquote

# Which names mean a secret: `GITHUB_TOKEN`, `x-api-key`, `clientSecret`; and which only sound so.
#
# A name is read as words, so that its spelling does not matter and `secretary` is not a secret.
# When a name is in doubt it counts as secret: a hidden page number costs less than a shown
# password.


# The end of a name says the most; a name longer than this is data.
_MAX_NAME_CHARS = 200

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


_SECRET_WORDS = frozenset(
    _words(
        "auths bearer cookie cookies credential credentials creds jwt jwts otp passcode passkey "
        "passphrase passphrases passwd password passwords psk pw pwd pws secret secrets sig "
        "signature signatures token tokens totp"
    )
)
# These say it only at the end of a name: `DB_PASS` and `npm_auth`, not `pass_env` and `auth_type`.
_SECRET_LAST_WORDS = frozenset({"auth", "pass", "pat", "sid"})
_SECRET_ENDINGS = tuple(
    _words(
        "accesskey apikey authorization cookie credential credentials passphrase passwd password "
        "privatekey pwd secret secretkey sessid sessionid token tokens"
    )
)
_KEY_OWNERS = frozenset(
    _words(
        "access account api app auth encryption license master private secret service shared "
        "signing ssh subscription"
    )
)
_HARMLESS_KEYS = frozenset(_words("cache foreign idempotency partition primary public sort unique"))

# What follows the secret word when the name speaks about the secret and does not hold it.
_ABOUT_LAST_WORDS = frozenset(
    _words(
        "at budget count counts dir enabled endpoint env expired expires expiry field file files "
        "header in kind length limit limits methods name names param path per policy remaining "
        "required second server servers size supported ttl type types uri uris url urls usage used "
        "var variable"
    )
)
# What precedes `token` when it is a piece of text or a place in a list.
_TOKEN_KINDS = _words(
    "audio cached completion context continuation eos input max min num output page progress "
    "prompt reasoning stop thinking total"
)
_TEXT_TOKENS = frozenset(
    {kind + ending for kind in _TOKEN_KINDS for ending in ("token", "tokens")}
    | {"tokencount", "tokenlimit", "tokentype", "tokenusage"}
)
# What nobody calls a secret by: `AWS_REGION`, `model`.
_SETTING_LAST_WORDS = frozenset(
    _words(
        "arch channel charset date domain edition encoding engine env environment format host "
        "hostname lang language level locale location mode model platform port provider region "
        "stage theme timezone transport tz version zone"
    )
)


def is_setting_name(name: str) -> bool:
    """Whether the name says that what stands under it is no secret."""
    words = _words(name)
    return bool(words) and words[-1] in _SETTING_LAST_WORDS and not is_secret_name(name)


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name is to be hidden."""
    return _is_secret(name[-_MAX_NAME_CHARS:])


def counts_things(name: str) -> bool:
    """Whether a number under this name is a count: `tokens: 512`, `pass: 12`."""
    words = _words(name)
    return bool(words) and words[-1].endswith("s")


def holds_a_header(name: str) -> bool:
    """Whether the value runs to the end of the line, as headers with spaces in them do."""
    return any(word.endswith(("authorization", "cookie")) for word in _words(name))


def holds_a_password(name: str) -> bool:
    """Whether a person may have chosen the value, spaces and all."""
    return any(
        word.startswith("pass") or word == "pw" or word.endswith(("password", "pwd"))
        for word in _words(name)
    )


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    words = _words(name)
    if not words or words[-1] in _ABOUT_LAST_WORDS or "".join(words) in _TEXT_TOKENS:
        return False
    pairs = list(pairwise(words))
    if words[-1] in {"token", "tokens"} and len(words) > 1 and words[-2] in _TOKEN_KINDS:
        return False
    return (
        words[-1] in _SECRET_LAST_WORDS
        or any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words)
        or ("session", "id") in pairs
        or any(owner in _KEY_OWNERS and key in {"key", "keys"} for owner, key in pairs)
        or _is_key_of_a_service(name, words)
    )


def _is_key_of_a_service(name: str, words: list[str]) -> bool:
    """`OPENAI_KEY`: in the environment a key is a credential unless it is known not to be."""
    return (
        name.isupper()
        and len(words) > 1
        and words[-1] in {"key", "keys"}
        and words[-2] not in _HARMLESS_KEYS
    )


# What secrets look like inside text, wherever they stand in it.
#
# Every search here takes time proportional to the text: a pattern either starts at the beginning of
# a run, or takes the run whole, or is bounded. Each is preceded by a plain substring test, because
# most text holds no secret at all.


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

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_PRIVATE_KEY = re.compile(rf"{_BEGIN.pattern}(?:.*?{_END.pattern}|.*)", re.DOTALL)
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
        text = hide_spans(text, _spans(text, _ASSIGNMENT, _assigned_span))
    if "-" in text:
        text = hide_spans(text, _spans(text, _FLAG, _flag_span))
    return _BEARER.sub(rf"\1{MARKER}", text) if "bearer" in lower else text


def _hide_tokens(text: str) -> str:
    for hints, pattern in _TOKENS:
        for hint in hints:
            if hint in text:
                text = pattern.sub(MARKER, text)
                break
    return text


def hide_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
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
    value = _BARE.match(text, start)
    return _delimited_span(text, start) or (value.span() if value else None)


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


# What a line of a key consists of. Its last line may be short: alone on its line, or padded.
_BODY = re.compile(r"[A-Za-z0-9+/]{12,}+={0,2}|[A-Za-z0-9+/]+={1,2}(?![A-Za-z0-9])")
_WHOLE_LINE = re.compile(r"[A-Za-z0-9+/]++={0,2}")
_LONGEST_KEY_LINES = 400  # an RSA key of 16,384 bits has about 200
_FOREIGN_LINES = 20  # lines of others in between: blank ones, headers, another thread's


class PrivateKeyLines:
    """Hides private keys in the lines of one source."""

    def __init__(self) -> None:
        self._lines_left = 0
        self._foreign_left = 0

    @property
    def is_inside(self) -> bool:
        return self._lines_left > 0

    def hide(self, line: str) -> str:
        """The line, without what belongs to a key."""
        if not self._lines_left and "-----BEGIN" not in line:
            return line
        shown: list[str] = []
        position = 0
        while position < len(line):
            if self._lines_left and (end := _END.search(line, position)):
                self._lines_left = 0
                shown.append(MARKER)
                position = end.end()
            elif self._lines_left:
                return "".join([*shown, self._inside(line[position:])])
            elif begin := _BEGIN.search(line, position):
                self._lines_left, self._foreign_left = _LONGEST_KEY_LINES, _FOREIGN_LINES
                shown.append(line[position : begin.start()])
                position = begin.end()
                if not _END.search(line, position):
                    return "".join([*shown, MARKER])
            else:
                return "".join([*shown, line[position:]])
        return "".join(shown)

    def _inside(self, text: str) -> str:
        self._lines_left -= 1
        is_body = bool(_WHOLE_LINE.fullmatch(text.strip()))
        shown = MARKER if is_body else _BODY.sub(MARKER, text)
        self._foreign_left = _FOREIGN_LINES if shown != text else self._foreign_left - 1
        if not self._foreign_left:
            self._lines_left = 0
        return shown
