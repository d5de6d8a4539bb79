"""`emceepee serve` as a client starts it: its options, and the proxy on stdio, without Typer.

The options are declared here, once; `serve_http` shows the same ones to people. The client is
waiting, so nothing here may load Typer.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, get_args

from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import FixedValues, PolicyMode
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.front.hello import Handover
from emceepee_stdio.visible_text import shell_words

_USAGE_EXIT_CODE = 2  # what argparse ends with, too


@dataclass(frozen=True, slots=True)
class Option:
    """An option that may be left out; with one value where it has a metavar."""

    name: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    repeatable: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}"


# What each is for stands in the docstring of `serve_http.serve`, which only people load.
OPTIONS = (
    Option("config", "FILE"),
    Option("server", "NAME=COMMAND", repeatable=True),
    Option("policy", "MODE", choices=get_args(PolicyMode)),
)
HTTP_OPTIONS = (
    Option("http", "HOST:PORT"),
    Option("token-file", "FILE"),
    Option("no-token"),
    Option("tls-cert", "FILE"),
    Option("tls-key", "FILE"),
    Option("insecure"),
    Option("allow-host", "NAME", repeatable=True),
    Option("allow-origin", "ORIGIN", repeatable=True),
    Option("max-sessions", "COUNT"),
)


def serve_greeted(
    arguments: Sequence[str],
    handover: Handover,
    wire_in: int,
    wire_out: int,
    *,
    fixed: FixedValues | None = None,
) -> int:
    """Serve a client that has been greeted; a mistake in the command line ends it with usage."""
    parser = ServeParser(OPTIONS)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(missing_http(unknown) or f"unrecognized arguments: {' '.join(unknown)}")
    try:
        extra = check_servers(options.server)
    except (ValueError, ProxyError) as error:
        parser.error(str(error).rstrip("."))
    if handover.ended and not handover.unread:
        return 0
    from emceepee_stdio.app import run  # noqa: PLC0415 - a wrong command line need not pay for it

    return run(
        handover,
        wire_in,
        wire_out,
        config_path=None if options.config is None else Path(options.config),
        extra=extra,
        policy=options.policy,
        fixed=fixed,
    )


def missing_http(words: Sequence[str]) -> str | None:
    """What to say of an option that is only for HTTP, where one is among these words."""
    flags = {option.flag for option in HTTP_OPTIONS}
    given = next((flag for word in words if (flag := word.partition("=")[0]) in flags), None)
    return given and f"{given} needs --http: emceepee serve --http {given} …"


class ServeParser(argparse.ArgumentParser):
    """Of the command line of `serve`: argparse is loaded faster than Typer."""

    def __init__(self, options: Sequence[Option]) -> None:
        super().__init__(prog="emceepee serve", add_help=False)
        for option in options:
            if option.metavar is None:
                self.add_argument(option.flag, action="store_true")
                continue
            self.add_argument(
                option.flag,
                metavar=option.metavar,
                choices=option.choices,
                action="append" if option.repeatable else "store",
                default=[] if option.repeatable else None,
            )

    def error(self, message: str) -> NoReturn:
        """A mistake, told as all commands tell one."""
        self.exit(_USAGE_EXIT_CODE, f"emceepee: {message}.\nSee: emceepee serve --help\n")


def check_servers(given: Sequence[str]) -> list[ServerConfig]:
    """The servers of the command line."""
    return [_server(text) for text in given]


def _server(text: str) -> ServerConfig:
    name, separator, command = text.partition("=")
    words = shell_words(command)
    if not separator or not words:
        raise ValueError(f"--server {text!r}: expected NAME=COMMAND")
    if words[0].startswith(("http://", "https://")):
        return ServerConfig(name=name, url=words[0])
    return ServerConfig(name=name, command=words[0], args=tuple(words[1:]))
