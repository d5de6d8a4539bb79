"""`emceepee config expose`: which tools of a server show in the client as themselves."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.config_rules import place_of
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.secret_values import ShowSecretsOption, show_changes
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.expose_edits import Exposed, exposed_at, set_exposed
from emceepee_stdio.config.load import default_path
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import label
from emceepee_stdio.config.tool_rules import pattern_problem

__all__ = ["expose"]


def expose(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which server.")],
    patterns: Annotated[
        list[str] | None,
        typer.Argument(metavar="['PATTERN']...", help="Names of tools; * and ? stand for others."),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="All tools, and prompts, resources and templates.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take these patterns out; without any, all of it.")
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Another file than the default one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Show which tools of a server the client is listed as themselves, or change it.

    A tool is listed as SERVER__TOOL, beside emceepee's own. Patterns are added to those that are
    there.

    Example: emceepee config expose github 'search_*'
    """
    file = default_path(os.environ) if config is None else config.expanduser()
    text = read_file(file) or ""
    with guard(file):
        place = place_of(text, name, file)
        before = exposed_at(place)
    given = tuple(patterns or ())
    if not (given or everything or remove):
        _show(name, before, as_json=as_json)
        return
    wanted = _wanted(name, before, given, everything=everything, remove=remove)
    with guard(file):
        change = Change(path=file, before=text, after=set_exposed(text, place, wanted))
    if dry_run:
        entries = [one.entry for one in places(text)]
        show_changes([change], entries, Terminal(), show_secrets=show_secrets)
    else:
        _apply(change, name)


def _wanted(
    name: str, before: Exposed, given: tuple[str, ...], *, everything: bool, remove: bool
) -> Exposed:
    if everything and (given or remove):
        raise typer.BadParameter("give either patterns, --all or --remove.")
    if everything:
        return True
    for pattern in given:
        if problem := pattern_problem(pattern):
            raise typer.BadParameter(f"{problem}.", param_hint="PATTERN")
    known = () if isinstance(before, bool) else before
    if not remove:
        if before is True:
            raise EditRefused(
                f"{label(name)} exposes everything already.",
                hint="To expose less, first run "
                f"`emceepee config expose {shlex.quote(name)} --remove`.",
            )
        return tuple(dict.fromkeys((*known, *given)))
    if not given:
        return False
    if missing := [pattern for pattern in given if pattern not in known]:
        raise EditRefused(
            f"{label(name)} does not expose {label(missing[0])}.",
            hint=f"See `emceepee config expose {shlex.quote(name)}` for what it exposes.",
        )
    return tuple(pattern for pattern in known if pattern not in given)


def _show(name: str, exposed: Exposed, *, as_json: bool) -> None:
    terminal = Terminal()
    if as_json:
        terminal.data({"server": name, "expose": exposed})
    elif exposed is True:
        terminal.line("All tools, prompts, resources and templates.")
    elif exposed:
        for pattern in exposed:
            terminal.line(pattern)
    else:
        command = f"emceepee config expose {shlex.quote(name)} 'PATTERN'"
        terminal.line(f"Nothing is exposed. To expose tools: {command}")


def _apply(change: Change, name: str) -> None:
    terminal = Terminal()
    backup = change.apply()
    if change.kind == "unchanged":
        terminal.line(f"Nothing to do: {change.path} says so already.")
        return
    terminal.line(f"Changed what {label(name)} exposes: {change.path}")
    if backup is not None:
        terminal.line(f"The file as it was: {backup}")
