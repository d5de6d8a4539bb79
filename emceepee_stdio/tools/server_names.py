"""Names that a model may give to a server."""

from unicodedata import category

from emceepee_stdio.session.server_registry import OWN_NAME

__all__ = ["name_problem"]

_UNSEEN = frozenset({"Cf", "Co", "Cs", "Zl", "Zp", "Mn", "Me"})
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"


def name_problem(name: str) -> str | None:
    """A model names a server as a person would read it, and not like another, or like us."""
    if name != name.strip() or "  " in name:
        return "A name has no spaces around it, and no two in a row."
    if any(category(char) in _UNSEEN or char in _FILLERS for char in name):
        return "A name has no characters that cannot be seen."
    if name.lower() == OWN_NAME:
        return f"The name {OWN_NAME} is the proxy's own."
    return None
