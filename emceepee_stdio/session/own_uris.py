"""Which addresses are ours: `emceepee:` in every spelling that somebody could take for it."""

import unicodedata
from urllib.parse import unquote

__all__ = ["OWN", "is_own_uri"]

OWN = "emceepee"

_LOOKED_AT_CHARS = 1_000  # of what may stand before the scheme: blanks, spelt out or not
_DECODINGS = 3  # of `%25…`: nobody decodes more often


def is_own_uri(uri: str) -> bool:
    """Whether somebody could take an address for one of ours, however it is spelt."""
    start = uri.lstrip()[:_LOOKED_AT_CHARS]
    for _ in range(_DECODINGS):
        start = unquote(start)
    letters = unicodedata.normalize("NFKC", start)
    seen = "".join(char for char in letters if char.isprintable() and not char.isspace())
    return seen.casefold().startswith(f"{OWN}:")
