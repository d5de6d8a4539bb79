"""`emceepee serve` for people: its help and completion, a welcome, and the HTTP front.

The parameters of the help are made from the options that `serve` declares.
"""

import argparse
import ipaddress
import os
from collections.abc import Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from emceepee_stdio.cli.clients.install import client_here, registered_in
from emceepee_stdio.cli.serve import (
    HTTP_OPTIONS,
    OPTIONS,
    Option,
    ServeParser,
    check_servers,
    missing_http,
)
from emceepee_stdio.cli.terminal import ExitCode, terminal
from emceepee_stdio.config.clients import CLIENTS
from emceepee_stdio.errors import InvalidArguments, ProxyError
from emceepee_stdio.front.http import access
from emceepee_stdio.front.http.http_replies import HttpLimits

# What a person sees who starts the proxy at a terminal, where there is no client to serve.


def welcome() -> None:
    """Say what this is, and the way to a client that uses it."""
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

    Takes:
      config: Another configuration file.
      server: A server for this run; may be repeated.
      policy: auto, ask, allow or deny; overrides the configuration.
      http: Serve over HTTP instead; 127.0.0.1:8080 unless you say otherwise.
      token_file: Where the tokens of HTTP clients are; made with one if it is not there.
      no_token: Ask HTTP clients for no token; on this machine only.
      tls_cert: The certificate for https.
      tls_key: The private key of --tls-cert.
      insecure: Serve other machines without https.
      allow_host: A name by which HTTP clients reach this machine; may be repeated.
      allow_origin: A web page's origin that may connect; may be repeated.
      max_sessions: At most so many HTTP sessions; 16.

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
    about = typer.Option(option.flag, metavar=option.metavar)
    return Parameter(
        option.name.replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        default=None if option.metavar else False,
        annotation=Annotated[kind, about],
    )


# Typer reads the parameters of a command from its signature.
serve.__signature__ = Signature([_parameter(option) for option in (*OPTIONS, *HTTP_OPTIONS)])


# `emceepee serve --http`: the command line of the HTTP front, and what it says when it starts.


_DEFAULT_HOST, _DEFAULT_PORT = "127.0.0.1", 8080
_MAX_PORT = 65_535


def serve_http(arguments: Sequence[str], *, limits: HttpLimits | None = None) -> int:
    """Serve until a signal comes; the exit code. Tests pass limits of their own."""
    parser = ServeParser((*OPTIONS, *(o for o in HTTP_OPTIONS if o.name != "http")))
    parser.add_argument("--http", nargs="?", const="", metavar="HOST:PORT")
    try:
        return _serve(parser.parse_args(arguments), limits)
    except ProxyError as error:
        terminal.note(f"emceepee: {error.fact}\n{error.next_step}")
        return ExitCode.USAGE if isinstance(error, InvalidArguments) else ExitCode.FAILED
    except ValueError as error:
        terminal.note(f"emceepee: {error}.\nSee: emceepee serve --help")
        return ExitCode.USAGE


def _serve(options: argparse.Namespace, limits: HttpLimits | None) -> int:
    host, port = _address(options.http)
    _check_safety(options, host)
    for name in options.allow_host:
        access.check_host(name)
    for origin in options.allow_origin:
        access.check_origin(origin)
    check_servers(options.server)
    # Not before the command line is known to be right: this takes a second.
    from emceepee_stdio.cli.log_reading import log_directory  # noqa: PLC0415
    from emceepee_stdio.front.http.http_server import (  # noqa: PLC0415
        FrontOptions,
        check_tls_files,
        run_front,
    )
    from emceepee_stdio.front.http.http_session import lasting_stderr  # noqa: PLC0415

    if options.tls_cert:
        check_tls_files(options.tls_cert, options.tls_key)
    token_file = None
    if not options.no_token:
        given = options.token_file
        token_file = Path(given).expanduser() if given else access.default_token_file(os.environ)
    front = FrontOptions(
        host=host,
        port=port,
        access=_access(options, host, token_file),
        log_directory=log_directory(os.environ, Path(options.config) if options.config else None),
        children=_child_options(options),
        certificate=options.tls_cert,
        key=options.tls_key,
        limits=limits or HttpLimits(sessions=_count(options.max_sessions)),
    )

    def note(text: str) -> None:
        with lasting_stderr():
            terminal.note(text)

    def ready(address: str) -> None:
        note(f"emceepee serves {address}")
        if token_file is None:
            note("Whoever can reach it may use it: no token is asked for.")
        else:
            note(f"Clients send: Authorization: Bearer TOKEN. The tokens: {token_file}")

    run_front(front, ready=ready, note=lambda text: note(f"emceepee: {text}"))
    return 0


def _address(given: str) -> tuple[str, int]:
    """Where to listen; half of it may be left out."""
    host, separator, port = given.rpartition(":")
    if not separator:
        host, port = ("", given) if given.isdecimal() else (given, "")
    port = port or os.environ.get("PORT", "") or str(_DEFAULT_PORT)
    if not port.isdecimal() or int(port) > _MAX_PORT:
        raise InvalidArguments(
            f"{given!r} is no address to listen on.", hint="Write HOST:PORT, or a port alone."
        )
    return host.strip("[]") or _DEFAULT_HOST, int(port)


def _check_safety(options: argparse.Namespace, host: str) -> None:
    """Nobody serves other machines by accident, and never without a token."""
    is_local = is_loopback(host)
    if bool(options.tls_cert) != bool(options.tls_key):
        fact = "--tls-cert and --tls-key belong together."
        step = "Give both files, or none."
    elif options.no_token and options.token_file:
        fact = "--no-token asks for no token, and --token-file names tokens."
        step = "Leave one of the two out."
    elif options.no_token and not is_local:
        fact = f"Without a token, {host} would let everybody in who can reach it."
        step = "Leave --no-token out, or listen on 127.0.0.1."
    elif not is_local and not options.tls_cert and not options.insecure:
        fact = f"On {host}, tokens and answers would cross the network unprotected."
        step = "Give --tls-cert and --tls-key; --insecure if something in front does it."
    else:
        return
    raise InvalidArguments(fact, hint=step)


def is_loopback(host: str) -> bool:
    """Whether this name or address is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _access(options: argparse.Namespace, host: str, token_file: Path | None) -> access.Access:
    tokens = access.HttpTokens(None) if token_file is None else access.HttpTokens.read(token_file)
    own = [f"[{host}]" if ":" in host else host]
    return access.Access(tokens, hosts=[*own, *options.allow_host], origins=options.allow_origin)


def _child_options(options: argparse.Namespace) -> list[str]:
    """What each session's process is started with."""
    words: list[str] = []
    for option in OPTIONS:
        value: str | list[str] | None = getattr(options, option.name)
        for one in value if isinstance(value, list) else filter(None, [value]):
            words += [option.flag, one]
    return words


def _count(given: str | None) -> int:
    if given is None:
        return 16
    if not given.isdecimal() or not int(given):
        raise InvalidArguments(f"{given!r} is no number of sessions.", hint="Write 1 or more.")
    return int(given)
