"""Finding one tool among a thousand by plain words.

A word counts more the rarer it is among the tools, and more in a name than in a description. Words
are compared by their stems; a word of the same meaning counts almost as much, and a word that is
only part of another still counts a little.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from emceepee_stdio.json_values import mapping

__all__ = ["Ranked", "rank", "words"]

_HUMP = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_ENDINGS = (
    ("ies", "y"),
    ("sses", "ss"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("xes", "x"),
    ("ss", "ss"),
    ("us", "us"),
    ("is", "is"),
    ("s", ""),
)
_ENDINGS_OF_VERBS = ("ing", "ed", "ion", "e")
_MIN_STEM_CHARS = 3  # what is shorter means too many things
_DOUBLED = frozenset("bdgmnprt")
_STOP = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for", "from"}
    | {"get", "give", "has", "have", "how", "i", "in", "is", "it", "its", "let", "me", "my", "of"}
    | {"on", "or", "our", "please", "show", "some", "that", "the", "their", "them", "there"}
    | {"these", "this", "those", "to", "tool", "use", "want", "was", "we", "what", "when", "where"}
    | {"which", "who", "will", "with", "would", "you", "your"}
)
_SAME = (
    ("delete", "remove", "erase", "drop"),
    ("create", "make", "new", "add"),
    ("search", "find", "look", "query"),
    ("folder", "directory", "dir"),
    ("email", "mail"),
    ("image", "picture", "photo"),
    ("repository", "repo"),
    ("execute", "run", "start", "launch"),
    ("update", "change", "edit", "modify"),
    ("fetch", "download", "get"),
    ("forecast", "weather"),
    ("list", "show", "every", "all"),
    ("message", "text", "chat"),
    ("song", "track", "music"),
    ("database", "db"),
    ("delay", "wait", "sleep"),
    ("add", "sum", "total"),
)
_WEIGHTS = {"name": 6.0, "title": 4.0, "description": 2.0, "server": 1.5, "arguments": 1.0}
_SYNONYM_WEIGHT = 0.8  # nearly as good as the word itself
_SUBSTRING_WEIGHT = 0.3  # often chance: counts only where nothing better matches
_NAME_WORD_PENALTY = 0.08  # per word: of two that match alike the plainer name is meant
_USUAL_WORDS = 10  # longer texts hold any word more easily, so they count less
_MAX_TEXT_CHARS = 4_000  # of a description; bounds the work for a hostile server
_MAX_QUERY_WORDS = 40  # a query is a sentence; bounds the work


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A tool of a server, and how well it fits."""

    server: str
    tool: Mapping[str, object]
    score: float


def rank(query: str, tools: Sequence[tuple[str, Mapping[str, object]]]) -> list[Ranked]:
    """The tools that have anything to do with the query, best first."""
    wanted = list(dict.fromkeys(words(query)))[:_MAX_QUERY_WORDS]
    if not wanted:
        return [Ranked(server=server, tool=tool, score=0.0) for server, tool in tools]
    weights = [_weights(server, tool) for server, tool in tools]
    rarity = _rarity(weights)
    meanings = [_meanings(word, rarity) for word in _joined(wanted)]
    ranked = [
        Ranked(server=server, tool=tool, score=_score(meanings, having) * _brevity(tool))
        for (server, tool), having in zip(tools, weights, strict=True)
    ]
    found = [entry for entry in ranked if entry.score > 0]
    return sorted(found, key=lambda entry: -entry.score)


def words(text: str) -> list[str]:
    """The stems of what a text says, without the words that say nothing."""
    plain = _HUMP.sub(" ", text[:_MAX_TEXT_CHARS])
    if not plain.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not _is_accent(c))
    found = _WORD.findall(plain.casefold())
    return [_stem(word) for word in found if word not in _STOP]


def _is_accent(char: str) -> bool:
    return unicodedata.category(char) == "Mn"


@lru_cache(maxsize=4096)
def _stem(word: str) -> str:
    """The word without the endings of English; what is no English is hardly touched."""
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM_CHARS - len(instead):
            word = word.removesuffix(ending) + instead
            break
    for ending in _ENDINGS_OF_VERBS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM_CHARS:
            word = word.removesuffix(ending)
            if ending != "e" and word[-1] == word[-2] and word[-1] in _DOUBLED:
                word = word[:-1]
            break
    return word


_ALIKES = {
    _stem(word): {_stem(alike) for other in _SAME if word in other for alike in other}
    for group in _SAME
    for word in group
}


def _weights(server: str, tool: Mapping[str, object]) -> dict[str, float]:
    """What each word counts in this tool: the sum over the places where it stands.

    In a text that says much, each word says less.
    """
    properties = mapping(mapping(tool.get("inputSchema")).get("properties"))
    about = " ".join(str(mapping(value).get("description", "")) for value in properties.values())
    texts = {
        "name": str(tool.get("name", "")),
        "title": str(tool.get("title", "") or ""),
        "description": str(tool.get("description", "") or ""),
        "server": server,
        "arguments": f"{' '.join(properties)} {about}",
    }
    total: dict[str, float] = {}
    for place, text in texts.items():
        found = set(words(text))
        weight = _WEIGHTS[place] * min(1.0, math.sqrt(_USUAL_WORDS / max(len(found), 1)))
        for word in found:
            total[word] = total.get(word, 0.0) + weight
    return total


def _rarity(weights: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    seen = Counter(word for having in weights for word in having)
    return {word: math.log(1 + len(weights) / count) for word, count in seen.items()}


def _joined(wanted: Sequence[str]) -> Iterator[Sequence[str]]:
    """Each word, together with the words that it makes with its neighbours: file system."""
    for index, word in enumerate(wanted):
        around = [word]
        if index:
            around.append(wanted[index - 1] + word)
        if index + 1 < len(wanted):
            around.append(word + wanted[index + 1])
        yield around


def _meanings(spellings: Sequence[str], rarity: Mapping[str, float]) -> Mapping[str, float]:
    """Every word of the tools that this one may mean, and what it counts."""
    meant: dict[str, float] = {}
    for part in (word for word in rarity if _is_part(spellings[0], word)):
        meant[part] = _SUBSTRING_WEIGHT * rarity[part]
    for alike in _ALIKES.get(spellings[0], ()):
        if alike in rarity:
            meant[alike] = _SYNONYM_WEIGHT * rarity[alike]
    for word in spellings:
        if word in rarity:
            meant[word] = rarity[word]
    return meant


def _is_part(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return len(short) > (_MIN_STEM_CHARS if short.isascii() else 0) and short in long


def _score(meanings: Sequence[Mapping[str, float]], having: Mapping[str, float]) -> float:
    """Each wanted word by its best meaning; more for a tool that has all of them."""
    counts = [
        max((having[word] * meant[word] for word in meant.keys() & having.keys()), default=0.0)
        for meant in meanings
    ]
    return sum(counts) * sum(map(bool, counts)) / len(meanings)


def _brevity(tool: Mapping[str, object]) -> float:
    """Of two tools that fit alike, the one that is less special."""
    return 1 / (1 + _NAME_WORD_PENALTY * len(words(str(tool.get("name", "")))))
