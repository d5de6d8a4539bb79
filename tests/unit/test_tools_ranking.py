from typing import Any

import pytest

from emceepee_stdio.tools.tool_ranking import ToolIndex, ToolQuery, ToolRanking, words
from tests.e2e.servers.catalogue import servers
from tests.e2e.tool_searches import HELD_OUT, QUERIES, query_over, rank

CATALOGUE = [(server, tool) for server, tools in servers().items() for tool in tools]


def tool(name: str, description: str = "", *arguments: str, **more: Any) -> dict[str, Any]:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": description, "inputSchema": schema, **more}


def found(query: str, *tools: dict[str, Any], server: str = "s") -> list[str]:
    return [str(tool["name"]) for _, tool in rank(query, [(server, item) for item in tools])]


def test_queries_find_their_tool_among_the_first_three_and_nearly_all_first() -> None:
    best = {
        query: [(server, tool["name"]) for server, tool in rank(query, CATALOGUE)[:3]]
        for query in QUERIES
    }
    assert [query for query, found in best.items() if QUERIES[query] not in found] == []
    assert sum(found[0] == QUERIES[query] for query, found in best.items()) >= len(QUERIES) - 1


def test_most_queries_that_nothing_was_tuned_to_find_their_tool_first() -> None:
    best = {
        query: [(server, tool["name"]) for server, tool in rank(query, CATALOGUE)]
        for query in HELD_OUT
    }
    assert sum(found[0] == HELD_OUT[query] for query, found in best.items()) >= 8
    assert sum(HELD_OUT[query] in found[:3] for query, found in best.items()) >= 9


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("directory", "directories"),
        ("create", "creating"),
        ("created", "creates"),
        ("translation", "translate"),
        ("file", "files"),
        ("status", "Status"),
        ("match", "matches"),
        ("box", "boxes"),
        ("stop", "stopped"),
        ("process", "processes"),
        ("Größe", "große"),
        ("café", "cafe\u0301"),
        ("search", "".join(chr(ord(letter) + 0xFEE0) for letter in "search")),
    ],
)
def test_words_are_compared_by_their_stems(one: str, other: str) -> None:
    assert words(one) == words(other)


def test_names_are_taken_apart() -> None:
    assert words("getHTTPServer_log-lines2") == ["http", "server", "log", "lin", "2"]
    assert words("the a of") == []
    assert words("") == []


def test_a_name_counts_more_than_a_description_and_that_more_than_an_argument() -> None:
    by_argument = tool("one", "", "invoice")
    by_description = tool("two", "About an invoice.")
    by_name = tool("invoice")
    assert found("invoice", by_argument, by_description, by_name) == ["invoice", "two", "one"]


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    common = [tool(f"list_{word}") for word in ("a1", "b1", "c1", "d1")]
    assert found("list penguins", *common, tool("penguins"))[0] == "penguins"


def test_a_word_of_the_same_meaning_is_found_and_the_very_word_before_it() -> None:
    same, other = tool("delete_file"), tool("remove_file")
    assert found("remove file", same, other) == ["remove_file", "delete_file"]
    assert found("erase file", tool("read_file"), same)[0] == "delete_file"
    assert found("folder", tool("list_directory"), tool("clock")) == ["list_directory"]


def test_words_that_were_written_apart_are_joined() -> None:
    assert found("screen shot", tool("print_page"), tool("screenshot"))[0] == "screenshot"


def test_part_of_a_word_counts_a_little() -> None:
    assert found("post", tool("postgres_query"), tool("clock")) == ["postgres_query"]
    assert found("天気", tool("今日の天気予報"), tool("clock")) == ["今日の天気予報"]


def test_a_long_description_does_not_win_by_its_length() -> None:
    long = tool("other", "Sum and sundry: " + " ".join(f"word{n} numbers" for n in range(200)))
    assert found("sum of numbers", long, tool("adder", "The sum of numbers."))[0] == "adder"


def test_a_server_s_name_helps() -> None:
    tools = [("jira", tool("create_issue")), ("github", tool("create_issue"))]
    assert rank("create a github issue", tools)[0][0] == "github"


def test_nothing_asked_is_everything_and_nothing_alike_is_nothing() -> None:
    tools = [tool("b"), tool("a")]
    assert found("", *tools) == found("the of", *tools) == ["b", "a"]
    assert found("xylophone", *tools) == []
    assert rank("anything", []) == []


def test_what_servers_get_wrong_is_no_obstacle() -> None:
    odd: list[dict[str, Any]] = [
        {"name": None, "description": 7, "inputSchema": "x"},
        {},
        {"name": "find", "title": None, "inputSchema": {"properties": {"a": 3, "b": None}}},
    ]
    assert found("find", *odd) == ["find"]


def test_neither_a_huge_query_nor_a_huge_description_is_read_to_its_end() -> None:
    many = " ".join(f"w{letter}{other}" for letter in "abcdefgh" for other in "abcde")
    assert found(f"{many} penguin", tool("penguin")) == []
    assert found(f"penguin {many}", tool("penguin")) == ["penguin"]
    assert len(words("word " * 1_000_000)) == 800


def test_tools_that_fit_alike_stand_in_the_order_of_their_lists() -> None:
    tools = [tool(f"{letter}post{letter}") for letter in "qwertyuiop"]
    assert found("post", *tools) == [item["name"] for item in tools]


def test_looking_up_parts_of_a_word_gives_other_calls_their_turn() -> None:
    many = [
        tool(f"tool_{n}", " ".join(f"post{chr(97 + m)}" for m in range(26))) for n in range(2_000)
    ]
    index = ToolIndex("s", many)
    steps_of(index)
    assert sum(1 for _ in ToolQuery("post", [index]).run()) > 4


def test_words_that_no_tool_has_are_named_as_they_were_written() -> None:
    tools = [("s", tool("list_files", "Lists files."))]
    assert query_over("listing files of the xylophones", tools).unmatched == ["xylophones"]
    assert query_over("list files", tools).unmatched == []


class Server:
    """Owns a list, as a backend does."""


@pytest.mark.anyio
async def test_a_list_is_read_once_and_again_when_it_is_another_one() -> None:
    ranking, server = ToolRanking(), Server()
    tools = [tool("list_files")]
    assert (await ranking.rank("files", [(server, "s", tools)]))[0] == [("s", tools[0])]
    tools[0]["name"] = "other"  # an index that was made again would see this
    assert (await ranking.rank("files", [(server, "s", list(tools))]))[0]
    changed = [dict(tools[0])]
    assert (await ranking.rank("files", [(server, "s", changed)]))[0] == []


def steps_of(index: ToolIndex) -> int:
    return sum(1 for _ in index.build())


def test_a_large_list_is_read_in_small_steps_and_only_so_far() -> None:
    large = [tool(f"tool_{n}", "many different words " * 500) for n in range(5_000)]
    index = ToolIndex("s", large)
    assert steps_of(index) > 150
    assert max(index.lengths) < 100


def test_words_without_end_are_not_all_kept() -> None:
    odd = [
        tool(f"tool_{n}", " ".join(f"{chr(97 + n % 26) * 3}{m:b}x" for m in range(60)))
        for n in range(9)
    ]
    assert steps_of(ToolIndex("s", odd)) == 0
    letters = "abcdefghijklmnopqrstuvwxyz"
    spread = ["".join(letters[n // 26**i % 26] for i in range(5)) for n in range(60_000)]
    wordy = [tool("t", " ".join(spread[at : at + 60])) for at in range(0, 60_000, 60)]
    index = ToolIndex("s", wordy)
    steps_of(index)
    assert "50000 words" in repr(index)
