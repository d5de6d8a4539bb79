import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.backends.interface import Kind
from emceepee_stdio.session.exposed_lists import (
    MAX_NAME_CHARS,
    ExposedServer,
    exposed_names,
    list_exposed,
)

TAKEN = re.compile(r"[A-Za-z0-9_-]{1,46}")


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def shown(*servers: ExposedServer, key: str = "tools") -> list[dict[str, Any]]:
    return json.loads(b"[%b]" % list_exposed(servers).arrays[key])


def test_a_name_says_what_it_is_where_nothing_is_in_the_way() -> None:
    assert exposed_names([("github", "search_code")]) == {
        ("github", "search_code"): "github__search_code"
    }


def test_two_that_would_be_equal_both_get_a_hash_whatever_their_order() -> None:
    pair = [("a", "b__c"), ("a__b", "c")]
    names = exposed_names(pair)
    assert names == exposed_names(reversed(pair))
    assert len(set(names.values())) == 2
    assert all(name.startswith("a__b__c_") for name in names.values())


def test_a_long_name_keeps_its_name_when_another_comes() -> None:
    long, other = ("s", "x" * 60), ("s", "x" * 61)
    assert exposed_names([long])[long] == exposed_names([long, other])[long]
    assert len(exposed_names([long])[long]) == MAX_NAME_CHARS


def test_of_two_that_even_a_hash_does_not_tell_apart_the_earlier_one_stays() -> None:
    """A server knows beforehand which hash the tool of another one gets."""
    pair = [("a", "b__c"), ("a__b", "c")]
    hashed = exposed_names(pair)["a__b", "c"]
    rival = ("a", hashed.removeprefix("a__"))
    assert exposed_names([*pair, rival]).keys() == {*pair}
    assert exposed_names([rival, *pair]).keys() == {rival, pair[0]}
    assert len(exposed_names([rival, *pair], ["a", "a__b"])) == 3, "nor is it needed to choose"


def test_a_tool_that_is_not_what_it_was_is_listed_without_its_hints() -> None:
    hints = {"title": "T", "readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
    tools = [tool("a", annotations=hints), tool("b"), tool("c", annotations=hints)]
    server = ExposedServer(name="s", items={Kind.TOOLS: tools}, unpinned=frozenset("ab"))
    one, two, three = shown(server)
    assert one["annotations"] == {"title": "T", "readOnlyHint": False}
    assert "annotations" not in two
    assert three["annotations"] == hints


@given(st.sets(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=20))
def test_every_name_is_one_that_hosts_take_and_nobody_elses(items: set[tuple[str, str]]) -> None:
    names = exposed_names(items)
    assert len(set(names.values())) == len(names)
    assert all(TAKEN.fullmatch(name) for name in names.values())


def test_the_order_is_of_the_servers_and_then_of_the_names() -> None:
    one = ExposedServer(name="z", items={Kind.TOOLS: [tool("b"), tool("a")]})
    two = ExposedServer(name="a", items={Kind.TOOLS: [tool("c")]})
    assert [item["name"] for item in shown(one, two)] == ["z__a", "z__b", "a__c"]


def test_a_hidden_tool_is_known_by_name_and_not_listed() -> None:
    server = ExposedServer(
        name="s", items={Kind.TOOLS: [tool("a"), tool("b")]}, hidden=frozenset("a")
    )
    lists = list_exposed([server])
    assert [item["name"] for item in shown(server)] == ["s__b"]
    assert lists.tools["s__a"].own == "a"
    assert lists.listed_names() == {("s", "b"): "s__b"}


def test_resources_go_by_their_uris_and_ours_are_nobody_elses() -> None:
    uris = ["x:1", "emceepee://status", "EMCEEPEE:x", "no uri", "x:2 3", "x:\n", "y" * 3_000 + ":z"]
    items = {Kind.RESOURCES: [{"uri": uri, "name": "n"} for uri in uris]}
    one, two = (ExposedServer(name=name, items=items) for name in ("a", "b"))
    assert [item["uri"] for item in shown(one, two, key="resources")] == ["x:1"]


def test_a_hostile_definition_costs_its_own_server_only() -> None:
    deep: Any = {}
    for _ in range(5_000):
        deep = {"a": deep}
    bad = [tool("deep", _meta=deep), tool("half", description="\ud800"), {"name": ["x"]}, {}]
    evil = ExposedServer(name="evil", items={Kind.TOOLS: [*bad, tool("fine")]})
    good = ExposedServer(name="good", items={Kind.TOOLS: [tool("x")]})
    names = [item["name"] for item in shown(evil, good)]
    assert names[-1] == "good__x"
    assert "evil__fine" in names
    assert "evil__deep" not in names


def test_more_items_than_a_client_can_use_cost_their_own_server_and_no_time() -> None:
    """The lists are made anew at every change that a server tells, while calls wait."""
    many = [tool(f"t{n:05}") for n in range(5_000)]
    evil = ExposedServer(name="evil", items={Kind.TOOLS: many})
    good = ExposedServer(name="good", items={Kind.TOOLS: [tool("x")]})
    lists = list_exposed([evil, good])
    assert lists.left_out == {"evil": 4_000}
    assert len(lists.tools) == 1_001
    names = [item["name"] for item in shown(evil, good)]
    assert names[0] == "evil__t00000"
    assert names[-2:] == ["evil__t00999", "good__x"]


def test_the_page_of_an_app_has_an_address_of_apps_and_no_other() -> None:
    pages = ["ui://s/page", "vault://secret", "file:///etc/passwd", "x", 5]
    tools = [tool(f"t{n}", _meta={"ui": {"resourceUri": page}}) for n, page in enumerate(pages)]
    lists = list_exposed([ExposedServer(name="s", items={Kind.TOOLS: tools})])
    assert [item.page for item in lists.tools.values()] == ["ui://s/page", None, None, None, None]
