"""A group of commands, each loaded when it is wanted.

A shell that completes a line, or a person who runs a command, waits for that command alone; the
help of the group loads them all.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from emceepee_stdio.cli.help_text import HelpCommand, HelpGroup

__all__ = ["CommandGroup", "LazyCommand"]

_PACKAGE = "emceepee_stdio.cli"


class LazyCommand(NamedTuple):
    """Where a command is, `module:function` or `module:group`, and its class, if not the usual."""

    where: str
    cls: str | None = None

    def load(self, name: str) -> Any:
        found = _named(self.where)
        if isinstance(found, typer.Typer):
            made = get_group(found)
            made.name = name
            return made
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, cls=HelpCommand if self.cls is None else _named(self.cls))(found)
        return get_command(alone)


def _named(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(f"{_PACKAGE}.{module}"), name)


class _Commands(MutableMapping[str, Any]):
    """By name, in their order; whoever only wants to know the names loads nothing."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        self._commands = dict(commands)

    def __getitem__(self, name: str) -> Any:
        found = self._commands[name]
        if isinstance(found, LazyCommand):
            found = self._commands[name] = found.load(name)
        return found

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._commands))

    def __len__(self) -> int:
        return len(self._commands)


class _Group(HelpGroup):
    lazy: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, *, commands: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands({**commands, **self.lazy})

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx  # the same in each
        return list(self.commands)


class CommandGroup(typer.Typer):
    """Commands that show their help as `help_text` has it; those of `lazy` come last."""

    def __init__(self, *, lazy: Mapping[str, LazyCommand] | None = None, **settings: Any) -> None:
        # Typer makes the group by itself, from a class.
        cls = type("LazyGroup", (_Group,), {"lazy": lazy or {}})
        super().__init__(cls=cls, rich_markup_mode=None, **settings)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Any:
        """Make a function a command."""
        return super().command(name, cls=cls or HelpCommand, **settings)
