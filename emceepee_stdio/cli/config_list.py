"""`emceepee config list`: the servers of the configuration, each on a line."""

import os

from emceepee_stdio.cli.config_change import config_file
from emceepee_stdio.cli.configured_servers import (
    configured_rows,
    note_warnings,
    show_rows,
    target_of,
)
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import load_file
from emceepee_stdio.config.edit import read_file

__all__ = ["list_configured"]


def list_configured(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the servers of the configuration: name, state, and command or URL without secrets.

    The state is what the file says. `emceepee doctor` tries the servers.

    Example: emceepee config list
    """
    file, terminal = config_file(config), Terminal()
    loaded = load_file(config, environ=os.environ)
    rows = configured_rows(read_file(file), loaded)
    if as_json:
        servers = [
            {key: value for key, value in row.items() if key != "entry"}
            | {"target": target_of(row["entry"])}
            for row in rows
        ]
        terminal.document({"path": str(file), "servers": servers})
        return
    if not rows:
        note_warnings(loaded, terminal)
    show_rows(rows, terminal, one_line=True)
    if any(row["state"] in {"broken", "ignored"} for row in rows):
        terminal.note("See why: emceepee config check")
