"""`emceepee config`: where the configuration is, whether it is well, and what it may say."""

import os
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import config_schema, default_path, load_file

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the configuration.")

_PROBLEMS = 1

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than the default one."),
]


@app.command()
def path() -> None:
    """Show where the configuration file is looked for."""
    Terminal().line(str(default_path(os.environ)))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Read the configuration and name every problem in it; exit 1 when there is one.

    Example: emceepee config check --config ./config.json
    """
    terminal = Terminal()
    loaded = load_file(config, environ=os.environ)
    for warning in loaded.warnings:
        terminal.line(f"warning: {warning}")
    broken = [server for server in loaded.disabled if not server.switched_off]
    for server in loaded.disabled:
        terminal.line(
            f"{'off' if server.switched_off else 'broken'}: {server.name}: {server.reason}"
        )
    usable = len(loaded.servers)
    terminal.line(f"{usable} usable server{'' if usable == 1 else 's'}.")
    if broken or loaded.warnings:
        raise typer.Exit(_PROBLEMS)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file."""
    Terminal().data(config_schema())
