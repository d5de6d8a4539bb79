"""How a profile describes a proxy: its placeholders, and ours as the example."""

import json
from pathlib import Path

import pytest

from bench.client import Call, Failed
from bench.ways import OURS, PROFILES, Proxy, filled


def params(call: Call) -> object:
    return json.loads(call.line(7))["params"]


def test_a_call_has_the_id_that_it_is_sent_with_whatever_it_says() -> None:
    call = Call({"name": "t", "arguments": {"id": 0}})
    message = json.loads(call.line(7))
    assert message["id"] == 7
    assert message["params"]["arguments"] == {"id": 0}
    assert call.line(7).endswith(b"}\n")


def test_a_whole_value_becomes_what_it_stands_for_and_a_part_its_text() -> None:
    values = {"server": "raw", "tool": "t", "arguments": {"bytes": 2}}
    template = {"name": "{server}_{tool}", "args": "{arguments}", "n": 1, "on": True, "no": None}
    made = filled(template, values)
    assert made == {"name": "raw_t", "args": {"bytes": 2}, "n": 1, "on": True, "no": None}
    assert filled("{unknown}", values) == "{unknown}"


def test_a_command_takes_the_backends_command_in() -> None:
    values = {"backend": ["python", "b.py"], "config": "/c.json"}
    made = filled(["proxy", "--config={config}", "--", "{backend}"], values)
    assert made == ["proxy", "--config=/c.json", "--", "python", "b.py"]


def test_a_proxy_may_want_its_servers_as_a_list_in_a_form_of_its_own() -> None:
    profile = {
        "name": "lister",
        "call": {},
        "entry": {"id": "{server}", "run": ["env", "{argv}"]},
        "config": {"at": "{home}/log", "all": "{entries}", "map": "{servers}"},
    }
    config = Proxy(["proxy"], profile).config({"a": ["x", "1"], "b": ["y"]}, home="/home")
    assert config == {
        "at": "/home/log",
        "all": [{"id": "a", "run": ["env", "x", "1"]}, {"id": "b", "run": ["env", "y"]}],
        "map": {"a": {"command": "x", "args": ["1"]}, "b": {"command": "y", "args": []}},
    }


def test_our_own_profile_calls_execute_tool() -> None:
    assert params(OURS.call("t", server="s", bytes=2)) == {
        "name": "execute_tool",
        "arguments": {"server": "s", "tool": "t", "args": {"bytes": 2}},
    }


def test_every_profile_that_is_there_can_be_read_and_makes_a_call() -> None:
    paths = sorted(PROFILES.glob("*.json"))
    assert paths
    for path in paths:
        proxy = Proxy.read(["proxy", "{config}"], path)
        assert proxy.takes_many
        made = json.dumps(params(proxy.call("t", bytes=2)))
        assert "{" + "tool}" not in made
        assert '"bytes": 2' in made


def test_a_profile_that_lacks_something_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    path.write_text('{"name": "half"}')
    with pytest.raises(Failed, match=r"half\.json lacks 'call'"):
        Proxy.read(["x"], path)


def test_every_entry_may_say_more() -> None:
    config = OURS.with_fields(expose=True).config({"a": ["x"]}, home="/home")
    assert config["mcpServers"] == {"a": {"command": "x", "args": [], "expose": True}}
