"""`emceepee config add-json`: a server from the JSON that its documentation shows."""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from emceepee_stdio.cli.config_change import carry_out, config_file
from emceepee_stdio.cli.credential_notes import note_copies
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.plain_secrets import references
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.cli.secret_moves import offer_to_move
from emceepee_stdio.cli.secret_values import ShowSecretsOption
from emceepee_stdio.cli.shared_options import ConfigOption
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import jsonc
from emceepee_stdio.config.clients import CLIENTS
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.entries import KNOWN_KEYS
from emceepee_stdio.config.expand import keyring_names, keyring_reference
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.load import SECTIONS
from emceepee_stdio.config.own_file import Outcome, places, remove_server, take_over
from emceepee_stdio.config.server import label, name_problem
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["add_json"]

_MAX_JSON_CHARS = 1_000_000  # no entry is longer; a wrong file on stdin may be
# Under these names clients keep their servers; VS Code's settings had them inside of `mcp`.
_SECTIONS = frozenset(("mcp", *(client.section for client in CLIENTS.values())))


def add_json(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the server is to be called.")],
    document: Annotated[
        str, typer.Argument(metavar="JSON", help="Its entry, in single quotes; - reads stdin.")
    ],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a server of this name.")
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Add a server from JSON, as its documentation shows it for other clients.

    JSON is one entry, or the entry inside of "mcpServers" or "servers". Use - and stdin where it
    holds a secret: others see the command line.

    Example: emceepee config add-json time '{"command": "mcp-server-time"}'
    """
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.", param_hint="NAME")
    entry = _entry(name, _read(document))
    file = config_file(config)
    text = read_file(file)
    with guard(file):
        _refuse_references(name, entry, is_known=_has(text, name))
        base = (remove_server(text, name, source=str(file)) if replace else None) or text
        after, [outcome] = take_over(
            CLIENTS["claude-desktop"], {name: entry}, base, environ=os.environ, source=str(file)
        )
    if outcome.result in {"skipped", "itself"}:
        raise EditRefused(
            f"{label(name)} was not added: {outcome.reason}",
            hint=f"Nothing was changed; {_next_step(outcome, is_known=_has(base, name))}",
        )
    change = Change(path=file, before=text, after=after)
    carry_out(change, f"Added {label(name)}", dry_run=dry_run, show_secrets=show_secrets)
    terminal = Terminal()
    if outcome.reason and outcome.result == "taken":
        terminal.note(outcome.reason)
    if not dry_run:
        offer_to_move(file, [name], terminal, asks=True, moves=False)
        note_copies(file, after, name, terminal)


def _has(text: str | None, name: str) -> bool:
    return any(place.name == name for place in places(text))


def _refuse_references(name: str, entry: Mapping[str, object], *, is_known: bool) -> None:
    """`config add` may refer to the keyring: there a person types each reference."""
    secrets = references(json.dumps({SECTIONS[0]: {name: entry}}))
    if not secrets:
        return
    replace = ["--replace"] if is_known else []
    words = ["emceepee", "config", "add", name, *replace, *_options(entry)]
    raise EditRefused(
        f"{label(name)} was not added: it refers to the keyring ({', '.join(secrets)}). JSON that "
        "is pasted comes from elsewhere, so it must not read your keyring.",
        hint=with_command(
            "Nothing was changed. To give the server a secret from the keyring", shlex.join(words)
        ),
    )


def _options(entry: Mapping[str, object]) -> list[str]:
    """What gives `config add` the secrets to which the entry refers."""
    if "command" in entry:
        keys = list(_referring(entry, "env")) or ["K"]
        return [*(word for key in keys for word in ("--secret-env", key)), "--", "COMMAND"]
    headers = [f"{name}: {value}" for name, value in _referring(entry, "headers").items()]
    return [*(word for header in headers for word in ("--header", header)), "--url", "URL"]


def _referring(entry: Mapping[str, object], key: str) -> dict[str, str]:
    """Its variables or headers that are references, without what else is in them."""
    found = entry.get(key)
    texts = {name: str(text) for name, text in found.items()} if is_object(found) else {}
    scheme = "Bearer "
    return {
        name: f"{scheme if text.startswith(scheme) else ''}{keyring_reference(names[0])}"
        for name, text in texts.items()
        if (names := keyring_names(text))
    }


def _next_step(outcome: Outcome, *, is_known: bool) -> str:
    if outcome.result == "itself":
        return "add the servers that it is to serve, one by one."
    return "choose another name, or add --replace." if is_known else "correct the entry."


def _read(document: str) -> object:
    text = sys.stdin.read(_MAX_JSON_CHARS) if document == "-" else document
    try:
        return jsonc.read(text)
    except jsonc.Unreadable as error:
        # Its text may hold a secret, so only the place is shown.
        raise typer.BadParameter(
            f"this is not JSON at line {error.line}, column {error.column}: {error.reason}.",
            param_hint="JSON",
        ) from None


def _entry(name: str, document: object) -> dict[str, object]:
    """The one entry that the document holds, in whatever it is wrapped."""
    found = document
    while is_object(found) and (sections := _SECTIONS & found.keys()):
        found = found[min(sections)]
    in_section = found is not document
    while is_object(found) and _holds_servers(found, in_section=in_section):
        inner = [value for value in found.values() if is_object(value)]
        if name not in found and len(inner) > 1:
            raise ConfigInvalid(
                f"The JSON holds several servers: {', '.join(map(label, found))}.",
                hint="Add them one by one; NAME chooses the one that has this name.",
            )
        found, in_section = found.get(name, inner[0]), False
    if not is_object(found):
        raise typer.BadParameter(
            "expected the entry of one server: an object with command or url.", param_hint="JSON"
        )
    return found


def _holds_servers(found: Mapping[str, object], *, in_section: bool) -> bool:
    """Whether it has servers by their names, and is not itself an entry."""
    are_objects = [is_object(value) for value in found.values()]
    is_entry = KNOWN_KEYS & found.keys() and not (in_section and all(are_objects))
    return any(are_objects) and not is_entry
