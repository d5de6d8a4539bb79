import json
from pathlib import Path

import pytest

from emceepee_stdio.greeting import greeting_file
from tests.e2e.client import (
    ENVELOPE,
    LEGACY,
    MODERN,
    Client,
    P,
    Setting,
    both_eras,
    command,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.peers import rude

# Before the rest of the proxy is loaded.
pytestmark = [pytest.mark.real, pytest.mark.fresh]

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
CAPABILITIES = {what: {"listChanged": True} for what in ("tools", "prompts", "resources")}
TOOLS = {"add_server", "list_servers", "execute_tool", "await_activity", "respond_to_elicitation"}


async def names(client: Client) -> set[str]:
    return {tool["name"] for tool in (await client.request("tools/list"))["tools"]}


@both_eras
async def test_the_hello_and_the_tools_are_there_while_every_backend_hangs(
    tmp_path: Path, *, modern: bool
) -> None:
    servers = {f"hung{n}": command(rude("silent")) for n in range(5)}
    setting = Setting(home=tmp_path / "home", servers=servers)
    async with proxy(setting, modern=modern) as client:
        if modern:
            assert MODERN in (await client.request("server/discover"))["supportedVersions"]
        assert await names(client) >= TOOLS
        listed = (await client.call("list_servers")).json["servers"]
        assert {s["name"]: s["phase"] for s in listed} == dict.fromkeys(servers, "connecting")
        assert await names(client) >= TOOLS


@both_eras
@pytest.mark.parametrize("text", ["{ not json", "[]", '{"mcpServers": 7}', "\x00", ""])
async def test_a_broken_configuration_costs_its_servers_and_not_the_proxy(
    tmp_path: Path, text: str, *, modern: bool
) -> None:
    setting = Setting(home=tmp_path / "home", text=text)
    async with proxy(setting, arguments=["--policy", "allow"], modern=modern) as client:
        assert await names(client) >= TOOLS
        listed = (await client.call("list_servers")).json
        assert listed["servers"] == []
        assert "[config_invalid]" in listed["configuration_error"]
        added = await client.call("add_server", name="s", **_plain())
        assert added.json["phase"] == "connected"


def _plain() -> dict[str, object]:
    entry = server()
    return {"command": entry["command"], "args": entry["args"]}


@pytest.mark.parametrize("asked", [*VERSIONS, "2099-01-01", "1.0", "", MODERN])
async def test_every_version_of_the_handshake_is_spoken_and_unknown_ones_get_the_newest(
    tmp_path: Path, asked: str
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()})
    async with proxy(setting, greet=False) as client:
        client.version = asked if asked in VERSIONS else LEGACY
        result = await client.greet(asked)
        assert result["protocolVersion"] == (asked if asked in VERSIONS else LEGACY)
        assert result["capabilities"] == CAPABILITIES
        assert len(result["instructions"].encode()) < 2000
        assert await names(client) >= TOOLS
        await client.connected()
        assert (await client.execute("echo", args={"message": "hi"})).text == "hi"


async def test_a_second_handshake_negotiates_anew(tmp_path: Path) -> None:
    async with proxy(Setting(home=tmp_path / "home")) as client:
        for version in ("2024-11-05", "2025-06-18"):
            client.version = version
            assert (await client.greet(version))["protocolVersion"] == version
            assert (await client.call("list_servers")).json == {"servers": []}


async def test_ping_is_answered_before_and_after_the_handshake(tmp_path: Path) -> None:
    async with proxy(Setting(home=tmp_path / "home"), greet=False) as client:
        assert await client.request("ping") == {}
        await client.greet()
        assert await client.request("ping") == {}
        await client.call("list_servers")
        assert await client.request("ping", id=0) == {}


async def test_a_client_may_probe_the_modern_era_and_go_on_in_the_other(tmp_path: Path) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()})
    async with proxy(setting, greet=False) as client:
        found = await client.request("server/discover", modern=True)
        assert found["supportedVersions"] == [MODERN]
        await client.greet()
        await client.connected()
        modern = await client.begin(
            "tools/call", {"name": "list_servers", "arguments": {}}, modern=True
        )
        assert (await modern.result())["resultType"] == "complete"
        assert "resultType" not in (await client.call("list_servers")).result


