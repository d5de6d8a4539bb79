"""The command `emceepee`: the table of commands, their help, and how a failure is shown.

A failure is one sentence with the next step on stderr and a non-zero exit code; a traceback is
only for those who ask for it with `--debug`.
"""

import inspect
import re
import shutil
import sys
import textwrap
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from emceepee_stdio import __version__
from emceepee_stdio.cli.terminal import ExitCode, abandon_stdout, terminal
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.visible_text import docstring_parts

# The help of a command: one value, shown at a terminal and written into docs/reference/cli.md.
#
# Typer names types where a person expects a placeholder, and breaks a sentence where its source
# does. Here a flag has no placeholder, and a paragraph fills the lines of the terminal.


if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

    _Base = Command
else:
    _Base = object  # Typer has no public name for what its commands and groups share

_EXAMPLE = "Example: "
_WIDEST_LINE = 100  # longer lines are hard to read, however wide the terminal
_WIDEST_TERM = 26  # a longer option stands on a line of its own


def flag(*names: str, about: str | None = None, **settings: Any) -> Any:
    """An option without a value."""
    return typer.Option(*names, help=about, **settings)


def option(metavar: str, *names: str, about: str | None = None, **settings: Any) -> Any:
    """An option with a value."""
    return typer.Option(*names, metavar=metavar, help=about, **settings)


def argument(metavar: str, *, about: str | None = None, **settings: Any) -> Any:
    return typer.Argument(metavar=metavar, help=about, **settings)


class HelpRow(NamedTuple):
    """An argument, an option or a command, and what it is for."""

    term: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHelp:
    """What a person is told about one command."""

    usage: str
    paragraphs: tuple[str, ...]
    arguments: tuple[HelpRow, ...]
    options: tuple[HelpRow, ...]
    commands: tuple[HelpRow, ...]
    examples: tuple[str, ...]

    def text(self, columns: int) -> str:
        """As lines of this width."""
        width = min(columns, _WIDEST_LINE) - 1  # a full line makes some terminals skip one
        lines = [*_filled(f"Usage: {self.usage}", width, indent="       ")]
        for paragraph in self.paragraphs:
            lines += ["", *_filled(paragraph, width)]
        for title in ("arguments", "options", "commands"):
            if rows := getattr(self, title):
                lines += ["", f"{title.capitalize()}:", *_table(rows, width)]
        if self.examples:
            title = "Examples" if self.examples[1:] else "Example"
            lines += ["", f"{title}:", *(f"  {example}" for example in self.examples)]
        return "\n".join(lines)


def command_help(command: Any, path: str) -> CommandHelp:
    """The help of a command of Typer, by the words with which it is started."""
    about = inspect.cleandoc(command.help or "")
    parts = [" ".join(part.split()) for part in about.split("\n\n")]
    examples = [line for line in about.splitlines() if line.startswith(_EXAMPLE)]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    lazy: Mapping[str, LazyCommand] = getattr(command, "lazy", {})
    return CommandHelp(
        usage=" ".join([path, *_usage(command)]),
        paragraphs=tuple(part for part in parts if part and not part.startswith(_EXAMPLE)),
        arguments=tuple(HelpRow(_placeholder(one), _about(one)) for one in arguments),
        options=(
            *(HelpRow(_option(one), _about(one)) for one in options if not one.hidden),
            HelpRow("-h, --help", "Show this help and exit."),
        ),
        commands=tuple(HelpRow(name, one.summary) for name, one in lazy.items()),
        examples=tuple(line.removeprefix(_EXAMPLE) for line in examples),
    )


def _usage(command: Any) -> Iterator[str]:
    yield "[OPTIONS]"
    if hasattr(command, "commands"):
        yield "COMMAND"
    yield from (_placeholder(one) for one in command.params if one.param_type_name == "argument")


def _placeholder(argument: Any) -> str:
    name: str = argument.metavar or argument.name.upper()
    if name.startswith("["):
        return name
    name = name if argument.required else f"[{name}]"
    return f"{name}..." if argument.nargs == -1 else name


