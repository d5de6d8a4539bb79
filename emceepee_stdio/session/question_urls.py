"""Addresses that a server wants a person to open: which are refused, and what is said of others.

A browser goes where the address says, whatever a person reads in it. So what can be read in two
ways is refused: credentials before the host, a backslash, letters of two scripts in one name. A
host in other letters than ours is shown as the browser asks for it.
"""

import unicodedata
from urllib.parse import SplitResult, urlsplit

from emceepee_stdio.trust.addresses import Area, named_area

__all__ = ["host_of", "url_problem", "url_warning"]

_SHOWN_HOST_CHARS = 45  # the end of a name says whose it is
_PUNYCODE = "xn--"
_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._:")
_AMBIGUOUS = frozenset("ßς\\%")  # browsers and we may read these differently in a host
_NO_SCRIPT = frozenset({"DIGIT", "HYPHEN-MINUS", "LOW"})  # as their Unicode names begin
# Scripts that one name has together without any intent to deceive.
_COMPANIONS = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL"})


def url_problem(url: object) -> str | None:
    """Why nobody is sent there; None when one may be."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return "must be a text without spaces and without what cannot be seen"
    try:
        parts = urlsplit(url)
        host = _ascii(parts)
        letters = _letters(host)
    except ValueError:
        return "must name a host that exists in one way only"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with http:// or https:// and name a host"
    if "@" in parts.netloc:
        return "must not have a name or a password before its host"
    if any(map(_is_mixed, letters.split("."))):
        return "must not mix letters of several scripts in its host"
    return None


def url_warning(url: str) -> str | None:
    """What a person should know before they open it."""
    host = _ascii(urlsplit(url))
    if _PUNYCODE in host:
        return f"Warning: the host is written in other letters than A to Z: {_letters(host)}"
    if urlsplit(url).scheme == "http" and named_area(url) is not Area.LOOPBACK:
        return "Warning: the page is not encrypted (http): others can read what you enter there."
    return None


def host_of(url: str) -> str:
    """As the browser asks for it; of a long one the end, which says whose it is."""
    host = _ascii(urlsplit(url))
    return host if len(host) <= _SHOWN_HOST_CHARS else f"…{host[-_SHOWN_HOST_CHARS:]}"


def _ascii(parts: SplitResult) -> str:
    """The host as it is looked up; ValueError where it cannot be."""
    host = parts.hostname or ""
    _ = parts.port  # a port that is none is found here
    if _AMBIGUOUS.intersection(host):
        raise ValueError(host)
    host = host if host.isascii() else host.encode("idna").decode().lower()
    if not _HOST.issuperset(host):
        raise ValueError(host)
    return host


def _letters(host: str) -> str:
    """The host as it is written in its own letters."""
    return ".".join(
        label.removeprefix(_PUNYCODE).encode().decode("punycode")
        if label.startswith(_PUNYCODE)
        else label
        for label in host.split(".")
    )


def _is_mixed(label: str) -> bool:
    """Whether letters in it look like those of another script on purpose."""
    if label.isascii():
        return False
    scripts = {unicodedata.name(char, "").split(" ")[0] for char in label} - _NO_SCRIPT
    return len(scripts) > 1 and not scripts <= _COMPANIONS
