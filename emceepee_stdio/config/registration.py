"""emceepee as an entry in a client's file: put in, taken out again, and alone there.

Works on texts. Taking out what was put in gives the very text from before, because the backup
tells what that was: if putting our entry into it gives the text of now, it is the way back.
"""

from collections.abc import Collection
from typing import NamedTuple

from emceepee_stdio.config.clients import Client, is_ours
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import CannotEdit, Steps, Unreadable
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["Edited", "NameTaken", "leave_alone", "register", "unregister"]


class NameTaken(ConfigInvalid):
    """The client has another server of this name."""

    hint = "Nothing was changed; say another name with --name, or remove that server first."


class Edited(NamedTuple):
    """A text that was changed, None for no file, and whether the one before is worth keeping."""

    text: str | None
    backs_up: bool


def register(
    client: Client, text: str | None, backup: str | None, *, name: str, entry: object
) -> Edited:
    """The text with our entry in it, new or renewed."""
    present = _present(client, text or "", name)
    changed = client.language.put(text or "", (client.section, name), entry)
    # The backup of the first time shows the file without us; renewing must not cost it.
    renewed = present is not None and _leads_to(
        client, _before(client, backup, name), text or "", name, present
    )
    return Edited(changed, backs_up=not renewed)


def unregister(client: Client, text: str, backup: str | None, *, name: str) -> Edited:
    """The text without our entry; None for a file that held nothing else."""
    present = _present(client, text, name)
    if present is None:
        return Edited(text, backs_up=False)
    before = _before(client, backup, name)
    if _leads_to(client, before, text, name, present):
        return Edited(None if backup is None else before, backs_up=False)
    changed = client.language.remove(text, (client.section, name))
    if before is not None and not client.servers(changed) and not _has_section(client, before):
        changed = client.language.remove(changed, (client.section,))
    return Edited(None if backup is None and _is_bare(changed) else changed, backs_up=True)


def leave_alone(
    client: Client, text: str, *, name: str, entry: object, others: Collection[Steps]
) -> str:
    """The text with our entry and without those servers that are now behind it."""
    _present(client, text, name)
    for other in others:
        text = client.language.remove(text, other)
    return client.language.put(text, (client.section, name), entry)


def _present(client: Client, text: str, name: str) -> object:
    """The entry of this name, which is ours or none at all."""
    servers = client.servers(text)
    if name in servers and not is_ours(servers[name]):
        raise NameTaken(f"{client.title} has a server named {name!r} that is not emceepee.")
    return servers.get(name)


def _before(client: Client, backup: str | None, name: str) -> str | None:
    """The text from before our entry, empty without a backup; None if one cannot tell."""
    if backup is None:
        return ""
    try:
        return None if name in client.servers(backup) else backup
    except Unreadable:
        return None


def _leads_to(client: Client, before: str | None, text: str, name: str, present: object) -> bool:
    """Whether our entry is all that parts the two texts."""
    if before is None:
        return False
    try:
        return client.language.put(before, (client.section, name), present) == text
    except CannotEdit:
        return False


def _has_section(client: Client, text: str) -> bool:
    document = client.language.read(text)
    return is_object(document) and client.section in document


def _is_bare(text: str) -> bool:
    return text.removeprefix("\ufeff").strip() in {"", "{}"}
