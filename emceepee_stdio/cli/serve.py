"""`emceepee serve`: the proxy on stdio."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from emceepee_stdio.cli.welcome import welcome
from emceepee_stdio.config import PolicyMode, ServerConfig
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.front.hello import Handover

__all__ = ["serve", "serve_greeted"]

_USAGE = 2


def serve_greeted(arguments: Sequence[str], handover: Handover, wire_in: int, wire_out: int) -> int:
    """Serve a client that has been greeted; a mistake in the command line ends it with usage."""
    parser = argparse.ArgumentParser(prog="emceepee serve", add_help=False)
    parser.add_argument("--config", metavar="FILE", type=Path)
    parser.add_argument("--server", metavar="NAME=COMMAND", action="append", default=[])
    parser.add_argument("--policy", choices=get_args(PolicyMode))
    options = parser.parse_args(arguments)
    try:
        extra = [_server(text) for text in options.server]
    except (ValueError, ProxyError) as error:
        sys.stderr.write(f"emceepee serve: {error}\n")
        return _USAGE
    if handover.ended and not handover.unread:
        return 0
    from emceepee_stdio.app import run  # noqa: PLC0415 - other commands need not pay for it

    return run(
        handover,
        wire_in,
        wire_out,
        config_path=options.config,
        extra=extra,
        policy=options.policy,
    )


def serve(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another configuration file.")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COMMAND", help="A server for this run; may be repeated."),
    ] = None,
    policy: Annotated[
        PolicyMode | None,
        typer.Option(metavar="MODE", help="auto, ask, allow or deny; goes before the file's."),
    ] = None,
) -> None:
    """Serve MCP on stdin and stdout, for a client that starts this command.

    Example: emceepee serve --server time='uvx mcp-server-time'
    """
    del config, server, policy  # only a person comes here: clients are served before this is loaded
    welcome()


def _server(text: str) -> ServerConfig:
    name, separator, command = text.partition("=")
    words = shlex.split(command)
    if not separator or not words:
        raise ValueError(f"--server {text!r}: expected NAME=COMMAND")
    if words[0].startswith(("http://", "https://")):
        return ServerConfig(name=name, url=words[0])
    return ServerConfig(name=name, command=words[0], args=tuple(words[1:]))
