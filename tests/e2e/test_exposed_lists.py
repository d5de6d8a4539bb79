"""Prompts, resources and templates of exposed servers, and what is known before a server is up."""

import json
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.greeting import greeting_file
from tests.e2e.client import (
    Setting,
    both_backends,
    both_eras,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.e2e.test_exposed_tools import (
    FIXED,
    changes,
    exposing,
    listed,
    odd,
    until_listed,
)

PROMPTS = ("prompts/list", "prompts")
RESOURCES = ("resources/list", "resources")
TEMPLATES = ("resources/templates/list", "resourceTemplates")


@both_backends
@both_eras
async def test_prompts_resources_and_templates_are_listed_got_and_read(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with exposing(tmp_path, True, modern=modern, era=era) as client:  # noqa: FBT003 - as in the file
        await until_listed(client, "s__echo")
        for what in ("prompts", "resources"):
            await client.received(lambda m=f"notifications/{what}/list_changed": changes(client, m))
        prompts = await listed(client, *PROMPTS)
        assert list(prompts) == ["s__greet", "s__plain"]
        assert prompts["s__greet"]["arguments"] == [{"name": "name", "required": True}]
        got = await client.request(
            "prompts/get", {"name": "s__greet", "arguments": {"name": "Ada"}}
        )
        assert got["messages"][0]["content"]["text"] == "Say hello to Ada."
        refused = await client.refused("prompts/get", {"name": "s__greet", "arguments": {}})
        assert refused["code"] == -32602
        assert list(await listed(client, *RESOURCES)) == ["fixture://one", "fixture://two"]
        assert list(await listed(client, *TEMPLATES)) == ["fixture://item/{id}"]
        for uri in ("fixture://one", "fixture://item/7"):
            read = await client.request("resources/read", {"uri": uri})
            assert read["contents"][0]["text"] == f"text of {uri}"


async def test_patterns_expose_tools_and_nothing_else(tmp_path: Path) -> None:
    async with exposing(tmp_path, ["*"]) as client:
        await until_listed(client, "s__echo")
        assert await listed(client, *PROMPTS) == {}
        assert await listed(client, *RESOURCES) == {}
        refused = await client.refused("prompts/get", {"name": "s__greet"})
        assert "There is no prompt 's__greet'" in refused["message"]
        read = await client.request("resources/read", {"uri": "fixture://one"})
        assert read["contents"][0]["text"] == "text of fixture://one"


async def test_a_uri_that_two_exposed_servers_have_is_listed_once_and_read_with_their_names(
    tmp_path: Path,
) -> None:
    servers = {"b": server(expose=True), "c": server()}
    async with exposing(tmp_path, True, servers=servers) as client:  # noqa: FBT003 - as in the file
        await until_listed(client, "s__echo", "b__echo")
        assert list(await listed(client, *RESOURCES)) == ["fixture://one", "fixture://two"]
        refused = await client.refused("resources/read", {"uri": "fixture://one"})
        assert "Several servers have a resource 'fixture://one': b, s." in refused["message"]


async def test_an_exposed_server_comes_before_the_others_that_have_a_resource(
    tmp_path: Path,
) -> None:
    log = tmp_path / "other.jsonl"
    async with exposing(tmp_path, True, servers={"c": server(log=log)}) as client:  # noqa: FBT003
        await until_listed(client, "s__echo")
        await client.connected("s", "c")
        read = await client.request("resources/read", {"uri": "fixture://one"})
        assert read["contents"][0]["text"] == "text of fixture://one"
        assert not [m for m in received_by_server(log) if "resources/read" in str(m)]


# Before the server is up


class Kept(Setting):
    """A configuration file that stays as it is from one run to the next."""

    def write(self) -> None:
        if not self.config.exists():
            super().write()

    @property
    def greeting(self) -> Path:
        return Path(greeting_file(str(self.config), self.environ()))


GATED = """
import json, os, subprocess, sys, time
open(sys.argv[1], "a").write("started\\n")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.005)
os.execv(sys.argv[3], sys.argv[3:])
"""


def gated(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """The plain server, which is up only once the gate is open."""
    script = tmp_path / "gated.py"
    script.write_text(GATED)
    entry = server(**more)
    argv = [str(script), str(tmp_path / "starts"), str(tmp_path / "gate"), entry["command"]]
    return {**entry, "args": [*argv, *entry["args"]]}


async def left(setting: Kept, *words: str) -> None:
    def known() -> bool:
        text = setting.greeting.read_text() if setting.greeting.exists() else ""
        return all(word in text for word in words)

    await until(known)


@both_eras
async def test_what_was_exposed_is_listed_and_called_before_the_server_is_up(
    tmp_path: Path, *, modern: bool
) -> None:
    servers = {"s": gated(tmp_path, expose=True)}
    setting = Kept(home=tmp_path / "home", servers=servers, fixed=FIXED)
    gate = tmp_path / "gate"
    gate.touch()
    async with exposing(tmp_path, setting=setting, modern=modern) as client:
        await until_listed(client, "s__echo")
        await client.received(lambda: changes(client, "notifications/resources/list_changed"))
        lists = [await listed(client), *[await listed(client, *w) for w in (PROMPTS, RESOURCES)]]
        await left(setting, "s__echo", "s__greet", "fixture://item/{id}")
    gate.unlink()
    async with exposing(tmp_path, setting=setting, modern=modern) as client:
        again = [await listed(client), *[await listed(client, *w) for w in (PROMPTS, RESOURCES)]]
        assert again == lists
        assert list(again[0]) == list(lists[0])
        pending = await client.begin_call("s__echo", message="hi")
        got = await client.begin("prompts/get", {"name": "s__plain"})
        read = await client.begin("resources/read", {"uri": "fixture://one"})
        own = await client.begin_call("add", a=1, b=2)
        assert "connecting" in (await client.call("list_servers")).text
        assert pending.message is None
        gate.touch()
        assert (await pending.answer()).text == "hi"
        assert (await own.answer()).text == "3"
        assert "messages" in await got.result()
        assert "contents" in await read.result()
        assert (await client.call("s__grow")).text.startswith("grown_")
        await client.received(lambda: changes(client))
        told = [note["method"] for note in client.notifications if "list_changed" in note["method"]]
        assert set(told) == {"notifications/tools/list_changed"}, "only the tools have changed"


class Beside(Kept):
    """One of several configurations of a person, who has one state directory."""

    def environ(self) -> dict[str, str]:
        return super().environ() | {"EMCEEPEE_STATE_DIR": str(self.home.parent / "state")}


async def test_with_two_configurations_in_turn_each_first_list_has_its_exposed_tools(
    tmp_path: Path,
) -> None:
    """The greeting of one configuration does not take the place of another's."""
    gate = tmp_path / "gate"
    gate.touch()
    settings = [
        Beside(home=tmp_path / name, servers={name: gated(tmp_path, expose=["echo"])}, fixed=FIXED)
        for name in ("a", "b")
    ]
    for setting in settings:
        async with exposing(tmp_path, setting=setting) as client:
            await until_listed(client, f"{setting.home.name}__echo")
    gate.unlink()
    for setting in settings * 2:
        async with exposing(tmp_path, setting=setting) as client:
            assert list(await listed(client)) == [f"{setting.home.name}__echo"]


class WithToken(Kept):
    """An environment in which a variable has another value in each run."""

    token = "first"

    def environ(self) -> dict[str, str]:
        return super().environ() | {"TOKEN": self.token}


async def test_exposed_tools_stay_while_a_server_is_started_with_another_token(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    entry = gated(tmp_path, expose=["echo"])
    entry["env"] = {**entry.get("env", {}), "TOKEN": "${TOKEN}"}
    setting = WithToken(home=tmp_path / "home", servers={"s": entry}, fixed=FIXED)
    async with exposing(tmp_path, setting=setting) as client:
        await until_listed(client, "s__echo")
        await left(setting, "s__echo")
    gate.unlink()
    setting.token = "second"
    async with exposing(tmp_path, setting=setting) as client:
        assert list(await listed(client)) == ["s__echo"]
        pending = await client.begin_call("s__echo", message="hi")
        gate.touch()
        assert (await pending.answer()).text == "hi"
        assert changes(client) == []


async def test_a_server_that_is_not_what_it_was_is_told_of_once_it_is_up(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    setting = Kept(
        home=tmp_path / "home", servers={"s": odd(tmp_path, "s", "old", "same")}, fixed=FIXED
    )
    async with exposing(tmp_path, setting=setting) as client:
        await until_listed(client, "s__old")
        await left(setting, "s__old")
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("new", "same")]
    script.write_text(json.dumps(tools))
    async with exposing(tmp_path, setting=setting) as client:
        assert list(await until_listed(client, "s__new")) == ["s__new", "s__same"]
        assert len(changes(client)) == 1
        refused = await client.refused("tools/call", {"name": "s__old"})
        assert refused["code"] == -32602


@pytest.mark.parametrize("damage", ["stale", "half", "poisoned", "huge", "foreign"])
async def test_a_greeting_that_cannot_be_trusted_lists_nothing(tmp_path: Path, damage: str) -> None:
    (tmp_path / "gate").touch()
    servers = {"s": gated(tmp_path, expose=["echo"])}
    setting = Kept(home=tmp_path / "home", servers=servers, fixed=FIXED)
    async with exposing(tmp_path, setting=setting) as client:
        await until_listed(client, "s__echo")
        await left(setting, "s__echo")
    held = setting.greeting.read_bytes()
    (tmp_path / "gate").unlink()
    if damage == "stale":
        setting.config.write_text(setting.config.read_text() + "\n")
    elif damage == "half":
        setting.greeting.write_bytes(held[:-20])
    elif damage == "poisoned":
        setting.greeting.write_bytes(held.replace(b"Say it back.", b"Say it twice"))
    elif damage == "huge":
        setting.greeting.write_bytes(held + b" " * (1 << 20))
    else:
        setting.greeting.chmod(0o666)
    async with exposing(tmp_path, setting=setting) as client:
        assert await listed(client) == {}
        (tmp_path / "gate").touch()
        assert list(await until_listed(client, "s__echo")) == ["s__echo"]


async def test_a_lazy_server_is_listed_from_the_greeting_and_starts_with_its_first_call(
    tmp_path: Path,
) -> None:
    log = tmp_path / "received.jsonl"
    servers = {"s": server(log=log, lazy=True, expose=["echo"])}
    setting = Kept(home=tmp_path / "home", servers=servers, fixed=FIXED)
    async with exposing(tmp_path, setting=setting) as client:
        await client.execute("add", args={"a": 1, "b": 2})
        await until_listed(client, "s__echo")
        await left(setting, "s__echo")
    log.unlink()
    async with exposing(tmp_path, setting=setting) as client:
        assert list(await listed(client)) == ["s__echo"]
        assert not log.exists()
        assert (await client.call("s__echo", message="hi")).text == "hi"


async def test_what_a_model_does_to_a_server_is_not_in_the_next_greeting(tmp_path: Path) -> None:
    more = {"policy": {"mode": "allow"}}
    servers = {"s": gated(tmp_path, expose=True)}
    setting = Kept(home=tmp_path / "home", servers=servers, fixed=FIXED, more=more)
    (tmp_path / "gate").touch()
    async with exposing(tmp_path, setting=setting) as client:
        lists = await until_listed(client, "s__echo")
        await left(setting, "s__echo", "s__greet", "fixture://item/{id}", '["s","')
        held = setting.greeting.read_bytes()
        await client.call("remove_server", name="s")
        await client.received(lambda: len(changes(client)) >= 2)
        impostor = odd(tmp_path, "impostor", "echo")
        del impostor["expose"]
        assert not (await client.call("add_server", name="s", **impostor)).is_error
        assert await listed(client) == {}
    assert setting.greeting.read_bytes() == held
    (tmp_path / "gate").unlink()
    async with exposing(tmp_path, setting=setting) as client:
        assert await listed(client) == lists
        (tmp_path / "gate").touch()


async def test_the_last_change_before_the_end_is_in_the_next_greeting(tmp_path: Path) -> None:
    """The file is written every so often; here that would be after the session."""
    seldom = {**FIXED, "config_poll_s": 600}
    servers = {"s": gated(tmp_path, expose=["echo"])}
    setting = Kept(home=tmp_path / "home", servers=servers, fixed=seldom)
    (tmp_path / "gate").touch()
    async with exposing(tmp_path, setting=setting) as client:
        lists = await until_listed(client, "s__echo")
    (tmp_path / "gate").unlink()
    async with exposing(tmp_path, setting=setting) as client:
        assert await listed(client) == lists
        (tmp_path / "gate").touch()


async def test_of_more_than_a_greeting_holds_each_server_keeps_its_share(tmp_path: Path) -> None:
    def many(count: int) -> list[dict[str, Any]]:
        words = {"inputSchema": {"type": "object"}, "description": "x" * 20_000}
        return [{"name": f"t{n:02}", **words} for n in range(count)]

    servers = {name: odd(tmp_path, name, *many(25)) for name in ("a", "b", "c")}
    servers["small"] = odd(tmp_path, "small", "only")
    setting = Kept(home=tmp_path / "home", servers=servers, fixed=FIXED)
    async with exposing(tmp_path, setting=setting) as client:
        lists = await until_listed(client, "a__t24", "b__t24", "c__t24", "small__only")
    async with exposing(tmp_path, setting=setting) as client:
        greeted = await listed(client)
        assert greeted.items() <= lists.items()
        counts = [sum(name.startswith(one) for name in greeted) for one in servers]
        assert counts[3] == 1
        assert all(10 < count < 25 for count in counts[:3])
        await until_listed(client, *lists)


async def test_a_hello_with_a_stream_of_changes_is_answered_before_the_rest_is_loaded(
    tmp_path: Path,
) -> None:
    """Hosts open the stream before they list: the first answers must not wait for it."""
    setting = Setting(home=tmp_path / "home", servers={"s": server(expose=["grow*"])}, fixed=FIXED)
    async with proxy(setting, modern=True) as client:
        client.exposes = True
        await client.request("server/discover")
        wanted = {"notifications": {"toolsListChanged": True}}
        stream = await client.begin("subscriptions/listen", wanted, id=1)
        await client.received(lambda: client.notifications)
        await client.request("tools/list")
        await until_listed(client, "s__grow")
        again = await client.begin("tools/list", id="x")
        assert await again.result()
        await client.cancel(stream)
        before = len(changes(client))
        await client.call("s__grow")
        await client.call("list_timers")
        assert len(changes(client)) == before
