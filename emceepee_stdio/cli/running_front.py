"""A running HTTP front, as `emceepee doctor --http` reaches it: like any server behind a URL."""

from collections.abc import Mapping
from pathlib import Path

from emceepee_stdio.config import ServerConfig
from emceepee_stdio.config.clients import HTTP_TOKEN
from emceepee_stdio.config.regular_file import read_regular
from emceepee_stdio.front.http.http_tokens import default_token_file

__all__ = ["running_front"]


def running_front(url: str, environ: Mapping[str, str]) -> ServerConfig:
    """The front at this address, with the token that is at hand."""
    token = environ.get(HTTP_TOKEN) or _first_token(default_token_file(environ))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return ServerConfig(name="front", url=url, headers=headers)


def _first_token(path: Path) -> str | None:
    """Of the file that a front on this machine has made."""
    try:
        words = read_regular(path).decode("utf-8", "replace").split()
    except OSError:
        return None
    return words[1] if len(words) > 1 else None
