"""list_tools: searches and ranks the tools of all servers."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.execute import READ_ONLY_ROAD, why_not_read_only
from emceepee_stdio.tools.listing import (
    ALL,
    Cursor,
    Item,
    Limit,
    ServerPattern,
    gather,
    having,
    matching,
    of_server,
    page_for,
    pattern,
)
from emceepee_stdio.tools.registry import Params, always_loaded, pages, read_only, tool
from emceepee_stdio.visible_text import cut

# Finding one tool among a thousand by plain words.
#
# A word counts more the rarer it is among the tools, and more in a name than in a description.
# Words are compared by their stems; a word of the same meaning counts almost as much, and a word
# that is only part of another still counts a little.


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


def rank(query: str, tools: Sequence[Item]) -> list[Item]:
    """The tools that have anything to do with the query, best first."""
    wanted = list(dict.fromkeys(words(query)))[:_MAX_QUERY_WORDS]
    if not wanted:
        return list(tools)
    weights = [_weights(server, tool) for server, tool in tools]
    rarity = _rarity(weights)
    meanings = [_meanings(word, rarity) for word in _joined(wanted)]
    scores = [
        _score(meanings, having) * _brevity(tool)
        for (_, tool), having in zip(tools, weights, strict=True)
    ]
    best_first = sorted(range(len(tools)), key=lambda index: -scores[index])
    return [tools[index] for index in best_first if scores[index] > 0]


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


_FULL_DETAIL_TOOLS = 5  # so many schemas are worth their tokens: one of them is called next
_DESCRIPTION_CHARS = 4_000  # as much as is shown of what a server says of itself
_SENTENCE_CHARS = 160  # a line or two in a list
_ARGUMENTS_CHARS = 300  # names of some 20 arguments
_OUR_KEYS = ("rule", "run_with", "exposed_as")  # what only we say of a tool
# Once for all of them: a mark on each tool that is not known to only read would cost a model more.
_RUN_WITH = {"run_with": "execute_tool, unless the tool says otherwise"}


class ListTools(Params):
    query: Annotated[str | UnsetType, Meta(description="Plain words; best match first.")] = UNSET
    server: ServerPattern = ALL
    tool: Annotated[str, Meta(description="Regex of tool names.")] = ALL
    detail: Annotated[
        Literal["names", "summary", "full"] | UnsetType,
        Meta(description="full has the schemas; the default for up to 5."),
    ] = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


@tool(read_only, meta=always_loaded | pages)
async def list_tools(runtime: Runtime, p: ListTools, call: Call) -> Reply:
    """Find a tool for a job: what the servers can do for you.

    By plain words, by regex, or all. Up to 5 come with their schemas, so set limit, or detail
    full, before a call.
    """
    found = await gather(runtime, "tools", p.server, call)
    tools = await matching(runtime, found.items, pattern(runtime, p.tool), having("name"))
    if p.query is not UNSET:
        tools = rank(p.query, tools)
    few = min(len(tools), p.limit) <= _FULL_DETAIL_TOOLS
    detail = p.detail if p.detail is not UNSET else "full" if few else "summary"

    exposed = runtime.surface.lists.listed_names()

    def shown(item: Item) -> dict[str, object]:
        name = exposed.get((item[0], str(item[1].get("name"))))
        native = {} if name is None else {"exposed_as": name}
        return _shown(*item, detail) | native | _rule(runtime, *item)

    entries, rest = page_for(runtime, p, call, tools, shown)
    head = _RUN_WITH if entries else {}
    return Reply.json({**head, "tools": entries, **rest, **found.failures()})


def _rule(runtime: Runtime, server: str, tool: Mapping[str, object]) -> dict[str, object]:
    """What holds for it, where that is more than that execute_tool runs it."""
    member = runtime.servers.members.get(server)
    rules = None if member is None else member.backend.rules
    rule = "allow" if rules is None else rules.rule(tool.get("name"))
    if rule != "allow":
        return {"rule": rule}
    reads = why_not_read_only(member, tool) is None
    return {"run_with": READ_ONLY_ROAD} if reads else {}


def _shown(server: str, tool: Mapping[str, object], detail: str) -> dict[str, object]:
    head: dict[str, object] = {"server": server, "name": tool.get("name")}
    if detail == "names":
        return head
    if detail == "full":
        own = {key: value for key, value in _bounded(tool).items() if key not in _OUR_KEYS}
        return of_server(server, own)
    head["description"] = _first_sentence(str(tool.get("description") or tool.get("title") or ""))
    head["args"] = _arguments(tool.get("inputSchema"))
    return head


def _bounded(tool: Mapping[str, object]) -> Mapping[str, object]:
    """The tool as it is, but for a description that nobody would read to its end."""
    text = tool.get("description")
    if not isinstance(text, str) or len(text) <= _DESCRIPTION_CHARS:
        return tool
    cut = f"{text[:_DESCRIPTION_CHARS]} … (cut from {len(text)} characters)"
    return {**tool, "description": cut}


def _first_sentence(text: str) -> str:
    line = " ".join(text.split())
    sentence, dot, _ = line.partition(". ")
    short = sentence + ("." if dot else "")
    return cut(short, _SENTENCE_CHARS)


def _arguments(schema: object) -> str:
    """The names of the arguments, the optional ones with a question mark."""
    names = mapping(mapping(schema).get("properties"))
    needed = elements(mapping(schema).get("required"))
    shown = ", ".join(name if name in needed else f"{name}?" for name in names)
    return cut(shown, _ARGUMENTS_CHARS)
