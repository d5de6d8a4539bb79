"""Options that several commands have, each written once."""

from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.completions import complete_servers

__all__ = [
    "ConfigOption",
    "JsonOption",
    "LogDirectoryOption",
    "ServerArgument",
    "ServersOption",
    "SinceOption",
]

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than the default one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
ServerArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Which server.", autocompletion=complete_servers),
]

# Of commands that read what proxies have written.
ServersOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Only this server; may be repeated.", autocompletion=complete_servers
    ),
]
SinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="From then on: 30s, 10m, 2h, 1d or ISO 8601.")
]
LogDirectoryOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Another directory than the configured one."),
]
