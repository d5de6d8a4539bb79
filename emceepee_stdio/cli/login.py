"""`emceepee login` and `emceepee logout`: sign in to a server behind a URL, and out again."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.shared_options import ConfigOption, chosen, complete_servers, is_url
from emceepee_stdio.cli.terminal import CREDENTIALS_REFUSED, FAILED, Terminal, interrupts
from emceepee_stdio.config import ServerConfig, load_file
from emceepee_stdio.config.fields import filled_in, needed_secrets
from emceepee_stdio.errors import ConfigInvalid

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A configured server, or the URL of one.",
        autocompletion=complete_servers,
    ),
]


def login(
    name: NameArgument,
    *,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address to open.")
    ] = False,
    paste: Annotated[
        bool,
        typer.Option(
            "--paste",
            help="The browser is on another machine: type in the address at which it ends.",
        ),
    ] = False,
    scope: Annotated[
        str | None,
        typer.Option(metavar="SCOPES", help="Ask for these, instead of what the server names."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Sign in to a server with OAuth.

    Opens the browser. Every proxy that waits for the sign-in goes on. Exit code 1: what answers
    there is no MCP server; 3: nobody signed in, or the server refused it.

    Example: emceepee login github
    """
    server = _server(name, config)
    # The HTTP client and the SDK: not for those who only want to see the help.
    from emceepee_stdio.cli.interactive_sign_in import InteractiveSignIn  # noqa: PLC0415

    made = InteractiveSignIn(
        server,
        Terminal(),
        opens=not no_browser and not paste,
        pastes=paste,
        scope=scope,
        trusted=not is_url(name),
    )
    if not interrupts.run(made.run):
        raise typer.Exit(CREDENTIALS_REFUSED)


def logout(
    name: NameArgument,
    *,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Also tell the server that the tokens have ended.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Delete the tokens of a server.

    Deletes our registration there, too. Exit code 1: the server did not take the revocation; the
    tokens are forgotten all the same.

    Example: emceepee logout github --revoke
    """
    server = _server(name, config)
    from emceepee_stdio.cli.interactive_sign_in import sign_out  # noqa: PLC0415 - as above

    others = [one for one in _configured(config) if one.url is not None and one.name != name]
    if not interrupts.run(partial(sign_out, server, others, Terminal(), revokes=revoke)):
        raise typer.Exit(FAILED)


def _server(name: str, config: Path | None) -> ServerConfig:
    from emceepee_stdio.auth.bearer import signs_in  # noqa: PLC0415 - not for the help

    if is_url(name):
        server = ServerConfig(name="the server", url=name)
    else:
        server = chosen(name, load_file(config, environ=os.environ), argument="NAME")
    if server.url is None:
        raise typer.BadParameter(
            f"{name} is a command, not a URL: it is given its credentials in `env`.",
            param_hint="NAME",
        )
    if not signs_in(server):
        raise typer.BadParameter(
            f'{name} has credentials in its url or headers, or `auth: "none"`: those count.',
            param_hint="NAME",
        )
    return _with_secrets(server) if server.templates else server


def _configured(config: Path | None) -> tuple[ServerConfig, ...]:
    try:
        return load_file(config, environ=os.environ).servers
    except ConfigInvalid:  # a server is signed out by its URL all the same
        return ()


def _with_secrets(server: ServerConfig) -> ServerConfig:
    from emceepee_stdio.cli.secret_values import KeyringStorage  # noqa: PLC0415 - as above

    return filled_in(server, KeyringStorage().secrets(needed_secrets(server)))
