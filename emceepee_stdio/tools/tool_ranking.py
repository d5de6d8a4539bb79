"""Ranking of tools: finds one tool among thousands by plain words.

Theory of operation. The words of each server's list are kept in an inverted index, which is built
when the list is first searched and again when the list is another one. A query asks the indexes of
all servers as if they were one: how rare a word is, is counted over all of them.

Two rankings are made, and merged by reciprocal rank. In both, words are compared by
their stems, and a word of the same meaning counts almost as much. In the first, a word counts more
in a name than in a description, and a word that is only part of another still counts a little. The
second is BM25. `make bench-search` says how often they find the right tool.

A server decides how long its list is and what stands in it. So the text that is read of one server,
the words that are kept of it and the parts of words that are looked up are bounded, and everything
is done in small steps: `rank` gives other calls their turn between them.
"""

import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from weakref import WeakKeyDictionary

import anyio.lowlevel

from emceepee_stdio.json_values import mapping

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
_TOOL_CHARS = 4_000  # read of each text of a tool; bounds the work for a hostile server
_SERVER_CHARS = 2_000_000  # read of all tools of a server: 400 of each text of 5,000
_SERVER_WORDS = 50_000  # kept of one server: some 15 MB of memory
_STEP_CHARS = 10_000  # read at a time: some 3 ms
_STEP_PLACES = 20_000  # looked up at a time: some 3 ms
_MAX_QUERY_WORDS = 40  # a query is a sentence; bounds the work
_PART_CHARS = 40  # of a word of a query: no word is longer, and all its parts are looked up
_MAX_PARTS = 100  # words of one server of which one word of a query is a part
_BM25_K1 = 1.2  # as in the literature: how soon a repeated word counts no more,
_BM25_B = 0.75  # and how much a long text is held against a tool
_RRF_K = 60  # as in the literature: how much the first places count more than later ones

Tool = Mapping[str, object]


class ToolIndex:
    """The words of one server's tools: where each stands, and what it counts there."""

    __slots__ = ("_places", "_vocabulary", "items", "lengths", "plainness", "server", "tools")

    def __init__(self, server: str, tools: Sequence[Tool]) -> None:
        self.server = server
        self.tools = tools
        self.items = [(server, tool) for tool in tools]
        self.lengths: list[int] = []  # of each tool, in words
        self.plainness: list[float] = []  # of each name: of two tools that fit alike, the plainer
        self._places: dict[str, list[tuple[int, float, int]]] = {}
        self._vocabulary = "\n"  # all words, one a line: looking for parts of words is one search

    def __repr__(self) -> str:
        return f"<ToolIndex {self.server} {len(self.lengths)} tools {len(self._places)} words>"

    def build(self) -> Iterator[None]:
        """Read the tools, in steps."""
        room = min(_TOOL_CHARS, _SERVER_CHARS // max(len(self.tools), 1))
        read = 0
        for number, tool in enumerate(self.tools):
            read += self._add(number, tool, room)
            if read > _STEP_CHARS:
                read = 0
                yield
        self._vocabulary += "\n".join(self._places) + "\n"

    def _add(self, number: int, tool: Tool, room: int) -> int:
        """Note the words of one tool; how many characters were read.

        In a text that says much, each word says less.
        """
        weights: dict[str, float] = {}
        counts: Counter[str] = Counter()
        read = 0
        for place, text in _texts(self.server, tool, room):
            said = words(text)
            found = set(said)
            weight = _WEIGHTS[place] * min(1.0, math.sqrt(_USUAL_WORDS / max(len(found), 1)))
            for word in found:
                weights[word] = weights.get(word, 0.0) + weight
            counts.update(said)
            read += len(text)
            if place == "name":
                self.plainness.append(1 / (1 + _NAME_WORD_PENALTY * len(said)))
        self.lengths.append(counts.total())
        for word, count in counts.items():
            places = self._places.get(word)
            if places is None:
                if len(self._places) >= _SERVER_WORDS:
                    continue
                places = self._places[word] = []
            places.append((number, weights[word], count))
        return read

    def places(self, word: str) -> Sequence[tuple[int, float, int]]:
        """The tools that have the word, with its weight and its count in each."""
        return self._places.get(word, ())

    def related(self, word: str) -> Iterator[str]:
        """The words here of which this one is a part, and those that are parts of it."""
        if _is_long_enough(word):
            at = self._vocabulary.find(word)
            for _ in range(_MAX_PARTS):
                if at < 0:
                    break
                start = self._vocabulary.rindex("\n", 0, at) + 1
                end = self._vocabulary.index("\n", at)
                yield self._vocabulary[start:end]
                at = self._vocabulary.find(word, end)
        word = word[:_PART_CHARS]
        for start in range(len(word)):
            for end in range(start + 1, len(word) + 1):
                part = word[start:end]
                if part in self._places and _is_long_enough(part):
                    yield part


def _is_long_enough(part: str) -> bool:
    return len(part) > (_MIN_STEM_CHARS if part.isascii() else 0)


def _texts(server: str, tool: Tool, room: int) -> Iterator[tuple[str, str]]:
    """The places in which a tool says what it does, the name first."""
    yield "name", str(tool.get("name", ""))[:room]
    yield "title", str(tool.get("title", "") or "")[:room]
    yield "description", str(tool.get("description", "") or "")[:room]
    yield "server", server
    properties = mapping(mapping(tool.get("inputSchema")).get("properties"))
    about = " ".join(str(mapping(value).get("description", "")) for value in properties.values())
    yield "arguments", f"{' '.join(properties)} {about}"[:room]


def words(text: str) -> list[str]:
    """The stems of what a text says, without the words that say nothing."""
    return [_stem(word) for word in _plain_words(text) if word not in _STOP]


def _plain_words(text: str) -> list[str]:
    plain = _HUMP.sub(" ", text[:_TOOL_CHARS])
    if not plain.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not _is_accent(c))
    return _WORD.findall(plain.casefold())


