"""As much of HTTP as the page needs: the head of a request, and responses.

Every response tells the browser to keep it to itself: not stored, not framed, not referred to.
"""

import html
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

__all__ = ["PageRefusal", "PageRequest", "event_stream_head", "refusal", "response"]

_REQUEST_WORDS = 3
_PLAIN_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
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
    policy: str = _PLAIN_POLICY,
    more: tuple[str, ...] = (),
) -> bytes:
    head = _head(status, content_type, policy, f"content-length: {len(body)}", *more)
    return head + body


def refusal(refused: PageRefusal) -> bytes:
    page = _REFUSAL.format(text=html.escape(refused.text)).encode()
    more = ("allow: GET",) if refused.status == HTTPStatus.METHOD_NOT_ALLOWED else ()
    return response(refused.status, page, "text/html; charset=utf-8", more=more)


def event_stream_head() -> bytes:
    return _head(200, "text/event-stream", _PLAIN_POLICY)


def _head(status: int, content_type: str, policy: str, *more: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {content_type}",
        f"content-security-policy: {policy}",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "x-frame-options: DENY",
        "cross-origin-opener-policy: same-origin",
        "cross-origin-resource-policy: same-origin",
        "connection: close",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
