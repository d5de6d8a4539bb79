"""`emceepee serve` for people: its help, its completion, and a welcome at a terminal.

Its parameters are made from the options that `serve` declares.
"""

from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

import typer

from emceepee_stdio.cli.clients.install import client_here, registered_in
from emceepee_stdio.cli.serve import HTTP_OPTIONS, OPTIONS, Option, missing_http
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import CLIENTS

# What a person sees who starts the proxy at a terminal, where there is no client to serve.


def welcome() -> None:
    """Say what this is, and the way to a client that uses it."""
    terminal = Terminal()
    client = client_here().key
    others = ", ".join(key for key in CLIENTS if key != client)
    terminal.line("emceepee is an MCP proxy: one server for your client, any number behind it.")
    terminal.line("Your client starts it by itself; at a terminal there is nothing to serve.")
    terminal.line()
    terminal.line(f"  {f'emceepee install {client}':<37} register it in your client")
    terminal.line(
        f"  {f'emceepee config import {client}':<37} take over the servers you have there"
    )
    terminal.line("  emceepee config add NAME -- COMMAND   add another server")
    terminal.line("  emceepee doctor                       see whether all of it works")
    terminal.line("  emceepee demo                         watch it at work, in seconds")
    terminal.line()
    terminal.line(f"Other clients: {others}.")
    titles = registered_in()
    terminal.line(f"Registered in: {', '.join(titles) or 'none yet'}.")
    terminal.line("All commands: emceepee --help")


def serve(**options: object) -> None:
    """Serve MCP on stdin and stdout, or over HTTP.

    A client starts this; for HTTP use --http.

    Example: emceepee serve --server time='uvx mcp-server-time'

    Example: emceepee serve --http 127.0.0.1:8080
    """
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if problem := missing_http(given):
        raise typer.BadParameter(problem)
    welcome()  # only a person comes here: clients are served before this is loaded


def _parameter(option: Option) -> Parameter:
    kind: Any = Literal[option.choices] if option.choices else str
    kind = list[kind] if option.repeatable else kind
    kind = kind | None if option.metavar else bool
    about = typer.Option(option.flag, metavar=option.metavar, help=option.help)
    return Parameter(
        option.name.replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        default=None if option.metavar else False,
        annotation=Annotated[kind, about],
    )


# Typer reads the parameters of a command from its signature.
serve.__signature__ = Signature([_parameter(option) for option in (*OPTIONS, *HTTP_OPTIONS)])
