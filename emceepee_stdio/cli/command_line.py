"""The command `emceepee`: its commands, and what every failure looks like.

A failure is one sentence with the next step on stderr and a non-zero exit code; a traceback is
only for those who ask for it with `--debug`.
"""

import os
import re
import sys
from itertools import takewhile
from typing import Annotated

import typer
from typer.exceptions import TyperException

from emceepee_stdio import __version__
from emceepee_stdio.cli.command_group import CommandGroup, LazyCommand
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.errors import ProxyError

__all__ = ["app", "run"]

_STDOUT_FD = 1

_FROM_A_CHOICE = "Value error, "  # with which Typer begins what a choice says
_ENDS_IN_COMMAND = re.compile(r": emceepee [^\n]+\Z")  # to be copied, so without a full stop
_FOR_ANY_SERVER = "server_choice:ServerCommand"

app = CommandGroup(
    name="emceepee",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    lazy={
        "install": LazyCommand("install:install"),
        "uninstall": LazyCommand("uninstall:uninstall"),
        "doctor": LazyCommand("doctor:doctor"),
        "status": LazyCommand("status:status"),
        "tail-logs": LazyCommand("tail_logs:tail_logs"),
        "trace": LazyCommand("trace:trace"),
        "ls": LazyCommand("ls:ls", cls=_FOR_ANY_SERVER),
        "call": LazyCommand("call:call", cls=_FOR_ANY_SERVER),
        "read": LazyCommand("read_resource:read_resource", cls=_FOR_ANY_SERVER),
        "prompt": LazyCommand("get_prompt:get_prompt", cls=_FOR_ANY_SERVER),
        "login": LazyCommand("login:login"),
        "logout": LazyCommand("login:logout"),
        "approve": LazyCommand("approve:approve"),
        "demo": LazyCommand("demo:demo"),
        "serve": LazyCommand("serve_help:serve"),
        "config": LazyCommand("config_commands:app"),
        "secrets": LazyCommand("keyring_secrets:app"),
    },
)


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
    """One MCP server for your client, with all your other servers behind it."""
    del version, debug  # both are seen to before this
    if context.invoked_subcommand is None:
        from emceepee_stdio.cli.welcome import welcome  # noqa: PLC0415 - only for this

        welcome()


def run() -> int:
    """Run the command line; the exit code."""
    words = sys.argv[1:]
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        # Not standalone: Typer would show the usage with every mistake, also of a value.
        code = app(words, prog_name="emceepee", standalone_mode=False)
    except TyperException as error:
        _tell_mistake(error)
        return error.exit_code
    except ProxyError as error:
        if _debugging():
            raise
        Terminal().failure(error.fact, error.next_step, code=error.code)
        return FAILED
    except BrokenPipeError:
        _abandon_stdout()
        return 0
    except OSError as error:
        if _debugging():
            raise
        where = f" ({error.filename})" if isinstance(error.filename, str) else ""
        fact = f"The system refused something: {error.strerror or type(error).__name__}{where}."
        step = "Check the permissions there, and run the command again."
        Terminal().failure(fact, step, code="system", text=f"emceepee: {fact} {step}")
        return FAILED
    except Exception as error:
        if _debugging():
            raise
        # Its text may hold anything, so only its kind is shown.
        fact = f"an unexpected {type(error).__name__} stopped this command."
        step = "Run it as `emceepee --debug …` to see where, and report that."
        Terminal().failure(fact, step, code="unexpected", text=f"emceepee: {fact} {step}")
        return FAILED
    return code if isinstance(code, int) else 0


def _tell_mistake(error: TyperException) -> None:
    """What is wrong with a command line; the usage only where a word is missing or unknown."""
    terminal, said, context = Terminal(), error.format_message(), getattr(error, "ctx", None)
    if said.startswith("Usage:"):  # a group without a command: its help
        terminal.failure("A command is missing.", said, code="usage", text=said)
        return
    fact = said.removeprefix("Invalid value: ").replace(_FROM_A_CHOICE, "")
    ends = fact.endswith((".", "?")) or _ENDS_IN_COMMAND.search(fact)
    fact = fact if ends else f"{fact}."
    step = f"See: {'emceepee' if context is None else context.command_path} --help"
    is_value = isinstance(error, typer.BadParameter) and error.message
    usage = "" if context is None or is_value else f"{context.get_usage()}\n"
    terminal.failure(fact, f"{usage}{step}", code="usage")


def _abandon_stdout() -> None:
    """Whoever read it has enough: what is left in the buffer goes nowhere, quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT_FD)
    os.close(nowhere)


def _debugging() -> bool:
    return "--debug" in takewhile(lambda word: word.startswith("-"), sys.argv[1:])
