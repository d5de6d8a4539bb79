"""Servers that were moved from a client behind emceepee, as the backups of its file have them.

A backup is the file as it was before an edit of ours; between two edits the person may change it.
So the first version of the file without a server tells who took the server out:

- If emceepee's entry stands there, an import took the server out: it was moved.
- If not, the person removed it, and it is not put back. For this a restore keeps the file as it
  left it: otherwise no version would show that the server was there again.
- The file of now is an exception, because a person may remove emceepee's entry by hand after an
  import: a server that is missing there counts as moved, unless it had come back before.

Only the newest of these changes counts for a server. Each is judged by two versions next to each
other, so it does not matter that the oldest backups are lost.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from emceepee_stdio.config.clients import Client, is_ours
from emceepee_stdio.config.entries import is_off
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import Steps, Unreadable

__all__ = ["kept_off", "moved_servers", "put_back", "servers_by_place", "with_servers"]


def moved_servers(
    client: Client, text: str, copies: Sequence[str], behind: Container[str | int]
) -> dict[Steps, object]:
    """Those that the client lacks now and emceepee has, each as the newest copy has it.

    The copies are the backups, the newest first.
    """
    now = servers_by_place(client, text)
    moved: dict[Steps, object] = {}
    came_back: set[Steps] = set()
    for before, after in pairwise([*_readable(client, reversed(copies)), now]):
        is_registered = any(map(is_ours, after.values()))
        if is_registered:
            moved |= before
        elif after is now:
            moved |= {steps: before[steps] for steps in before if steps not in came_back}
        moved = {steps: entry for steps, entry in moved.items() if steps not in after}
        if not is_registered:
            came_back |= after.keys() - before.keys()
    return {
        steps: entry for steps, entry in moved.items() if steps[-1] in behind and not is_ours(entry)
    }


def _readable(client: Client, copies: Iterator[str]) -> Iterator[dict[Steps, object]]:
    for copy in copies:
        with suppress(Unreadable):
            yield servers_by_place(client, copy)


def kept_off(
    client: Client, moved: Mapping[Steps, object], off: Container[str | int]
) -> dict[Steps, object]:
    """Those that the person switched off since: they are in `off`, and the copy has them on."""
    return {
        steps: entry
        for steps, entry in moved.items()
        if steps[-1] in off and not is_off(client.our_entry(entry))
    }


def put_back(
    client: Client, moved: Mapping[Steps, object], off: Mapping[Steps, object]
) -> dict[Steps, object]:
    """The entries for the client's file. One of `off` stays off, or out if there is no switch."""
    return {
        steps: {**entry, **client.off} if steps in off and is_object(entry) else entry
        for steps, entry in moved.items()
        if steps not in off or client.off
    }


def with_servers(client: Client, text: str, servers: Mapping[Steps, object]) -> str:
    """The text with these servers behind those that it has."""
    for steps, entry in servers.items():
        text = client.language.put(text, steps, entry)
    return text


def servers_by_place(client: Client, text: str) -> dict[Steps, object]:
    """Each server by its place: those of the user, and those that the client keeps by project."""
    return dict(_servers(client, text))


def _servers(client: Client, text: str) -> Iterator[tuple[Steps, object]]:
    document = client.language.read(text)
    if not is_object(document):
        return
    places: dict[Steps, object] = {(client.section,): document.get(client.section)}
    projects = document.get(client.projects)
    for name, project in projects.items() if is_object(projects) else ():
        if is_object(project):
            places[client.projects, name, client.section] = project.get(client.section)
    for steps, section in places.items():
        for name, entry in section.items() if is_object(section) else ():
            yield (*steps, name), entry
