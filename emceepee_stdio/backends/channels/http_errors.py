"""HTTP failures as our errors: what a status or a broken answer means, and the next step."""

import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import cast
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.errors import CallFailed, ServerUnavailable
from emceepee_stdio.foreign_json import decoded, opened
from emceepee_stdio.wire.codec import RpcError

_PORTS = {"http": 80, "https": 443}
_SHOWN_CHARS = 200  # one line of an error message
_BYTES_PER_CHAR = 4  # the most that UTF-8 takes
_CHALLENGE_CHARS = 4_000  # of a header that may come from anywhere
_AUTH_PARAM = re.compile(r'\b([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))')
_ASKED_FOR = ("error", "error_description", "scope", "resource_metadata")
_CHECK_PATH = "Check the path of the URL; MCP is often served at /mcp or /sse."
_HINTS = {
    HTTPStatus.UNAUTHORIZED: "Give a valid Authorization in headers, then call reconnect_server.",
    HTTPStatus.FORBIDDEN: "The credentials do not suffice: give others in headers.",
    HTTPStatus.NOT_FOUND: _CHECK_PATH,
    HTTPStatus.METHOD_NOT_ALLOWED: _CHECK_PATH,
    HTTPStatus.TOO_MANY_REQUESTS: "Wait a while, then call again.",
}


class HttpRefused(ServerUnavailable):
    """The server answered with a status instead of a result; `wait` is what it asked for."""

    def __init__(
        self, server: str, status: int, *, detail: str = "", wait: float | None = None
    ) -> None:
        known = {s.value: s.phrase for s in HTTPStatus}
        fact = f"{server} answered with HTTP status {status} {known.get(status, '')}".rstrip()
        hint = _HINTS.get(HTTPStatus(status)) if status in known else None
        if wait is not None:
            hint = f"It asks to wait {wait:.0f} s: call again after that."
        is_unknown = wait is None and status == HTTPStatus.UNAUTHORIZED
        super().__init__(
            f"{fact}{': ' + detail if detail else '.'}",
            reconnects=is_unknown,  # so its hint says
            for_person="Give a valid Authorization in headers." if is_unknown else None,
            hint=hint or "The server has a problem: try again later, or see its own logs.",
        )
        self.status = status


class Unreachable(ServerUnavailable):
    """No connection came about: nothing was delivered."""

    hint = "Check that the server runs and that the URL is right."
    hint_for_person = None
    hint_reconnects = False


class Untrusted(Unreachable):
    """There is somebody, but no secure connection to be had; trying again would not help."""


class BrokenOff(CallFailed):
    """The connection broke after something may have been delivered."""

    hint = "The call may have been carried out: check before calling again."


class NotMcp(CallFailed):
    """What answers there is no MCP endpoint, or not the one that was meant."""

    hint = "Check the URL: it must be the MCP endpoint, not a web page."


class _NamelessError(msgspec.Struct):
    code: int
    message: str
    data: Raw | UnsetType = UNSET  # msgspec takes nothing but null for `Raw | None`


class _Nameless(msgspec.Struct):
    error: _NamelessError


class _Explained(msgspec.Struct):
    error: object = None
    error_description: object = None
    message: object = None
    detail: object = None


def said(error: BaseException) -> str:
    return str(error).rstrip(". ") or type(error).__name__


def unreachable(server: str, error: BaseException) -> Unreachable:
    """Why no connection came about, by the first cause that we know."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return Untrusted(
                    f"The certificate of {server} is not trusted: {cause.verify_message}.",
                    hint="Point SSL_CERT_FILE to the certificate that signed it, or correct the "
                    "URL.",
                )
            case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
                return Unreachable(f"{server} hung up while TLS was being agreed on.")
            case ssl.SSLError():
                return Untrusted(
                    f"{server} does not speak TLS as we do: {said(cause)}.",
                    hint="If the server has no TLS, use http:// in its URL.",
                )
            case socket.gaierror():
                return Unreachable(
                    f"{server} could not be reached: its host name was not found.",
                    hint="Check the host in the URL, and the network.",
                )
            case ConnectionRefusedError():
                return Unreachable(
                    f"{server} could not be reached: the connection was refused.",
                    hint="Start the server, or check the host and port in the URL.",
                )
            case _:
                pass
    return Unreachable(f"{server} could not be reached: {said(error)}.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came from, and so on."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
                yield from _causes(inner)
        error = error.__cause__ or error.__context__


def nameless_error(body: bytes) -> RpcError | None:
    """A JSON-RPC error that could not name its request, because that was refused unread."""
    if (found := opened(body, _Nameless)) is None:
        return None
    error = found.error
    return RpcError(error.code, error.message, None if error.data is UNSET else error.data)


def challenge(header: str) -> str:
    """What a WWW-Authenticate header asks for, for people to read: scope, and who gives it."""
    found = {
        name.lower(): quoted or plain
        for name, quoted, plain in _AUTH_PARAM.findall(header[:_CHALLENGE_CHARS])
    }
    return ", ".join(f"{name} {_line(found[name])}" for name in _ASKED_FOR if found.get(name))


def excerpt(body: bytes, kind: str) -> str:
    """What a refusal says for people to read, on one short line; nothing of a web page."""
    if kind == "text/plain":
        text = body[: _BYTES_PER_CHAR * _SHOWN_CHARS].decode(errors="replace")
    elif kind.endswith("json"):
        told = decoded(body, _Explained) or _Explained()
        words = (told.error_description, told.message, told.detail, told.error)
        text = next((word for word in words if isinstance(word, str)), "")
    else:
        return ""
    return _line(text)


def _line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[:_SHOWN_CHARS]}…"


def retry_after(value: str | None, *, epoch: float) -> float | None:
    """Seconds to wait by a Retry-After header, in either of its forms; None without one."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(moment.timestamp() - epoch, 0.0)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


def is_same_origin(url: str, location: str) -> bool:
    """Whether a redirect stays where we meant to go; https instead of http is welcome."""
    try:
        old, new = urlsplit(url), urlsplit(urljoin(url, location))
        ports = [part.port or _PORTS.get(part.scheme) for part in (old, new)]
    except ValueError:
        return False
    if not old.hostname or old.hostname != new.hostname or new.scheme not in _PORTS:
        return False
    if (old.scheme, new.scheme) == ("http", "https"):
        return ports == [_PORTS["http"], _PORTS["https"]]
    return old.scheme == new.scheme and ports[0] == ports[1]
