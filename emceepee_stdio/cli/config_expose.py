"""`emceepee config expose`: which tools of a server show in the client as themselves."""

import os
import shlex
from typing import Annotated

import typer

from emceepee_stdio.cli.completions import complete_patterns
from emceepee_stdio.cli.config_change import carry_out, config_file, place_of
from emceepee_stdio.cli.exposed_view import KnownExposure, known_exposure, say_listed
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.secret_values import ShowSecretsOption
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption, ServerArgument
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.expose_edits import Exposed, exposed_at, set_exposed
from emceepee_stdio.config.load import load_file, load_text
from emceepee_stdio.config.own_file import ConfigLocation
from emceepee_stdio.config.server import label
from emceepee_stdio.config.tool_rules import pattern_problem
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["expose"]

_WHEN = (
    "Running sessions follow within seconds. The first new session lists new tools when the server "
    "is up, and tells its client then; later ones list them at once."
)


def expose(
    name: ServerArgument,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="['PATTERN']...",
            help="Names of tools; * and ? stand for others.",
            autocompletion=complete_patterns,
        ),
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
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or change which tools of a server the client sees as tools of their own.

    A tool is listed as SERVER__TOOL, beside emceepee's own. Patterns are added to those that are
    there.

    Example: emceepee config expose github 'search_*'
    """
    file = config_file(config)
    text = read_file(file) or ""
    with guard(file):
        place = place_of(text, name)
    given = tuple(patterns or ())
    changes = bool(given or everything or remove)
    before = _before(place, changes=changes)
    if not changes:
        known = known_exposure(load_file(file, environ=os.environ), os.environ).get(name)
        _show(name, before, known, as_json=as_json)
        return
    wanted = _wanted(name, before, given, everything=everything, remove=remove)
    with guard(file):
        change = Change(path=file, before=text, after=set_exposed(text, place, wanted))
    what = f"Changed what {label(name)} exposes"
    carry_out(change, what, dry_run=dry_run, show_secrets=show_secrets, as_json=as_json)
    if wanted and not as_json:
        after = load_text(change.after or "", environ=os.environ, source=str(file))
        say_listed(name, known_exposure(after, os.environ).get(name))
        if not dry_run:
            Terminal().line(_WHEN)


def _before(place: ConfigLocation, *, changes: bool) -> Exposed:
    """What the entry exposes; what cannot be read is replaced by a change."""
    try:
        return exposed_at(place)
    except ConfigInvalid as error:
        if not changes:
            command = f"emceepee config expose {shlex.quote(place.name)} 'PATTERN'"
            raise EditRefused(error.fact, hint=f"To replace it: {command}") from None
        Terminal().note("What stands there cannot be read, and is replaced.")
        return False


def _wanted(
    name: str, before: Exposed, given: tuple[str, ...], *, everything: bool, remove: bool
) -> Exposed:
    if everything and (given or remove):
        raise typer.BadParameter(
            "--all exposes everything: give it without patterns and without --remove."
        )
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


def _show(name: str, exposed: Exposed, known: KnownExposure | None, *, as_json: bool) -> None:
    terminal = Terminal()
    if as_json:
        shown: dict[str, object] = {"server": name, "expose": exposed}
        if known is not None:
            shown |= {"listed_as": known.names, "matches_nothing": known.idle, "known_at": known.at}
        terminal.document(shown)
        return
    if exposed is True:
        terminal.line("All tools, prompts, resources and templates.")
    elif exposed:
        for pattern in exposed:
            terminal.line(pattern)
    else:
        command = f"emceepee config expose {shlex.quote(name)} 'PATTERN'"
        terminal.line(f"Nothing is exposed. To expose tools: {command}")
        return
    say_listed(name, known)
