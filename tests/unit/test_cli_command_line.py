"""The command line as a tree: what its rows say of commands that are not loaded."""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_group

from emceepee_stdio.cli import config
from emceepee_stdio.cli.command_line import LazyCommand, app


def _rows(group: Any, path: str) -> Iterator[tuple[str, Any, LazyCommand]]:
    for name, row in group.lazy.items():
        command = group.commands[name]
        yield f"{path} {name}", command, row
        if hasattr(command, "lazy"):
            yield from _rows(command, f"{path} {name}")


@pytest.mark.parametrize(
    ("command", "row"), [pytest.param(*rest, id=path) for path, *rest in _rows(get_group(app), "")]
)
def test_a_summary_is_the_first_sentence_of_the_help(command: Any, row: LazyCommand) -> None:
    assert row.summary == command.help.split("\n\n")[0]
    assert len(row.summary) <= 60, "a list of commands is read at 80 columns"


def test_the_help_of_all_commands_loads_none_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("emceepee_stdio.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    line = import_module("emceepee_stdio.cli.command_line")
    assert line.app(["--help"], standalone_mode=False) == 0
    assert "Register emceepee in an MCP client." in capsys.readouterr().out
    loaded = {name for name in sys.modules if name.startswith("emceepee_stdio.cli.")}
    assert loaded == {"emceepee_stdio.cli.command_line", "emceepee_stdio.cli.terminal"}


@pytest.mark.parametrize(
    "command", [pytest.param(command, id=path) for path, command, _ in _rows(get_group(app), "")]
)
def test_every_parameter_says_what_it_is_for(command: Any) -> None:
    assert [one.name for one in command.params if not one.help] == []


def test_a_docstring_that_names_no_parameter_of_its_command_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def brew(*, cups: int = 1) -> None:
        """Brew.

        Takes:
          cups: How many.
          milk: Whether to
              add some.

        Example: emceepee brew
        """
        del cups

    monkeypatch.setattr(config, "brew", brew, raising=False)
    with pytest.raises(ValueError, match=r"config:brew takes no milk"):
        LazyCommand("config:brew", "Brew.").load("brew")
