"""The servers of the configuration, a row for each: name, state, and what it starts or calls.

Programs read `off` where people read "disabled".
"""

import shlex
from collections.abc import Mapping, Sequence

from emceepee_stdio.cli.secret_values import shown_entry
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import Config
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.own_file import ConfigLocation, ignored, places
from emceepee_stdio.config.server import label

__all__ = [
    "configured_rows",
    "note_reasons",
    "note_warnings",
    "show_rows",
    "state_of",
    "state_word",
    "target_of",
]

Row = dict[str, object]

_WORDS = {"off": "disabled"}
_STYLES = {"usable": "green", "broken": "red", "disabled": "dim", "ignored": "yellow"}
_SKIPPED = "it is skipped; `emceepee config check` says why."


def configured_rows(text: str | None, loaded: Config) -> list[Row]:
    """Each entry of the file as it may be shown, and whether it is used."""
    rows: list[tuple[ConfigLocation, Row]] = []
    for place in places(text):
        state, reason = state_of(place.name, loaded)
        if any(place.name == above.name for above, _ in rows):
            state, reason = "ignored", "the first server of this name is used."
        row: Row = {"name": label(place.name), "state": state}
        rows.append((place, row if reason is None else {**row, "reason": reason}))
    for place in ignored(text):
        reason = "the same key stands again further down, and the last one is used."
        rows.append((place, {"name": label(place.name), "state": "ignored", "reason": reason}))
    entries = [place.entry for place, _ in rows]
    return [{**row, "entry": shown_entry(place.entry, entries)} for place, row in rows]


def state_of(name: str, loaded: Config) -> tuple[str, str | None]:
    """Whether an entry of this name is used, for programs, and why not."""
    if any(server.name == name for server in loaded.servers):
        return "usable", None
    unused = next((one for one in loaded.disabled if one.name == label(name)), None)
    if unused is None:
        return "broken", _SKIPPED
    return "off" if unused.switched_off else "broken", unused.reason


def state_word(state: object) -> str:
    """What people read for it."""
    return _WORDS.get(str(state), str(state))


def show_rows(rows: Sequence[Row], terminal: Terminal, *, one_line: bool = False) -> None:
    """A table; with `one_line`, what is too wide for the terminal is cut."""
    if not rows:
        terminal.line("No servers yet. Add one: emceepee config add NAME -- COMMAND ARGS")
        return
    terminal.table(
        ("NAME", "STATE", "COMMAND OR URL"),
        [(str(row["name"]), state_word(row["state"]), target_of(row["entry"])) for row in rows],
        styles=_STYLES,
        one_line=one_line,
    )


def note_reasons(rows: Sequence[Row], terminal: Terminal) -> None:
    """Why some are not used; nobody needs to be told what they disabled."""
    for row in rows:
        if row["state"] in {"broken", "ignored"}:
            terminal.note(f"{row['name']}: {row['reason']}")


def note_warnings(config: Config, terminal: Terminal) -> None:
    """What is odd about the file; a typo may be why it has no servers."""
    for warning in config.warnings:
        terminal.note(f"warning: {warning}")


def target_of(entry: object) -> str:
    """What an entry without secrets starts or calls, on one line."""
    if not is_object(entry):
        return ""
    inner = entry.get("command")
    line: Mapping[str, object] = inner if is_object(inner) else entry
    command = line.get("path") if is_object(inner) else inner
    if not isinstance(command, str):
        url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if entry.get(key)), "")
        return str(url)
    args = line.get("args")
    words = [command, *(map(str, args) if is_list(args) else ())]
    return shlex.join(words)
