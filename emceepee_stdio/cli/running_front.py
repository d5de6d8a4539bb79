"""A running HTTP front, as `emceepee doctor --http` reaches it: like any server behind a URL."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from emceepee_stdio.cli.serve_http import is_loopback
from emceepee_stdio.config import Policy, ServerConfig, Settings
from emceepee_stdio.config.clients import HTTP_TOKEN
from emceepee_stdio.config.regular_file import read_regular
from emceepee_stdio.errors import ConfigInvalid, InvalidArguments
from emceepee_stdio.front.http.http_tokens import default_token_file

__all__ = ["FRONT_REMEDY", "FRONT_SETTINGS", "running_front"]

FRONT_REMEDY = f"Set {HTTP_TOKEN} to a token of that front; it showed the file when it started."

# Its instructions name its servers, so they differ from one session to the next.
FRONT_SETTINGS = Settings(policy=Policy(pin="off"))


def running_front(url: str, environ: Mapping[str, str]) -> ServerConfig:
    """The front at this address, with the token that is at hand.

    No other machine gets the token of this one's front: an address is easily mistyped. It is
    reached in the handshake era, whose session ends when the check does.
    """
    token = environ.get(HTTP_TOKEN)
    if not token and _is_here(url):
        token = _first_token(default_token_file(environ))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        ServerConfig(name="front", url=url)
    except ConfigInvalid:
        raise _wrong_address(url) from None
    return ServerConfig(name="front", url=url, headers=headers, era="legacy")


def _wrong_address(given: str) -> InvalidArguments:
    place = given.strip().rpartition("://")[2].strip("/").removesuffix("/mcp") or "127.0.0.1:8080"
    return InvalidArguments(
        f"{given!r} is no address of an HTTP front.",
        hint=f"Write it as `emceepee serve --http` shows it when it starts, such as http://{place}/mcp",
    )


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:  # no address at all, which is told when it is tried
        return False


def _first_token(path: Path) -> str | None:
    """Of the file that a front on this machine has made."""
    try:
        lines = read_regular(path).decode("utf-8-sig", "replace").splitlines()
    except OSError:
        return None
    named = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return next((words[1] for words in named if len(words) > 1), None)
