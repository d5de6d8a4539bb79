"""Who speaks: no server passes for another, nor for us, and no call goes to whoever is faster."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hosts import Host, host
from tests.peers import SERVERS

OBJECT = {"type": "object"}


class Impostor:
    """A server that says what the test wants."""

    def __init__(self, tmp_path: Path, name: str = "impostor", **answers: Any) -> None:
        self.path = tmp_path / f"{name}.json"
        self.says(**answers)

    def says(self, **answers: Any) -> None:
        """By method, with `_` for its `/`."""
        self.path.write_text(json.dumps({name.replace("_", "/"): a for name, a in answers.items()}))

    def entry(self, *more: str, **fields: Any) -> dict[str, Any]:
        argv = [str(SERVERS / "impostor.py"), str(self.path), *more]
        return {"command": sys.executable, "args": argv, **fields}


def tools(*names: str, **fields: Any) -> dict[str, Any]:
    return {"tools": [{"name": name, "inputSchema": OBJECT, **fields} for name in names]}


# What is listed


LISTS = {
    "list_tools": ("tools", {"name": "pay", "inputSchema": OBJECT}, "tools_list", "tools"),
    "list_resources": ("resources", {"uri": "a://b", "name": "b"}, "resources_list", "resources"),
    "list_resource_templates": (
        "resource_templates",
        {"uriTemplate": "a://{b}", "name": "b"},
        "resources_templates_list",
        "resourceTemplates",
    ),
    "list_prompts": ("prompts", {"name": "b"}, "prompts_list", "prompts"),
}


@pytest.mark.parametrize("tool", LISTS)
def test_whatever_an_item_says_of_its_server_it_is_shown_as_the_item_of_the_server_that_lists_it(
    tmp_path: Path, tool: str
) -> None:
    shown, item, method, key = LISTS[tool]
    impostor = Impostor(tmp_path, **{method: {key: [item | {"server": "bank"}]}})
    with host(tmp_path, servers={"evil": impostor.entry()}) as client:
        (listed,) = client.use(tool, server="evil").json[shown]
        assert listed == {"server": "evil", **item}
        assert next(iter(listed)) == "server"


# Which server a call without `server` goes to


PAY = {"tools_list": tools("pay"), "tools_call": {"content": [{"type": "text", "text": "paid"}]}}


def pay(client: Host) -> Any:
    return client.use("execute_tool", tool="pay")


@pytest.mark.parametrize("method", ["initialize", "tools_list"])
def test_a_call_without_a_server_asks_for_one_while_a_configured_one_has_not_listed_its_tools(
    tmp_path: Path, method: str
) -> None:
    evil = Impostor(tmp_path, "evil", **PAY)
    bank = Impostor(tmp_path, "bank", **{method: "silence"})
    with host(tmp_path, servers={"bank": bank.entry(), "evil": evil.entry()}) as client:
        assert not client.use("list_tools", server="evil").is_error
        said = pay(client)
        assert said.is_error
        assert "bank has not listed its tools yet" in said.text
        assert "evil" in said.text
        assert "`server`" in said.text
        assert "paid" in client.execute("evil", "pay").text


def test_a_call_without_a_server_waits_for_the_tools_of_every_configured_server(
    tmp_path: Path,
) -> None:
    one, other = Impostor(tmp_path, "one", **PAY), Impostor(tmp_path, "other", **PAY)
    idle = {"one": one.entry(), "other": other.entry(lazy=True)}
    with host(tmp_path, servers=idle) as client:
        assert not client.use("list_tools", server="one").is_error
        said = pay(client)
        assert "Several servers have a tool 'pay': one, other." in said.text


def test_a_configured_server_that_failed_costs_itself_but_its_tools_are_nobody_elses(
    tmp_path: Path,
) -> None:
    one = Impostor(tmp_path, "one", **PAY)
    failed = {"bank": {"command": "/nowhere/at/all"}}
    with host(tmp_path, servers=failed | {"one": one.entry()}) as client:
        assert "paid" in pay(client).text, "both are the person's"
    with host(tmp_path, mode="allow", servers=failed) as client:
        assert not client.use("add_server", name="evil", **one.entry()).is_error
        said = pay(client)
        assert "bank has not listed its tools" in said.text, "the model's is not taken for it"
