"""As much of HTTP as the page needs: the head of a request, and responses.

Every response tells the browser to keep it to itself: not stored, not framed, not referred to.
"""

import html
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

__all__ = [
    "EVENT_STREAM",
    "HTML",
    "PageRefusal",
    "PageRequest",
    "event_stream_head",
    "page_headers",
    "refusal",
    "refusal_page",
    "response",
]

_REQUEST_WORDS = 3
HTML, EVENT_STREAM = "text/html; charset=utf-8", "text/event-stream"
PLAIN_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_REFUSAL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>emceepee trace</title></head><body><p>{text}</p></body></html>
"""


class PageRefusal(Exception):
    """The request gets this status and these words, and nothing else."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The head of a request; a header that came twice has no value that anybody could trust."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @classmethod
    def of(cls, head: bytes) -> "PageRequest":
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != _REQUEST_WORDS or not words[1].startswith("/"):
            raise PageRefusal(400, "This is no request of a browser.")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            known = name.lower() in headers
            headers[name.lower()] = "" if known else value.strip()
        target = urlsplit(f"//host{words[1]}")
        query = dict(parse_qsl(target.query))
        return cls(method=words[0], path=target.path, query=query, headers=headers)

    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in pairs}


def response(
    status: int,
    body: bytes,
    content_type: str,
    *,
    policy: str = PLAIN_POLICY,
    more: tuple[str, ...] = (),
) -> bytes:
    head = _head(status, content_type, policy, f"content-length: {len(body)}", *more)
    return head + body


def refusal(refused: PageRefusal) -> bytes:
    more = ("allow: GET",) if refused.status == HTTPStatus.METHOD_NOT_ALLOWED else ()
    return response(refused.status, refusal_page(refused), HTML, more=more)


def event_stream_head() -> bytes:
    return _head(200, EVENT_STREAM, PLAIN_POLICY)


def page_headers(content_type: str, policy: str = PLAIN_POLICY) -> tuple[tuple[str, str], ...]:
    """What every response says, whoever serves it."""
    return (
        ("content-type", content_type),
        ("content-security-policy", policy),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    )


def refusal_page(refused: PageRefusal) -> bytes:
    return _REFUSAL.format(text=html.escape(refused.text)).encode()


def _head(status: int, content_type: str, policy: str, *more: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in page_headers(content_type, policy)),
        "connection: close",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