@both_eras
async def test_nothing_is_started_before_the_client_shows_that_it_stays(
    tmp_path: Path, *, modern: bool
) -> None:
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(log=log)})
    async with proxy(setting, modern=modern, greet=False) as client:
        for _ in range(3):
            if modern:
                await client.request("server/discover")
            else:
                await client.request("ping")
                await client.request(
                    "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {}}
                )
        await client.send(b"no message at all\n")
        await client.received(lambda: client.complaints)
        if modern:
            await client.request("server/discover")
        assert not log.exists()
        await client.request("tools/list")
        await until(lambda: received_by_server(log, "start"))


@both_eras
async def test_a_client_that_never_stays_starts_nothing(tmp_path: Path, *, modern: bool) -> None:
    """Also not when the rest of the proxy had to be loaded to answer it."""
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(log=log)})
    async with proxy(setting, modern=modern, greet=False) as client:
        if not modern:
            await client.request(
                "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {}}
            )
        await client.send(b"no message at all\n")
        await client.received(lambda: client.complaints)
        for _ in range(300):
            await client.request("server/discover" if modern else "ping")
    assert not log.exists()
    assert not [line for line in setting.journal() if line.get("server") == "s"]


async def test_the_servers_start_after_the_tools_were_listed_and_nothing_else(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(log=log)})
    async with proxy(setting, modern=True) as client:
        await client.request("tools/list")
        await until(lambda: received_by_server(log, "start"))


@both_eras
@pytest.mark.parametrize("early", [True, False], ids=["greeting", "serving"])
async def test_what_the_protocol_forbids_is_refused_by_its_code(
    tmp_path: Path, *, modern: bool, early: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern, greet=not early) as client:
        if not early:
            await client.call("list_servers")

        async def code(method: str, params: dict[str, object] | None = None) -> int:
            return (await client.refused(method, params))["code"]

        assert await code("prompts/get", {"name": "no_such_prompt"}) == -32602
        assert await code("completion/complete") == -32601
        assert await code("resources/subscribe", {"uri": "emceepee://status"}) == -32601
        assert await code("logging/setLevel", {"level": "info"}) == -32601
        assert await code("no/such") == -32601
        assert await code("") == -32601
        assert await code("tools/call", {"name": "no_such_tool"}) == -32602
        assert await code("tools/call", {}) == -32602
        assert await code("tools/call", {"name": 7}) == -32602
        assert await code("resources/read", {}) == -32602
        assert await code("resources/read", {"uri": []}) == -32602
        if modern:
            assert await code("ping") == -32601
            assert await code("subscriptions/listen") == -32602
        else:
            assert await code("subscriptions/listen", {"notifications": {}}) == -32601
            assert await code("server/discover") == -32602
        assert (await client.call("list_servers")).json == {"servers": []}


@pytest.mark.parametrize("early", [True, False], ids=["greeting", "serving"])
@pytest.mark.parametrize("method", ["tools/list", "tools/call", "resources/read", "resources/list"])
async def test_a_modern_request_is_judged_by_its_own_envelope(
    tmp_path: Path, method: str, *, early: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=True) as client:
        if not early:
            await client.call("list_servers")

        async def refused(meta: dict[str, object]) -> dict[str, object]:
            params = {"name": "list_servers", "uri": "emceepee://status", "_meta": meta}
            return await client.refused(method, params, modern=False)

        for version in ("2027-01-01", LEGACY, ""):
            error = await refused({**ENVELOPE, f"{P}protocolVersion": version})
            assert error["code"] == -32022
            assert error["data"] == {"supported": [MODERN], "requested": version}
        bare = {key: value for key, value in ENVELOPE.items() if "Capabilities" not in key}
        assert (await refused(bare))["code"] == -32602
        assert (await refused({**bare, f"{P}clientCapabilities": 7}))["code"] == -32602
        nameless = {key: value for key, value in ENVELOPE.items() if "Info" not in key}
        params = {"name": "list_servers", "uri": "emceepee://status", "_meta": nameless}
        pending = await client.begin(method, params, modern=False)
        pending.version = MODERN
        await pending.result()


