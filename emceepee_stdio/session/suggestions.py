"""What to suggest to somebody who named a thing that is not there."""

import difflib
from collections.abc import Iterable

__all__ = ["LISTED_NAMES", "SHOWN_NAME_CHARS", "close_names"]

LISTED_NAMES = 20  # where nothing is close; a longer list is what the list tools are for
SHOWN_NAME_CHARS = 100  # names are shorter; the time of a comparison grows with the square

_SUGGESTIONS = 3  # the right one is mostly the first
_MIN_SIMILARITY = 0.5  # half of the letters: finds swapped words, leaves chance out


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """The few names that look most like it, the closest first."""
    return difflib.get_close_matches(
        name[:SHOWN_NAME_CHARS], list(known), n=_SUGGESTIONS, cutoff=_MIN_SIMILARITY
    )
