"""What a server exposes, read and changed in our own file, whose form stays as it is."""

from emceepee_stdio.config import jsonc
from emceepee_stdio.config.fields import fit, is_object
from emceepee_stdio.config.own_file import ConfigLocation
from emceepee_stdio.config.tool_rules import check_patterns

__all__ = ["Exposed", "exposed_at", "set_exposed"]

Exposed = bool | tuple[str, ...]


def exposed_at(place: ConfigLocation) -> Exposed:
    """What the entry says now; raises if that cannot be read."""
    entry = place.entry if is_object(place.entry) else {}
    path = f"{'.'.join(map(str, place.steps))}.expose"
    said = entry.get("expose")
    if said is None or isinstance(said, bool):
        return bool(said)
    patterns = fit(said, tuple[str, ...], path=path)
    check_patterns(patterns, path=path)
    return patterns


def set_exposed(text: str, place: ConfigLocation, exposed: Exposed) -> str:
    """The text with this; nothing exposed is the same as no word of it."""
    steps = (*place.steps, "expose")
    if not exposed:
        return jsonc.remove(text, steps)
    return jsonc.put(text, steps, True if exposed is True else list(exposed))
