"""A change of our own configuration file by a command: shown as a diff, or made and told."""

import os
from pathlib import Path

from emceepee_stdio.cli.secret_values import show_changes
from emceepee_stdio.cli.server_choice import unknown_server
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change
from emceepee_stdio.config.load import default_path
from emceepee_stdio.config.own_file import ConfigLocation, places
from emceepee_stdio.config.server import label

__all__ = ["carry_out", "config_file", "place_of"]


def config_file(config: Path | None) -> Path:
    """The file that the option names, or the default one."""
    return default_path(os.environ) if config is None else config.expanduser()


def place_of(text: str | None, name: str) -> ConfigLocation:
    """Where an entry stands; the error names the one that may be meant."""
    found = {place.name: place for place in places(text)}
    if name not in found:
        raise unknown_server(name, {one: label(one) for one in found}, argument="NAME")
    return found[name]


def carry_out(
    change: Change, what: str, *, dry_run: bool, show_secrets: bool, as_json: bool = False
) -> None:
    """Make the change and say so, or show it as a diff; `what` is the deed in a few words."""
    terminal = Terminal()
    if dry_run:
        entries = [place.entry for text in (change.before, change.after) for place in places(text)]
        show_changes([change], entries, terminal, show_secrets=show_secrets)
        return
    backup = change.apply()
    if as_json:
        terminal.document(change.facts(backup))
        return
    if change.kind == "unchanged":
        terminal.line(f"Nothing to do: {change.path} is like this already.")
        return
    terminal.line(f"{what}: {change.path}")
    if backup is not None:
        terminal.line(f"The file as it was: {backup}")
