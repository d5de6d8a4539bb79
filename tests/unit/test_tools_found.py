"""Whether a model finds our tools in the search that hosts put before them.

Hosts rank the names and descriptions of all tools by the words of a query (BM25) and show the
first few. Words are taken as they stand, without stems or synonyms: a host that knows those finds
more, not less.
"""

import json
import math
import re
from collections import Counter

import pytest

from emceepee_stdio.tools import TABLE
from tests.unit.own_tool_queries import HELD_OUT, QUERIES

K1, B = 1.2, 0.75  # the usual values of BM25
SHOWN = 3
CORE = {
    "list_servers",
    "list_tools",
    "execute_tool",
    "execute_readonly_tool",
    "await_activity",
    "get_task_result",
    "respond_to_elicitation",
}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


DOCUMENTS = {tool.name: words(f"{tool.name} {tool.description}") for tool in TABLE.values()}


def found(query: str) -> list[str]:
    """The names that a host shows for a query, best first."""
    average = sum(map(len, DOCUMENTS.values())) / len(DOCUMENTS)
    holding = Counter(word for document in DOCUMENTS.values() for word in set(document))

    def score(document: list[str]) -> float:
        counts = Counter(document)
        total = 0.0
        for word in words(query):
            rarity = math.log(1 + (len(DOCUMENTS) - holding[word] + 0.5) / (holding[word] + 0.5))
            length = 1 - B + B * len(document) / average
            total += rarity * counts[word] * (K1 + 1) / (counts[word] + K1 * length)
        return total

    return sorted(DOCUMENTS, key=lambda name: -score(DOCUMENTS[name]))[:SHOWN]


@pytest.mark.parametrize(("query", "name"), QUERIES.items())
def test_a_search_shows_the_right_tool_among_the_first_three(query: str, name: str) -> None:
    assert name in found(query)


def test_most_searches_that_nothing_was_tuned_on_show_it_too() -> None:
    shown = [query for query, name in HELD_OUT.items() if name in found(query)]
    assert len(shown) >= 6, "measured once, when the descriptions were done"


def test_the_core_is_loaded_from_the_first_turn_and_small() -> None:
    loaded = {
        tool.name: tool.listed()
        for tool in TABLE.values()
        if tool.meta.get("anthropic/alwaysLoad") is True
    }
    assert all("_meta" in tool for tool in loaded.values())
    assert set(loaded) == CORE
    assert len(json.dumps(list(loaded.values()), separators=(",", ":")).encode()) < 5_500


def test_only_the_answer_to_a_question_needs_the_person() -> None:
    asking = [
        tool.name for tool in TABLE.values() if "anthropic/requiresUserInteraction" in tool.meta
    ]
    assert asking == ["respond_to_elicitation"]
    assert TABLE["respond_to_elicitation"].meta["anthropic/requiresUserInteraction"] is True


LONG = {name for name, tool in TABLE.items() if "limit" in tool.params.__struct_fields__} | {
    "execute_tool",
    "execute_readonly_tool",
    "get_task_result",
    "get_prompt",
    "get_sampling_requests",
}


@pytest.mark.parametrize("name", sorted(LONG))
def test_what_may_be_long_is_not_cut_by_the_host(name: str) -> None:
    size = TABLE[name].meta["anthropic/maxResultSizeChars"]
    assert isinstance(size, int)
    assert size >= 100_000
