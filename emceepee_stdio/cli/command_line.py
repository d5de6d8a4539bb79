"""The command `emceepee`: its commands, and what every failure looks like.

A failure is one sentence with the next step on stderr and a non-zero exit code; a traceback is
only for those who ask for it with `--debug`.
"""

import os
import sys
from itertools import takewhile
from typing import Annotated

import typer

from emceepee_stdio import __version__
from emceepee_stdio.cli import config, keyring_secrets
from emceepee_stdio.cli.approve import approve
from emceepee_stdio.cli.call import call
from emceepee_stdio.cli.demo import demo
from emceepee_stdio.cli.doctor import doctor
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.install import install, uninstall
from emceepee_stdio.cli.login import login, logout
from emceepee_stdio.cli.ls import ls
from emceepee_stdio.cli.serve_help import serve
from emceepee_stdio.cli.status import status
from emceepee_stdio.cli.tail_logs import tail_logs
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.cli.trace import trace
from emceepee_stdio.cli.welcome import welcome
from emceepee_stdio.errors import ProxyError

__all__ = ["app", "run"]

_STDOUT_FD = 1

app = typer.Typer(
    name="emceepee",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(install)
app.command()(uninstall)
app.add_typer(config.app, name="config")
app.command()(doctor)
app.command()(status)
app.command()(tail_logs)
app.command()(trace)
app.command()(ls)
app.command()(call)
app.command()(login)
app.command()(logout)
app.add_typer(keyring_secrets.app, name="secrets")
app.command()(approve)
app.command()(demo)
app.command()(serve)


def _version(wanted: bool) -> None:  # noqa: FBT001 - the signature that Typer calls
    if wanted:
        Terminal().line(f"emceepee {__version__}")
        raise typer.Exit


@app.callback()
def emceepee(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where a failure comes from; before the command.")
    ] = False,
) -> None:
    """A stdio MCP proxy: the whole protocol of any server, through a static set of tools."""
    del version, debug  # both are seen to before this
    if context.invoked_subcommand is None:
        welcome()


def run() -> int:
    """Run the command line; the exit code."""
    try:
        app(standalone_mode=True)
    except ProxyError as error:
        if _debugging():
            raise
        Terminal().note(f"emceepee: {error}")
        return FAILED
    except BrokenPipeError:
        _abandon_stdout()
        return 0
    except OSError as error:
        if _debugging():
            raise
        where = f" ({error.filename})" if isinstance(error.filename, str) else ""
        Terminal().note(
            f"emceepee: The system refused something: {error.strerror or type(error).__name__}"
            f"{where}. See to the permissions there, and run the command again."
        )
        return FAILED
    except Exception as error:
        if _debugging():
            raise
        # Its text may hold anything, so only its kind is shown.
        Terminal().note(
            f"emceepee: an unexpected {type(error).__name__} stopped this command. "
            "Run it as `emceepee --debug …` to see where, and report that."
        )
        return FAILED
    return 0


def _abandon_stdout() -> None:
    """Whoever read it has enough: what is left in the buffer goes nowhere, quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT_FD)
    os.close(nowhere)


def _debugging() -> bool:
    return "--debug" in takewhile(lambda word: word.startswith("-"), sys.argv[1:])
