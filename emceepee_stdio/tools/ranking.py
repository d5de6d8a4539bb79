"""Finding one tool among a thousand by plain words.

A word counts more the rarer it is among the tools, and more in a name than in a description. Words
are compared by their stems, and a word that is only part of a name still counts a little.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

__all__ = ["Ranked", "rank", "words"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SUFFIXES = ("ations", "ation", "ings", "ing", "ies", "ers", "er", "ed", "es", "s", "y", "e")
_SHORTEST_STEM = 3
_STOP = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "get"}
    | {"give", "has", "have", "how", "i", "in", "is", "it", "its", "let", "me", "my", "of", "on"}
    | {"or", "our", "please", "show", "some", "that", "the", "their", "them", "there", "this"}
    | {"to", "tool", "use", "want", "what", "when", "where", "which", "who", "with", "you", "your"}
)
_SAME = {
    "remove": "delet",
    "erase": "delet",
    "make": "creat",
    "new": "creat",
    "add": "creat",
    "find": "search",
    "look": "search",
    "folder": "directori",
    "dir": "directori",
    "mail": "email",
    "picture": "imag",
    "photo": "imag",
    "repo": "repositori",
    "run": "execut",
    "change": "updat",
    "edit": "updat",
    "modify": "updat",
    "fetch": "download",
    "weather": "weather",
    "forecast": "weather",
}
_WEIGHTS = {"name": 6.0, "title": 4.0, "description": 2.0, "server": 1.5, "arguments": 1.0}
_PART = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A tool of a server, and how well it fits."""

    server: str
    tool: Mapping[str, object]
    score: float


def rank(query: str, tools: Sequence[tuple[str, Mapping[str, object]]]) -> list[Ranked]:
    """The tools that have anything to do with the query, best first."""
    wanted = words(query)
    if not wanted:
        return [Ranked(server=server, tool=tool, score=0.0) for server, tool in tools]
    fields = [_fields(server, tool) for server, tool in tools]
    rarity = _rarity(fields)
    ranked = [
        Ranked(server=server, tool=tool, score=_score(wanted, field, rarity))
        for (server, tool), field in zip(tools, fields, strict=True)
    ]
    found = [entry for entry in ranked if entry.score > 0]
    return sorted(found, key=lambda entry: -entry.score)


def words(text: str) -> list[str]:
    """The stems of what a text says, without the words that say nothing."""
    found = (word.lower() for word in _WORD.findall(text))
    return [_stem(word) for word in found if word not in _STOP]


def _stem(word: str) -> str:
    if word in _SAME:
        return _SAME[word]
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _SHORTEST_STEM:
            base = word[: -len(suffix)]
            return _SAME.get(base, base)
    return word


def _fields(server: str, tool: Mapping[str, object]) -> dict[str, list[str]]:
    schema = tool.get("inputSchema")
    properties = _mapping(_mapping(schema).get("properties"))
    about = " ".join(str(_mapping(value).get("description", "")) for value in properties.values())
    return {
        "name": words(str(tool.get("name", ""))),
        "title": words(str(tool.get("title", "") or "")),
        "description": words(str(tool.get("description", "") or "")),
        "server": words(server),
        "arguments": words(" ".join(properties) + " " + about),
    }


def _rarity(fields: Sequence[Mapping[str, list[str]]]) -> Mapping[str, float]:
    seen = Counter(word for field in fields for word in {w for ws in field.values() for w in ws})
    return {word: math.log(1 + len(fields) / count) for word, count in seen.items()}


def _score(
    wanted: Sequence[str], fields: Mapping[str, list[str]], rarity: Mapping[str, float]
) -> float:
    """Each wanted word once, where it counts most; and a bonus for having all of them."""
    total = 0.0
    hits = 0
    for word in dict.fromkeys(wanted):
        best = max(
            (weight * _match(word, fields[name]) for name, weight in _WEIGHTS.items()), default=0.0
        )
        if best:
            hits += 1
            total += best * rarity.get(word, math.log(1 + len(rarity)))
    coverage = hits / len(set(wanted))
    brevity = 1 / (1 + 0.05 * len(fields["name"]))
    return total * coverage * brevity


def _match(word: str, having: Sequence[str]) -> float:
    if word in having:
        return 1.0
    if len(word) > _SHORTEST_STEM and any(
        word in other or (len(other) > _SHORTEST_STEM and other in word) for other in having
    ):
        return _PART
    return 0.0


def _mapping(value: object) -> Mapping[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
