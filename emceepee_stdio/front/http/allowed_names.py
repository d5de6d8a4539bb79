"""What a person may write after --allow-host and --allow-origin.

Each is compared with a header that a client sends, so what no client sends would allow nobody.
"""

import re

from emceepee_stdio.errors import InvalidArguments

__all__ = ["check_host", "check_origin"]

_HOST = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{_HOST.pattern}")
_EXAMPLE = "mcp.example.org"
_DEFAULT_PORTS = {"http": 80, "https": 443}  # which no browser writes into an origin


def check_host(given: str) -> None:
    """Refuse what is never in a Host header."""
    if _HOST.fullmatch(given.lower()):
        return
    raise InvalidArguments(
        f"--allow-host {given!r} is not a host name.",
        hint=f"Write the name alone: --allow-host {_host(given.rpartition('://')[2])}",
    )


def check_origin(given: str) -> None:
    """Refuse what is never in an Origin header."""
    if given == "*":
        raise InvalidArguments(
            "--allow-origin '*' would let every page in, which is not possible.",
            hint="Name each origin: --allow-origin https://app.example.org",
        )
    if (right := _origin(given)) == given.lower().rstrip("/"):
        return
    raise InvalidArguments(
        f"--allow-origin {given!r} is not an origin.",
        hint=f"Write scheme and host as the browser sends them: --allow-origin {right}",
    )


def _origin(given: str) -> str:
    """The nearest origin."""
    scheme, _, rest = (given if "://" in given else f"https://{given}").partition("://")
    scheme = scheme.lower()
    host = _host(rest).removesuffix(f":{_DEFAULT_PORTS.get(scheme)}")
    right = f"{scheme}://{host}"
    return right if _ORIGIN.fullmatch(right) else f"https://{host}"


def _host(text: str) -> str:
    """The nearest host name, without a path."""
    text = re.split(r"[/?#]", text)[0].rpartition("@")[2].lower()
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    try:
        text = text.encode("idna").decode()
    except UnicodeError:
        return _EXAMPLE
    return text if _HOST.fullmatch(text) else _EXAMPLE
