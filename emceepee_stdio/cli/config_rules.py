"""`emceepee config rules`: which tools of a server run, are asked for, or are off."""

import shlex
from typing import Annotated, get_args

import typer

from emceepee_stdio.cli.completions import complete_patterns
from emceepee_stdio.cli.config_change import carry_out, config_file, place_of
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.secret_values import ShowSecretsOption
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption, ServerArgument
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.own_file import ConfigLocation
from emceepee_stdio.config.rule_edits import overruled, remove_rule, rules_at, set_rule
from emceepee_stdio.config.server import Rule, label
from emceepee_stdio.config.tool_rules import pattern_problem

__all__ = ["rules"]

_STYLES = {"allow": "green", "ask": "yellow", "off": "red"}


def rules(
    name: ServerArgument,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="['PATTERN']",
            help="Names of tools; * and ? stand for others.",
            autocompletion=complete_patterns,
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Argument(
            metavar="[allow|ask|off]",
            help="What holds for them.",
            autocompletion=lambda: list(get_args(Rule)),
        ),
    ] = None,
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the rule for this pattern out.")
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rules for the tools of a server, or change one.

    allow: they run. ask: you are asked before each call. off: they are hidden and refused. If
    several rules match, the last one counts; a new rule becomes the last. A tool without a rule is
    allowed.

    Example: emceepee config rules github 'delete_*' off
    """
    file = config_file(config)
    text = read_file(file) or ""
    with guard(file):
        place = place_of(text, name)
    if pattern is None:
        _show(place, Terminal(), as_json=as_json)
        return
    chosen = _chosen(rule, remove=remove)
    if problem := pattern_problem(pattern):
        raise typer.BadParameter(f"{problem}.", param_hint="PATTERN")
    with guard(file):
        after = (
            remove_rule(text, name, pattern)
            if chosen is None
            else set_rule(text, name, pattern, chosen)
        )
    if after is None:
        raise EditRefused(
            f"{label(name)} has no rule for {label(pattern)}.",
            hint=f"See `emceepee config rules {shlex.quote(name)}` for those that it has.",
        )
    change = Change(path=file, before=text, after=after)
    what = f"Changed the rules of {label(name)}"
    carry_out(change, what, dry_run=dry_run, show_secrets=show_secrets, as_json=as_json)
    if chosen is not None:
        _warn(place, pattern, chosen)


def _chosen(rule: str | None, *, remove: bool) -> Rule | None:
    """The rule to set; None to take one out."""
    if remove:
        if rule is not None:
            raise typer.BadParameter("give either a rule or --remove.")
        return None
    for known in get_args(Rule):
        if rule == known:
            return known
    raise typer.BadParameter("expected allow, ask or off, or --remove.", param_hint="RULE")


def _show(place: ConfigLocation, terminal: Terminal, *, as_json: bool) -> None:
    found = rules_at(place)
    if as_json:
        listed = [{"pattern": pattern, "rule": rule} for pattern, rule in found.items()]
        terminal.document({"server": place.name, "rules": listed})
    elif found:
        terminal.table(("PATTERN", "RULE"), list(found.items()), styles=_STYLES)
    else:
        name = shlex.quote(place.name)
        terminal.line(f"No rules: every tool runs. Set one: emceepee config rules {name} '*' ask")


def _warn(place: ConfigLocation, pattern: str, rule: Rule) -> None:
    """What the new rule, as the last one, takes the effect from."""
    for earlier, said in overruled(rules_at(place), pattern, rule).items():
        again = f"emceepee config rules {shlex.quote(place.name)} {shlex.quote(earlier)} {said}"
        Terminal().note(
            f"It stands last, so it counts for {label(earlier)} as well, which was {said}. "
            f"To put that behind it: {again}"
        )