def _spelled(query: str) -> dict[str, str]:
    """The stems of a query, each with the word that it is the stem of."""
    spelled: dict[str, str] = {}
    for word in _plain_words(query):
        if word not in _STOP and len(spelled) < _MAX_QUERY_WORDS:
            spelled.setdefault(_stem(word), word)
    return spelled


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


def _joined(wanted: Sequence[str]) -> Iterator[Sequence[str]]:
    """Each word, together with the words that it makes with its neighbours: file system."""
    for index, word in enumerate(wanted):
        around = [word]
        if index:
            around.append(wanted[index - 1] + word)
        if index + 1 < len(wanted):
            around.append(word + wanted[index + 1])
        yield around


class ToolQuery:
    """One query over the indexes of some servers, whose tools are numbered in one row."""

    def __init__(self, query: str, indexes: Sequence[ToolIndex]) -> None:
        self._spelled = _spelled(query)
        self._indexes: list[tuple[int, ToolIndex]] = []  # with the number of its first tool
        self._count = 0
        for index in indexes:
            self._indexes.append((self._count, index))
            self._count += len(index.tools)
        words_in_all = sum(sum(index.lengths) for index in indexes)
        self._usual_length = max(words_in_all / max(self._count, 1), 1.0)
        self.unmatched: list[str] = []  # words that no tool has
        self.best: list[tuple[str, Tool]] = []  # servers and tools, best first

    def run(self) -> Iterator[None]:
        """Fill `best` and `unmatched`, in steps; a query that says nothing fits every tool."""
        items = list(chain.from_iterable(index.items for _, index in self._indexes))
        if not self._spelled:
            self.best = items
            return
        weighted: dict[int, float] = {}
        bm25: dict[int, float] = {}
        matched: Counter[int] = Counter()
        for spellings in _joined(list(self._spelled)):
            found: dict[int, float] = {}
            alike = self._alike(spellings)
            for word, factor in alike.items():
                self._weigh(word, factor, found)
            self._add_bm25(alike, bm25)
            yield
            seen = 0
            for part in self._parts(spellings[0], but=alike):
                self._weigh(part, _SUBSTRING_WEIGHT, found)
                seen += self._frequency(part)
                if seen > _STEP_PLACES:
                    seen = 0
                    yield
            if not found:
                self.unmatched.append(self._spelled[spellings[0]])
            for tool, score in found.items():
                weighted[tool] = weighted.get(tool, 0.0) + score
            matched.update(found.keys())
            yield
        plainness = list(chain.from_iterable(index.plainness for _, index in self._indexes))
        for tool, count in matched.items():
            weighted[tool] *= count * plainness[tool]
        yield
        self.best = [items[number] for number in _merged(weighted, bm25)]

    def _frequency(self, word: str) -> int:
        return sum(len(index.places(word)) for _, index in self._indexes)

    def _alike(self, spellings: Sequence[str]) -> Mapping[str, float]:
        """The words that this one may be meant by, and how well each stands for it."""
        alike = dict.fromkeys(spellings, 1.0)
        for word in _ALIKES.get(spellings[0], ()):
            alike.setdefault(word, _SYNONYM_WEIGHT)
        return {word: factor for word, factor in alike.items() if self._frequency(word)}

    def _parts(self, word: str, *, but: Container[str]) -> Sequence[str]:
        """The words that have this one as a part, or are parts of it, in the order of the lists."""
        related = chain.from_iterable(index.related(word) for _, index in self._indexes)
        return [part for part in dict.fromkeys(related) if part not in but]

    def _weigh(self, word: str, factor: float, found: dict[int, float]) -> None:
        """Raise the tools that have the word to what it counts in them."""
        factor *= math.log(1 + self._count / self._frequency(word))
        for first, index in self._indexes:
            for number, weight, _ in index.places(word):
                tool = first + number
                score = weight * factor
                if score > found.get(tool, 0.0):
                    found[tool] = score

    def _add_bm25(self, alike: Mapping[str, float], scores: dict[int, float]) -> None:
        """Add to each tool what the best of these words counts in it."""
        found: dict[int, float] = {}
        for word, factor in alike.items():
            frequency = self._frequency(word)
            rarity = math.log(1 + (self._count - frequency + 0.5) / (frequency + 0.5))
            for first, index in self._indexes:
                lengths = index.lengths
                for number, _, count in index.places(word):
                    length = lengths[number] / self._usual_length
                    often = count + _BM25_K1 * (1 - _BM25_B + _BM25_B * length)
                    tool = first + number
                    score = factor * rarity * count * (_BM25_K1 + 1) / often
                    if score > found.get(tool, 0.0):
                        found[tool] = score
        for tool, score in found.items():
            scores[tool] = scores.get(tool, 0.0) + score


