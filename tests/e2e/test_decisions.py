"""What a person decided holds for the target, under any name, until they decide otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.trust.store import TrustStore
from tests.e2e.clients.raw import until
from tests.e2e.hosts import ALWAYS, ONCE, Host, host, proposal


def entry(*options: str, **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in proposal(*options, **fields).items() if key != "name"}


def edit(tmp_path: Path, **servers: Any) -> None:
    config = json.loads((tmp_path / "config.json").read_text())
    config["mcpServers"] |= servers
    new = tmp_path / "config.new"
    new.write_text(json.dumps(config))
    new.replace(tmp_path / "config.json")


PRESENT = {
    "in use": {"mine": entry(lazy=True)},
    "switched off": {"mine": entry(disabled=True)},
    "mistaken": {"mine": entry() | {"args": 5}},
}


@pytest.mark.parametrize("present", PRESENT)
def test_a_configured_name_is_not_taken_unasked_not_even_after_it_was_removed(
    tmp_path: Path, present: str
) -> None:
    """Whatever could be added under another name without a word."""
    with host(tmp_path, elicits=False, servers=PRESENT[present]) as client:
        if present == "in use":
            assert not client.use("remove_server", name="mine").is_error
        for proposed in (proposal("--paged"), {"url": "https://elsewhere.example/mcp"}):
            said = client.use("add_server", **(proposed | {"name": "mine"}))
            assert "[needs_approval]" in said.text
        assert "It takes the place of mine" in (tmp_path / "state" / "pending.json").read_text()
        if present == "in use":
            again = client.use("add_server", **proposal(name="mine"))
            assert again.json["admitted"] == "known to a person", "the very same is no other"


def test_an_agreement_to_a_target_is_none_to_its_taking_the_name_of_another(tmp_path: Path) -> None:
    servers = {"mine": entry(lazy=True)}
    with host(tmp_path, servers=servers) as client:
        assert not client.decide("accept", **proposal("--paged")).is_error
        client.use("remove_server", name="mine")
        said = client.decide("accept", **proposal("--paged", name="mine"))
        assert "It takes the place of mine" in client.questions[1]["params"]["message"]
        assert said.json["phase"] == "connected"


def test_what_a_person_switched_off_is_not_added_under_another_name_unasked(
    tmp_path: Path,
) -> None:
    servers = {
        "bank": {"url": "https://Bank.example/mcp", "disabled": True},
        "mine": entry(env={"TOKEN": "x"}, enabled=False),
    }
    with host(tmp_path, elicits=False, servers=servers) as client:
        for proposed in (proposal(), {"name": "new", "url": "https://bank.example:443/mcp"}):
            said = client.use("add_server", **proposed)
            assert "[needs_approval]" in said.text
        waiting = [one.text for one in TrustStore(tmp_path / "state").waiting()]
        assert "You have disabled it in the configuration, as mine." in waiting[0]
        assert "You have disabled it in the configuration, as bank." in waiting[1]


def test_what_comes_in_while_a_person_thinks_is_not_replaced_by_what_they_agreed_to(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal("--paged", name="mine", replace=True))
        asked = client.question()
        edit(tmp_path, mine=entry())
        until(lambda: "mine" in client.servers(), "the edit")
        client.reply(asked, "accept")
        assert "[server_exists]" in client.said_to(first).text
        assert "admitted" not in client.servers()["mine"], "that of the configuration"


def agreed(client: Host, decision: str) -> None:
    first = client.start("add_server", **proposal())
    client.reply(client.question(), "accept", decision)
    assert not client.said_to(first).is_error


def take_back(tmp_path: Path) -> None:
    trust = TrustStore(tmp_path / "state")
    for approval in trust.granted():
        trust.revoke(approval.digest)


def test_an_agreement_that_is_taken_back_ends_the_server_and_is_asked_again(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as client:
        agreed(client, ALWAYS)
        take_back(tmp_path)
        until(lambda: "new" not in client.servers(), "the server to go")
        client.start("add_server", **proposal())
        assert "new" in client.question(1)["params"]["message"]


def test_an_agreement_for_once_is_not_touched_when_another_is_taken_back(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        agreed(client, ONCE)
        assert not client.decide("accept", **proposal("--paged", name="other")).is_error
        take_back(tmp_path)
        until(lambda: "other" not in client.servers(), "the server to go")
        assert "new" in client.servers()


SPELLINGS = {
    "env": {"command": "env", "args": ["plain"]},
    "sh": {"command": "sh", "args": ["-c", "exec plain"]},
    "one more argument": {"command": "plain", "args": ["--paged"]},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_another_spelling_of_a_server_with_rules_is_asked_about_by_their_names(
    tmp_path: Path, spelling: str
) -> None:
    servers = {"mine": entry(lazy=True, tools={"echo": "off", "send_*": "ask"})}
    proposed = {"name": "new", **SPELLINGS[spelling]}
    with host(tmp_path, elicits=False, servers=servers) as client:
        said = client.use("add_server", **proposed)
        assert "[needs_approval]" in said.text
        (waiting,) = TrustStore(tmp_path / "state").waiting()
        like = "Looks like mine, whose rules do not bind it: echo: off, send_*: ask."
        assert f"Beware: {like}\n" in waiting.text


def test_a_person_is_asked_about_a_server_that_looks_like_one_with_rules(tmp_path: Path) -> None:
    servers = {"mine": entry(lazy=True, tools={"echo": "off"})}
    with host(tmp_path, servers=servers) as client:
        client.decide("decline", **proposal("--paged"))
        warning = client.questions[0]["params"]["message"].split("\n")[1]
        assert warning == "Looks like mine, whose rules do not bind it: echo: off."


def test_an_agreement_to_a_server_does_not_outlive_rules_for_one_that_looks_like_it(
    tmp_path: Path,
) -> None:
    with host(tmp_path, servers={"mine": entry(lazy=True)}) as client:
        assert not client.decide("accept", **proposal("--paged")).is_error
    ruled = {"mine": entry(lazy=True, tools={"echo": "off"})}
    with host(tmp_path, elicits=False, servers=ruled) as client:
        assert "[needs_approval]" in client.use("add_server", **proposal("--paged")).text


def test_what_is_configured_as_it_is_is_known_though_it_looks_like_one_with_rules(
    tmp_path: Path,
) -> None:
    servers = {
        "mine": entry(lazy=True, tools={"echo": "off"}),
        "other": entry("--paged", lazy=True),
    }
    with host(tmp_path, elicits=False, servers=servers) as client:
        assert not client.use("add_server", **proposal("--paged")).is_error


def test_another_path_of_a_host_with_rules_is_not_added_unasked(tmp_path: Path) -> None:
    bank = {"url": "https://bank.example/mcp", "start": "lazy", "tools": {"pay": "ask"}}
    with host(tmp_path, elicits=False, servers={"bank": bank}) as client:
        for path in ("v2/mcp", "x"):
            proposed = {"name": "new", "url": f"https://bank.example/{path}"}
            assert "[needs_approval]" in client.use("add_server", **proposed).text
        waiting = TrustStore(tmp_path / "state").waiting()
        assert all("whose rules do not bind it: pay: ask." in one.text for one in waiting)
