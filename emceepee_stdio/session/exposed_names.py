"""Under which names exposed tools and prompts are listed: SERVER__TOOL, as every host takes them.

Hosts put `mcp__emceepee__` before a name and stop at 64 characters of a small alphabet. A name says
what it is where it can. Where two would be equal, each gets a hash of its server and its own name,
and so does one that had to be cut: no name depends on which of two came first.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["ItemKey", "exposed_names"]

MAX_NAME_CHARS = 46  # 64 of a host, less `mcp__emceepee__` and a little for longer prefixes
_HASH_CHARS = 8
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")

ItemKey = tuple[str, str]  # a server, and what an item is called there


def exposed_names(items: Iterable[ItemKey]) -> dict[ItemKey, str]:
    """The name of each; none for those that even a hash does not tell apart."""
    plain = {item: _FOREIGN.sub("_", "__".join(item)) for item in items}
    taken = Counter(plain.values())
    names = {
        item: name if taken[name] == 1 and len(name) <= MAX_NAME_CHARS else _hashed(item, name)
        for item, name in plain.items()
    }
    given = Counter(names.values())
    return {item: name for item, name in names.items() if given[name] == 1}


def _hashed(item: ItemKey, name: str) -> str:
    digest = hashlib.sha256("\0".join(item).encode(errors="surrogatepass")).hexdigest()
    return f"{name[: MAX_NAME_CHARS - _HASH_CHARS - 1]}_{digest[:_HASH_CHARS]}"
