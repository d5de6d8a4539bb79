"""Servers that were moved from a client behind emceepee, as the backups of its file have them."""

from collections.abc import Container, Iterable, Iterator, Mapping

from emceepee_stdio.config.clients import Client, is_ours
from emceepee_stdio.config.entries import is_off
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import Steps, Unreadable

__all__ = ["kept_off", "moved_servers", "put_back", "servers_by_place", "with_servers"]


def moved_servers(
    client: Client, text: str, copies: Iterable[str], behind: Container[str | int]
) -> dict[Steps, object]:
    """Those that the client lacks now and emceepee has, each from the first copy that has it."""
    present = servers_by_place(client, text)
    found: dict[Steps, object] = {}
    for copy in copies:
        try:
            servers = servers_by_place(client, copy)
        except Unreadable:
            continue
        for steps, entry in servers.items():
            if steps[-1] in behind and steps not in present and not is_ours(entry):
                found.setdefault(steps, entry)
    return found


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