@both_eras
async def test_garbage_is_answered_and_the_connection_lives(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:

        async def complaint(line: bytes) -> int:
            before = len(client.complaints)
            await client.send(line)
            await client.received(lambda: len(client.complaints) > before)
            return client.complaints[-1]["error"]["code"]

        assert await complaint(b"hello?\n") == -32700
        assert await complaint(b"{\n") == -32700
        assert await complaint(b"\xff\xfe\x00\n") == -32700
        assert await complaint(b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n') == -32600
        assert await complaint(b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}\n') == -32600
        assert await complaint(b"[1]\n") == -32600
        assert await complaint(b"[]\n") == -32600
        assert await complaint(b"{}\n") == -32600
        await client.send(b"\n\r\n  \n")
        for broken in ({"id": "x1", "method": "ping"}, {"jsonrpc": "1.0", "id": "x2"}):
            pending, _ = client.prepare("ping", id=broken["id"])
            await client.send({"method": "ping", **broken})
            assert (await pending.error())["code"] == -32600
        pending, _ = client.prepare("tools/list", id="x3")
        await client.send(b'{"jsonrpc":"2.0","id":"x3","method":"tools/list","params":[1]}\n')
        assert (await pending.error())["code"] == -32602
        pending, _ = client.prepare("ping", id="x4")
        await client.send(b'{"jsonrpc":"2.0","id":"x4","method":"ping" "params"}\n')
        assert (await pending.error())["code"] == -32700
        assert (await client.call("list_servers")).json == {"servers": []}


@both_eras
async def test_a_batch_is_answered_one_by_one(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        for _ in range(2):
            calls = [client.calling("list_servers") for _ in range(3)]
            listing, message = client.prepare("tools/list")
            await client.send([message, *(message for _, message in calls)])
            await listing.result()
            for pending, _ in calls:
                assert (await pending.answer()).json == {"servers": []}


async def test_messages_may_come_in_pieces_and_many_at_once(tmp_path: Path) -> None:
    async with proxy(Setting(home=tmp_path / "home"), greet=False) as client:
        pings = [client.prepare("ping", id=n) for n in range(300)]
        whole = b"".join(json.dumps(message).encode() + b"\n" for _, message in pings)
        for start in range(0, len(whole), 997):
            await client.send(whole[start : start + 997])
        for pending, _ in pings:
            assert await pending.result() == {}


@both_eras
async def test_an_id_in_use_cannot_be_used_again_before_its_answer(
    tmp_path: Path, *, modern: bool
) -> None:
    setting = Setting(home=tmp_path / "home")
    async with proxy(setting, modern=modern) as client:
        first, message = client.calling("await_activity", timeout_ms=30_000)
        await client.send(message)
        second, timer = client.calling("set_timer", duration_ms=1, message="now")
        await client.send(timer)
        await second.answer()
        assert (await first.answer()).kinds == ["timer_expired"]
        again, message = client.prepare("tools/list", id=first.id)
        await client.send(message)
        await again.result()


async def test_a_stream_of_changes_is_acknowledged_and_left_open(tmp_path: Path) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=True) as client:
        for request_id in ("listen", 7):
            wanted = {"toolsListChanged": True, "resourceSubscriptions": ["emceepee://status"]}
            stream = await client.begin(
                "subscriptions/listen", {"notifications": wanted}, id=request_id
            )
            count = len(client.notifications)
            await client.received(lambda n=count: len(client.notifications) > n)
            note = client.notifications[-1]
            assert note["method"] == "notifications/subscriptions/acknowledged"
            assert note["params"]["notifications"] == {"toolsListChanged": True}
            assert note["params"]["_meta"] == {f"{P}subscriptionId": request_id}
            await client.call("list_servers")
            assert stream.message is None
            await client.cancel(stream)
        await client.call("list_servers")


@both_eras
async def test_our_own_resources_are_native_and_readable_by_tool(
    tmp_path: Path, *, modern: bool
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()})
    async with proxy(setting, modern=modern) as client:
        await client.connected()
        listed = (await client.request("resources/list"))["resources"]
        assert {r["uri"] for r in listed} >= {"emceepee://diagrams", "emceepee://status"}
        assert "resourceTemplates" in await client.request("resources/templates/list")
        read = await client.request("resources/read", {"uri": "emceepee://diagrams"})
        diagrams = json.loads(read["contents"][0]["text"])["diagrams"]
        assert {diagram["name"] for diagram in diagrams} >= {
            "proxy_task_states",
            "pending_elicitation_states",
            "pending_sampling_states",
            "tool_call_lifecycle",
            "entity_relationships",
        }
        status = await client.status()
        assert [s["phase"] for s in status["servers"]] == ["connected"]
        told = await client.call("read_resource", server="emceepee", uri="emceepee://diagrams")
        assert json.loads(told.text)["diagrams"] == diagrams
        told = await client.call("read_resource", server="emceepee", uri="emceepee://status")
        assert json.loads(told.text).keys() == status.keys()
        error = await client.refused("resources/read", {"uri": "emceepee://nothing"})
        assert error["code"] == (-32602 if modern else -32002)
        assert error["data"] == {"uri": "emceepee://nothing"}
        missing = await client.call("read_resource", server="emceepee", uri="emceepee://nothing")
        assert missing.is_error
        assert "[resource_not_found]" in missing.text


@both_eras
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_resource_of_a_configured_server_is_read_by_its_uri_alone(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era)})
    setting.more = {"policy": {"mode": "allow"}}
    async with proxy(setting, modern=modern) as client:
        await client.connected()
        for uri in ("fixture://one", "fixture://item/7"):
            (content,) = (await client.request("resources/read", {"uri": uri}))["contents"]
            assert content["uri"] == uri
            told = await client.call("read_resource", server="s", uri=uri)
            assert told.text == content["text"]
        error = await client.refused("resources/read", {"uri": "fixture://nothing"})
        assert error["code"] == (-32602 if modern else -32002)
        assert "read_resource with its server" in error["message"]
        # One that a model added is asked by read_resource only.
        await client.call("remove_server", name="s")
        await client.call("add_server", name="mine", **_plain())
        error = await client.refused("resources/read", {"uri": "fixture://one"})
        assert "No configured server" in error["message"]