def _option(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return f"{names} / {', '.join(option.secondary_opts)}"
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


def _about(parameter: Any) -> str:
    """Its help, with its default where that says something."""
    text: str = parameter.help or ""
    default = parameter.default
    if isinstance(parameter.show_default, str):
        shown = parameter.show_default
    elif parameter.param_type_name != "option" or callable(default):
        shown = ""
    elif isinstance(default, bool):
        names = parameter.opts if default else parameter.secondary_opts
        shown = max(names, key=len) if parameter.secondary_opts else ""
    elif isinstance(default, int | float):
        shown = f"{default:g}"
    else:
        shown = default if isinstance(default, str) else ""
    return f"{text} Default: {shown}." if shown else text


def _table(rows: Sequence[HelpRow], width: int) -> Iterator[str]:
    longest = max((len(row.term) for row in rows if len(row.term) <= _WIDEST_TERM), default=0)
    margin = " " * (longest + 4)
    for term, text in rows:
        first = f"  {term}".ljust(len(margin))
        if len(first) > len(margin):
            yield first
            first = margin
        yield from _filled(text, width, first=first, indent=margin)


def _filled(text: str, width: int, *, first: str = "", indent: str = "") -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


class _OwnHelp(_Base):
    """What one command and a group of them have in common."""

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:
        del ctx  # the command says it all
        return list(_usage(self))

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        # Of a parent, `emceepee [OPTIONS]`, only its name counts here.
        columns = shutil.get_terminal_size().columns
        formatter.write(command_help(self, ctx.command_path).text(columns))

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # to check the words before the one to complete is slow
            for parameter in cast("list[Any]", self.get_params(ctx)):
                parameter.process_value = _as_typed
        return super().parse_args(ctx, args)


def _as_typed(_ctx: object, value: object) -> object:
    return value


class HelpCommand(_OwnHelp, TyperCommand):
    """One command."""


# A group of commands, each loaded when it is wanted.
#
# A shell that completes a line, or a person who runs a command, waits for that command alone; the
# help of the group needs the summaries alone.


_PACKAGE = "emceepee_stdio.cli"


class LazyCommand(NamedTuple):
    """A command that is imported when it is run."""

    where: str  # `module:function` or `module:group`
    summary: str  # the first sentence of its help
    cls: str | None = None  # if not the usual one

    def load(self, name: str) -> Any:
        found = _named(self.where)
        if isinstance(found, typer.Typer):
            made = get_group(found)
            made.name = name
            return made
        about, texts = docstring_parts(inspect.cleandoc(found.__doc__ or ""))
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        cls = HelpCommand if self.cls is None else _named(self.cls)
        alone.command(name, cls=cls, help=about)(found)
        made = get_command(alone)
        for param in cast("list[Any]", made.params):
            param.help = texts.pop(param.name, param.help)
        if texts:
            raise ValueError(f"{self.where} takes no {', '.join(texts)}.")
        return made


def _named(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(f"{_PACKAGE}.{module}"), name)


class _Commands(UserDict[str, Any]):
    """By name, in their order; the names alone load nothing."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, LazyCommand):
            found = self.data[name] = found.load(name)
        return found


class _Group(_OwnHelp, TyperGroup):
    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, *, commands: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands({**commands, **self.lazy})

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx  # the same in each
        return list(self.commands)


class CommandGroup(typer.Typer):
    """Commands that show their help as one value."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand], **settings: Any) -> None:
        # Typer makes the group by itself, from a class.
        cls = type("LazyGroup", (_Group,), {"lazy": lazy})
        super().__init__(cls=cls, rich_markup_mode=None, **settings)


_FROM_A_CHOICE = "Value error, "  # with which Typer begins what a choice says
_ENDS_IN_COMMAND = re.compile(r": emceepee [^\n]+\Z")  # to be copied, so without a full stop
_FOR_ANY_SERVER = "shared_options:ServerCommand"

app = CommandGroup(
    name="emceepee",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    lazy={
        "install": LazyCommand("clients.install:install", "Register emceepee in an MCP client."),
        "uninstall": LazyCommand(
            "clients.import_servers:uninstall", "Remove emceepee from an MCP client."
        ),
        "doctor": LazyCommand("doctor.doctor:doctor", "Check the setup and try every server."),
        "status": LazyCommand("status:status", "Show the running proxies."),
        "tail-logs": LazyCommand("tail_logs:tail_logs", "Follow the logs of all running proxies."),
        "trace": LazyCommand("trace:trace", "Show requests: how long each took and how it ended."),
        "ls": LazyCommand(
            "ls:ls", "List tools, prompts and resources of the servers.", cls=_FOR_ANY_SERVER
        ),
        "call": LazyCommand("call:call", "Call a tool of a server.", cls=_FOR_ANY_SERVER),
        "read": LazyCommand(
            "call:read_resource", "Read a resource of a server.", cls=_FOR_ANY_SERVER
        ),
        "prompt": LazyCommand("call:get_prompt", "Get a prompt of a server.", cls=_FOR_ANY_SERVER),
        "login": LazyCommand("login:login", "Sign in to a server with OAuth."),
        "logout": LazyCommand("login:logout", "Delete the tokens of a server."),
        "approve": LazyCommand("approve:approve", "Allow or refuse what waits for you."),
        "demo": LazyCommand("demo:demo", "See it at work: the real proxy and a small server."),
        "serve": LazyCommand("serve_http:serve", "Serve MCP on stdin and stdout, or over HTTP."),
        "config": LazyCommand("config:app", "Look at the configuration, and change it."),
        "secrets": LazyCommand("keyring_secrets:app", "Keep secrets in the keyring."),
    },
)


def _version(wanted: bool) -> None:  # noqa: FBT001 - the signature that Typer calls
    if wanted:
        terminal.line(f"emceepee {__version__}")
        raise typer.Exit


@app.callback()
def emceepee(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        flag("--version", about="Show the version and exit.", callback=_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, flag("--debug", about="Show where a failure comes from; before the command.")
    ] = False,
) -> None:
    """One MCP server for your client, with all your other servers behind it."""
    del version, debug  # both are seen to before this
    if context.invoked_subcommand is None:
        _named("serve_http:welcome")()


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
    except BrokenPipeError:
        abandon_stdout()
        return 0
    except Exception as error:
        if "--debug" in takewhile(lambda word: word.startswith("-"), sys.argv[1:]):
            raise
        _tell_failure(error)
        return ExitCode.FAILED
    return code if isinstance(code, int) else 0


def _tell_failure(error: Exception) -> None:
    if isinstance(error, ProxyError):
        terminal.failure(error.whole_fact, error.for_person, code=error.code)
        return
    if isinstance(error, OSError):
        code = "system"
        where = f" ({error.filename})" if isinstance(error.filename, str) else ""
        fact = f"The system refused something: {error.strerror or type(error).__name__}{where}."
        step = "Check the permissions there, and run the command again."
    else:
        code = "unexpected"
        # Its text may hold anything, so only its kind is shown.
        fact = f"an unexpected {type(error).__name__} stopped this command."
        step = "Run it as `emceepee --debug …` to see where, and report that."
    terminal.failure(fact, step, code=code, text=f"emceepee: {fact} {step}")


def _tell_mistake(error: TyperException) -> None:
    """What is wrong with a command line; the usage only where a word is missing or unknown."""
    said, context = error.format_message(), getattr(error, "ctx", None)
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