def _merged(*rankings: Mapping[int, float]) -> list[int]:
    """The tools of several rankings by the sum of their reciprocal ranks; of equals, as found."""
    total: dict[int, float] = {}
    for scores in rankings:
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        for place, tool in enumerate(best_first, start=1):
            total[tool] = total.get(tool, 0.0) + 1 / (_RRF_K + place)
    return sorted(total, key=total.__getitem__, reverse=True)


class ToolRanking:
    """The indexes of the servers' lists, each as long as its server is there."""

    def __init__(self) -> None:
        self._indexes: WeakKeyDictionary[object, ToolIndex] = WeakKeyDictionary()

    async def rank(
        self, query: str, lists: Sequence[tuple[object, str, Sequence[Tool]]]
    ) -> tuple[list[tuple[str, Tool]], list[str]]:
        """The tools that have anything to do with the query, best first, and its unknown words.

        Each list comes with its server, as an object that lives as long as it, and by name.
        """
        indexes: list[ToolIndex] = []
        for owner, server, tools in lists:
            index = self._indexes.get(owner)
            if index is None or not _are_same(index.tools, tools):
                index = ToolIndex(server, tools)
                for _ in index.build():
                    await anyio.lowlevel.checkpoint()
                self._indexes[owner] = index
            indexes.append(index)
        asked = ToolQuery(query, indexes)
        for _ in asked.run():
            await anyio.lowlevel.checkpoint()
        return asked.best, asked.unmatched


def _are_same(known: Sequence[object], now: Sequence[object]) -> bool:
    """Whether two lists have the very same items; comparing what is in them could take long."""
    return len(known) == len(now) and all(map(operator.is_, known, now))
