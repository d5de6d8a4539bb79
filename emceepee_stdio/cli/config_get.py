"""`emceepee config get`: one server of the configuration, with its secrets hidden."""

import os

from emceepee_stdio.cli.config_change import config_file, place_of
from emceepee_stdio.cli.configured_servers import state_of, state_word
from emceepee_stdio.cli.secret_values import shown_entry
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption, ServerArgument
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import guard, read_file
from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import label

__all__ = ["get"]


def get(name: ServerArgument, *, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show one server as it stands in the configuration, with secrets hidden.

    Example: emceepee config get github
    """
    file, terminal = config_file(config), Terminal()
    text = read_file(file) or ""
    with guard(file):
        place = place_of(text, name)
        entries = [one.entry for one in places(text)]
    state, reason = state_of(name, load_text(text, environ=os.environ, source=str(file)))
    entry = shown_entry(place.entry, entries)
    if as_json:
        terminal.document(
            {"name": name, "path": str(file), "state": state, "reason": reason, "entry": entry}
        )
        return
    terminal.line(f"{label(name)} is {state_word(state)}, in {file}:")
    terminal.data(entry)
    if reason and state != "off":
        terminal.note(reason)
