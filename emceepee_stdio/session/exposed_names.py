"""Under which names exposed tools and prompts are listed: SERVER__TOOL, as every host takes them.

Hosts put `mcp__emceepee__` before a name and stop at 64 characters of a small alphabet. A name says
what it is where it can. Where two would be equal, each gets a hash of its server and its own name,
and so does one that had to be cut: no name depends on which of two came first. What begins like the
names of a server means that server, whether it is listed now or not.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["ItemKey", "claimants", "exposed_names"]

MAX_NAME_CHARS = 46  # 64 of a host, less `mcp__emceepee__` and a little for longer prefixes
_HASH_CHARS = 8
_CUT_CHARS = MAX_NAME_CHARS - _HASH_CHARS - 1  # what is left of a name before its hash
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")

ItemKey = tuple[str, str]  # a server, and what an item is called there


def claimants(name: str, servers: Iterable[str]) -> list[str]:
    """The servers of which something may be listed under a name that begins like this one."""
    plain = _FOREIGN.sub("_", name)
    return [server for server in servers if plain.startswith(_beginning(server))]


def exposed_names(items: Iterable[ItemKey], servers: Iterable[str] = ()) -> dict[ItemKey, str]:
    """The name of each; of those that even a hash does not tell apart, the first has it alone.

    `servers` are all that there may be: no plain name is one that another of them may have.
    """
    plain = {item: _FOREIGN.sub("_", "__".join(item)) for item in items}
    taken = Counter(plain.values())
    rivals = {name: _rivals(name, servers) for name in {server for server, _ in plain}}
    names = {
        item: name
        if taken[name] == 1 and len(name) <= MAX_NAME_CHARS and not name.startswith(rivals[item[0]])
        else _hashed(item, name)
        for item, name in plain.items()
    }
    owners = {name: item for item, name in reversed(names.items())}
    return {item: name for item, name in names.items() if owners[name] == item}


def _hashed(item: ItemKey, name: str) -> str:
    digest = hashlib.sha256("\0".join(item).encode(errors="surrogatepass")).hexdigest()
    return f"{name[:_CUT_CHARS]}_{digest[:_HASH_CHARS]}"


def _beginning(server: str) -> str:
    """Of every name under which something of a server is listed."""
    return _FOREIGN.sub("_", f"{server}__")[:_CUT_CHARS]


def _rivals(server: str, servers: Iterable[str]) -> tuple[str, ...]:
    """How names begin that are more likely those of another server."""
    own = _beginning(server)
    others = (_beginning(other) for other in servers if other != server)
    return tuple(other for other in others if other.startswith(own))