async def test_a_resource_that_several_servers_have_is_asked_back_with_their_names(
    tmp_path: Path,
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"a": server(), "b": server()})
    async with proxy(setting) as client:
        await client.connected("a", "b")
        error = await client.refused("resources/read", {"uri": "fixture://one"})
        assert "Several servers have" in error["message"]
        assert "a, b" in error["message"]


async def test_a_task_of_a_proxy_that_was_restarted_is_explained(tmp_path: Path) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()})
    async with proxy(setting) as client:
        await client.connected()
        task = (await client.execute("slow", args={"seconds": 60}, timeout_ms=0)).task
    async with proxy(setting) as client:
        for tool in ("get_task", "get_task_result", "cancel_task"):
            unknown = await client.call(tool, task_id=task)
            assert "[task_not_found]" in unknown.text
            began = (await client.status())["started_at"][:16]
            assert f"This proxy began at {began}" in unknown.text
            assert "knows nothing older" in unknown.text


async def test_a_mistake_in_the_command_line_ends_with_usage(tmp_path: Path) -> None:
    for wrong in (["--no-such"], ["--server", "nameless"], ["--server", "x="]):
        setting = Setting(home=tmp_path / "home")
        async with proxy(setting, arguments=wrong, greet=False, code=2) as client:
            greeting, message = client.prepare(
                "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {}}
            )
            await client.send(message)
            await greeting.result()
            await client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            await until(lambda c=client: c.process.returncode is not None)
        assert b"emceepee serve" in client.stderr


class Kept(Setting):
    """A configuration file that stays as it is from one run to the next."""

    def write(self) -> None:
        if not self.config.exists():
            super().write()


@both_eras
async def test_the_next_greeting_names_the_configured_servers_with_a_line_each(
    tmp_path: Path, *, modern: bool
) -> None:
    servers = {"one": server(description="Numbers and letters"), "two": server()}
    setting = Kept(home=tmp_path / "home", servers=servers, fixed={"config_poll_s": 0.05})
    left = Path(greeting_file(str(setting.config), setting.environ()))
    async with proxy(setting, modern=modern, greet=False) as client:
        text = await instructions(client, modern=modern)
        assert "\n- one: Numbers and letters\n- two\n" in text, "as the file names them"
        await client.call("list_tools", server="two")
        await until(lambda: left.exists() and '"two","plain"' in left.read_text())
    assert left.stat().st_mode & 0o777 == 0o600
    async with proxy(setting, modern=modern, greet=False) as client:
        text = await instructions(client, modern=modern)
        assert '\n- one: Numbers and letters\n- two: "plain"\n' in text
        assert len(text.encode()) < 2_000
    setting.config.write_text(setting.config.read_text() + " ")
    async with proxy(setting, modern=modern, greet=False) as client:
        text = await instructions(client, modern=modern)
        assert "\n- one: Numbers and letters\n- two\n" in text, "after an edit by hand, again"


async def instructions(client: Client, *, modern: bool) -> str:
    said = await (client.request("server/discover") if modern else client.greet())
    return said["instructions"]
