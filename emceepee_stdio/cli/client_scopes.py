"""The scopes in which a client keeps its servers: for the user, for one project, in its file.

What stands in a project's file somebody else may have written: none of it is taken over before the
person has seen it and agreed.
"""

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.secret_values import shown_entry
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import Client
from emceepee_stdio.config.edit import EditRefused, guard, read_file
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.jsonc import Steps
from emceepee_stdio.visible_text import on_one_line

__all__ = ["ClientScope", "local_place", "other_directories", "refusal", "scopes_of"]

_STREAMS = (0, 2)
_REJECTED = "disabledMcpjsonServers"  # what the person refused of a project's file, in the client


class ClientScope(NamedTuple):
    """Some servers of a client: where they stand, and what the person refused of them there."""

    title: Literal["user", "local", "project"]
    path: Path
    steps: Steps
    servers: Mapping[str, object]
    rejected: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """The scope and its directory or file, for a message."""
        return local_place(self.steps) or f"{self.title}, {self.path}"


def local_place(section: Steps) -> str:
    """The local scope and its directory, for a message; empty if the section is the user's."""
    _, *inside = section
    return f"local, {on_one_line(str(inside[0]))}" if inside else ""


def scopes_of(
    client: Client, path: Path, text: str, directory: Path, terminal: Terminal
) -> list[ClientScope]:
    """The person's own first: the closest, then the user's; a project's file comes last."""
    with guard(path):
        document = client.language.read(text)
        user = ClientScope("user", path, (client.section,), client.servers(text))
    projects = _member(document, client.projects)
    places = [place for place in _project_names(directory) if is_object(projects.get(place))]
    local = [
        ClientScope(
            "local",
            path,
            (client.projects, place, client.section),
            _member(projects[place], client.section),
        )
        for place in places
    ]
    rejected = {name for place in places for name in _names(projects[place], _REJECTED)}
    files = _project_files(client, directory, frozenset(rejected), terminal)
    return [scope for scope in (*local, user, *files) if scope.servers or scope is user]


def other_directories(client: Client, text: str, directory: Path) -> list[str]:
    """Those for which the client has servers of their own, without this one."""
    projects = _member(client.language.read(text), client.projects)
    here = _project_names(directory)
    return [
        place
        for place, found in projects.items()
        if place not in here and _member(found, client.section)
    ]


def _member(value: object, key: str) -> Mapping[str, object]:
    found = value.get(key) if is_object(value) else None
    return found if is_object(found) else {}


def _names(value: object, key: str) -> list[str]:
    found = value.get(key) if is_object(value) else None
    return [str(name) for name in found] if is_list(found) else []


def _project_names(directory: Path) -> list[str]:
    """What a client calls the project here: by the repository's directory, or by this one."""
    around = (directory, *directory.parents)
    repository = next((place for place in around if (place / ".git").exists()), directory)
    return list(dict.fromkeys(map(str, (directory, repository))))


def _project_files(
    client: Client, directory: Path, rejected: frozenset[str], terminal: Terminal
) -> Iterator[ClientScope]:
    """The files of the projects around this directory, the nearest first."""
    if not client.project_file:
        return
    for place in (directory, *directory.parents):
        path = place / client.project_file
        try:
            with guard(path):
                servers = client.servers(read_file(path) or "")
        except EditRefused as error:
            terminal.note(f"{error.fact} Its servers are left out.")
            continue
        yield ClientScope("project", path, (client.section,), servers, rejected)


def refusal(
    scope: ClientScope, name: str, entry: object, terminal: Terminal, *, unasked: str
) -> str | None:
    """Why a server of a project's file is not taken over; None where the person agrees.

    With `unasked`, which says when a person is asked, nobody is.
    """
    if scope.title != "project":
        return None
    if name in scope.rejected:
        return "you refused it in the client."
    if unasked or not all(map(os.isatty, _STREAMS)):
        when = unasked if all(map(os.isatty, _STREAMS)) else "at a terminal you are asked"
        return f"it stands in {scope.path}: {when} whether to take it."
    from emceepee_stdio.cli.prompt import ask_whether  # noqa: PLC0415 - needs an event loop

    terminal.note(
        f"{scope.path}, a file of the project, which others may have written, has {name}:"
    )
    terminal.note(json.dumps(shown_entry(entry, [entry]), indent=2, ensure_ascii=False))
    question = f"Take {name} over?"
    agrees = interrupts.run(partial(ask_whether, question, terminal, usual=False))
    return None if agrees else "you did not agree."
