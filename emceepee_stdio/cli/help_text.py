"""The help of a command: one value, shown at a terminal and written into docs/cli.md.

Typer names types where a person expects a placeholder, and breaks a sentence where its source
does. Here a flag has no placeholder, and a paragraph fills the lines of the terminal.
"""

import inspect
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

    _Base = Command
else:
    _Base = object  # Typer has no public name for what its commands and groups share

__all__ = ["CommandHelp", "HelpCommand", "HelpGroup", "HelpRow", "command_help"]

_EXAMPLE = "Example: "
_WIDEST_LINE = 100  # longer lines are hard to read, however wide the terminal
_WIDEST_TERM = 26  # a longer option stands on a line of its own


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
    inner: dict[str, Any] = getattr(command, "commands", {})
    return CommandHelp(
        usage=" ".join([path, *_usage(command)]),
        paragraphs=tuple(part for part in parts if part and not part.startswith(_EXAMPLE)),
        arguments=tuple(HelpRow(_placeholder(one), _about(one)) for one in arguments),
        options=(
            *(HelpRow(_option(one), _about(one)) for one in options if not one.hidden),
            HelpRow("-h, --help", "Show this help and exit."),
        ),
        commands=tuple(HelpRow(name, _first_sentence(one)) for name, one in inner.items()),
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


def _first_sentence(command: Any) -> str:
    paragraph = inspect.cleandoc(command.help or "").split("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].removesuffix(".") + "."


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
        _convert_nothing_to_complete(self, ctx)
        return super().parse_args(ctx, args)


class HelpCommand(_OwnHelp, TyperCommand):
    """One command."""


class HelpGroup(_OwnHelp, TyperGroup):
    """Several commands."""


def _convert_nothing_to_complete(command: Any, ctx: "Context") -> None:
    """The words before the one that a shell completes stay as they are: to check them is slow."""
    if ctx.resilient_parsing:
        for parameter in command.get_params(ctx):
            parameter.process_value = _as_typed


def _as_typed(ctx: "Context", value: object) -> object:
    del ctx  # the signature that Typer calls
    return value
