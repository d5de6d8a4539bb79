"""Servers that are known and not started: what is told of them, and what starts them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from emceepee_stdio.backends.lists import recalled
from emceepee_stdio.session.catalogue import CatalogueStore
from tests.e2e.cli_harness import Home
from tests.e2e.client import (
    WAIT_S,
    Client,
    Setting,
    command,
    proxy,
    received_by_server,
    server,
)
from tests.peers import everything, filesystem, git, memory, plain, time

pytestmark = pytest.mark.real  # which processes run

LISTERS = {
    "list_tools": "tools",
    "list_resources": "resources",
    "list_resource_templates": "resource_templates",
    "list_prompts": "prompts",
}


def running(setting: Setting) -> list[str]:
    """The servers that run in this home, each by its name in its environment."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOME={setting.home}".encode() in environ:
            found += [part[5:].decode() for part in environ if part.startswith(b"NAME=")]
    return sorted(found)


def known(*names: str, start: str = "auto", **fields: Any) -> dict[str, Any]:
    return {name: server(start=start, env={"NAME": name}, **fields) for name in names or ("s",)}


async def listed(client: Client) -> dict[str, Any]:
    """All lists of all servers, and what is said beside them."""
    return {tool: (await client.call(tool, limit=500)).json for tool in LISTERS}


async def learn(setting: Setting) -> dict[str, Any]:
    """A session in which all servers are started and list what they have."""
    async with proxy(setting) as client:
        await client.connected(*setting.servers)
        return await listed(client)


def items(lists: dict[str, Any]) -> dict[str, Any]:
    """What is listed, whoever said so."""
    return {tool: lists[tool][key] for tool, key in LISTERS.items()}


async def phase(client: Client, name: str = "s") -> str:
    servers = (await client.call("list_servers")).json["servers"]
    return next(one["phase"] for one in servers if one["name"] == name)


@pytest.mark.parametrize(("era", "modern"), [("legacy", False), ("modern", True)])
async def test_a_known_server_is_listed_without_being_started_and_started_by_its_first_call(
    tmp_path: Path,
    era: str,
    modern: bool,  # noqa: FBT001 - a parameter
):
    setting = Setting(home=tmp_path, servers=known("s", "other", era=era))
    before = await learn(setting)
    assert all("from_catalogue" not in lists for lists in before.values())
    async with proxy(setting, modern=modern) as client:
        lists = await listed(client)
        assert items(lists) == items(before)
        for told in lists.values():
            assert set(told["from_catalogue"]) == {"s", "other"}
            assert "servers_that_failed" not in told
        (line,) = [
            one for one in (await client.call("list_servers")).json["servers"] if one["name"] == "s"
        ]
        assert line["phase"] == "idle"
        assert line["counts"]["tools"] == len(
            [tool for tool in items(before)["list_tools"] if tool["server"] == "s"]
        )
        assert line["from_catalogue"].endswith("Z")
        status = {one["name"]: one for one in (await client.status())["servers"]}
        assert status["s"]["from_catalogue"].endswith("Z")
        assert running(setting) == []

        answer = await client.execute("echo", args={"message": "hello"})
        assert (answer.text, answer.events) == ("hello", [])
        assert running(setting) == ["s"]
        assert await phase(client) == "connected"
        lists = await listed(client)
        assert items(lists) == items(before)
        assert set(lists["list_tools"]["from_catalogue"]) == {"other"}
        assert running(setting) == ["s"]
        await client.quiet()


async def test_a_resource_or_a_prompt_starts_its_server_too(tmp_path: Path):
    setting = Setting(home=tmp_path, servers=known("s"))
    lists = await learn(setting)
    uri = lists["list_resources"]["resources"][0]["uri"]
    async with proxy(setting) as client:
        assert (await client.request("resources/read", {"uri": uri}))["contents"][0]["uri"] == uri
        assert running(setting) == ["s"]
    async with proxy(setting) as client:
        prompt = lists["list_prompts"]["prompts"][0]
        arguments = {one["name"]: "x" for one in prompt.get("arguments", [])}
        answer = await client.call(
            "get_prompt", server="s", name=prompt["name"], arguments=arguments
        )
        assert not answer.is_error, answer


async def test_the_only_server_with_a_tool_is_found_without_starting_any_other(tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("hammer")
    setting = Setting(home=tmp_path, servers=known("s", "t"))
    setting.servers["t"] = server("--toolbox", str(toolbox), start="auto", env={"NAME": "t"})
    await learn(setting)
    async with proxy(setting) as client:
        assert (await client.call("execute_tool", tool="hammer")).text == "hammer"
        assert running(setting) == ["t"]
        unknown = await client.call("execute_tool", tool="anvil")
        assert "No server has a tool 'anvil'" in unknown.text
        assert running(setting) == ["t"]


async def test_a_client_that_asked_for_progress_is_told_that_a_server_is_started(tmp_path: Path):
    setting = Setting(home=tmp_path, servers=known("s"))
    await learn(setting)
    async with proxy(setting) as client:
        first = await client.begin_call(
            "execute_tool", token=7, server="s", tool="progress", args={"steps": 3}
        )
        await first.answer()
        assert first.progress[0]["message"] == "starting s"
        values = [told["progress"] for told in first.progress]
        assert values == sorted(set(values)), "progress grows"
        again = await client.begin_call(
            "execute_tool", token=8, server="s", tool="progress", args={"steps": 3}
        )
        await again.answer()
        assert "starting" not in str(again.progress)


async def test_a_first_call_that_takes_longer_than_it_may_becomes_a_task(tmp_path: Path):
    setting = Setting(home=tmp_path, servers=known("s"))
    await learn(setting)
    async with proxy(setting) as client:
        answer = await client.execute("echo", args={"message": "late"}, timeout_ms=0)
        result = await client.call("get_task_result", task_id=answer.task, timeout_ms=20_000)
        assert result.text == "late"


@pytest.mark.parametrize("start", ["auto", "of version 1"])
async def test_what_is_not_known_yet_starts_as_its_entry_says(tmp_path: Path, start: str):
    fields = {"lazy": True} if start == "of version 1" else {"start": start}
    setting = Setting(home=tmp_path, servers={"s": server(env={"NAME": "s"}, **fields)})
    async with proxy(setting) as client:
        if start == "auto":
            await client.connected()
        else:
            assert await phase(client) == "idle"
            assert running(setting) == []
            told = (await client.call("list_tools")).json
            assert "from_catalogue" not in told
            assert running(setting) == ["s"]


@pytest.mark.parametrize("start", ["eager", "auto"])
async def test_the_general_setting_holds_for_servers_that_say_nothing(tmp_path: Path, start: str):
    setting = Setting(
        home=tmp_path,
        servers={"s": server(env={"NAME": "s"}), **known("own", start="auto")},
        more={"start": start},
    )
    await learn(setting)
    async with proxy(setting) as client:
        if start == "eager":
            await client.connected("s")
        assert await phase(client, "own") == "idle"
        assert running(setting) == (["s"] if start == "eager" else [])


async def test_a_tool_that_is_gone_is_told_with_the_time_until_which_it_was_there(tmp_path: Path):
    toolbox, log = tmp_path / "toolbox", tmp_path / "log"
    toolbox.write_text("hammer saw")
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto", log=log)},
    )
    await learn(setting)
    toolbox.write_text("hammer drill")
    async with proxy(setting) as client:
        told = (await client.call("list_tools", tool="saw|drill")).json
        assert [tool["name"] for tool in told["tools"]] == ["saw"]
        refused = await client.execute("saw")
        assert refused.is_error
        until = told["from_catalogue"]["s"]
        assert f"it had this tool until {until}; its list now: " in refused.text
        assert "[tool_not_found]" in refused.text
        called = [one for one in received_by_server(log) if "tools/call" in json.dumps(one)]
        assert called == [], "the server was not troubled with it"
        told = (await client.call("list_tools", tool="saw|drill")).json
        assert [tool["name"] for tool in told["tools"]] == ["drill"]
        assert "from_catalogue" not in told
        await client.until_event("tools_changed")
        again = await client.execute("saw")
        assert f"it had this tool until {until}" in again.text


async def test_a_catalogue_that_is_wrong_is_corrected_by_one_use(tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("saw")
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto", env={"NAME": "s"})},
        more={"policy": {"pin": "off"}},
    )
    await learn(setting)
    toolbox.write_text("drill")
    async with proxy(setting) as client:
        assert (await client.execute("echo", args={"message": "x"})).text == "x"
        await client.until_event("notification", method="notifications/tools/list_changed")
    async with proxy(setting) as client:
        told = (await client.call("list_tools", tool="saw|drill")).json
        assert [tool["name"] for tool in told["tools"]] == ["drill"]
        assert set(told["from_catalogue"]) == {"s"}
        assert running(setting) == []


async def test_a_server_whose_tools_are_others_at_each_start_is_started_with_the_session(
    tmp_path: Path,
):
    toolbox = tmp_path / "toolbox"
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto", env={"NAME": "s"})},
        more={"policy": {"pin": "off"}},
    )
    for name in ("one", "two", "three"):
        toolbox.write_text(name)
        async with proxy(setting) as client:
            assert (await client.execute("echo", args={"message": "x"})).text == "x"
            await listed(client)
    toolbox.write_text("four")
    async with proxy(setting) as client:
        assert await phase(client) == "idle", "two changes may be updates"
        await client.execute("echo", args={"message": "x"})
        await listed(client)
    async with proxy(setting) as client:
        await client.connected()


async def test_a_pinned_difference_is_looked_at_with_the_session(tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("saw")
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto", env={"NAME": "s"})},
    )
    await learn(setting)
    toolbox.write_text("drill")
    async with proxy(setting) as client:
        assert await phase(client) == "idle"
        await client.execute("echo", args={"message": "x"})
        await listed(client)
    async with proxy(setting) as client:
        await client.connected()
        await client.until_event("tools_changed")


async def test_two_entries_that_differ_in_their_variables_alone_both_rest(tmp_path: Path):
    """They are one target, whose pins are those of the first that was seen."""
    argv = [*plain("--era", "legacy"), "--toolbox"]
    script = ["-c", 'exec "$@" "$TOOLBOX"', "sh", *argv]
    setting = Setting(home=tmp_path, servers={})
    for name in ("a", "b"):
        toolbox = tmp_path / name
        toolbox.write_text(f"tool_of_{name}")
        env = {"NAME": name, "TOOLBOX": str(toolbox)}
        setting.servers[name] = command(["sh", *script], env=env, start="auto")
    await learn(setting)
    for _ in range(2):
        async with proxy(setting) as client:
            told = (await client.call("list_tools", tool="tool_of_.*")).json
            assert {tool["name"] for tool in told["tools"]} == {"tool_of_a", "tool_of_b"}
            assert set(told["from_catalogue"]) == {"a", "b"}
            assert running(setting) == []


async def test_a_server_that_lists_too_much_to_be_remembered_is_told_as_such(tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    toolbox.write_text(" ".join(f"{n:05}{'x' * 900}" for n in range(4_700)))
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto", env={"NAME": "s"})},
        more={"policy": {"pin": "off"}},
    )
    async with proxy(setting) as client:
        await client.connected()
        await client.call("list_tools", limit=1)
        with anyio.fail_after(WAIT_S):
            while "not_remembered" not in (told := await client.call("list_servers")).text:
                pass
    assert "over 4 MB" in told.json["servers"][0]["not_remembered"]
    doctor = await Home(setting.home).run("doctor", "s")
    assert "over 4 MB: they are not remembered, and it starts with each session" in doctor.out


async def test_enforced_pins_veil_what_the_catalogue_says(tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("saw")
    setting = Setting(
        home=tmp_path,
        servers={
            "s": server("--toolbox", str(toolbox), start="auto", env={"NAME": "s"}),
        },
        more={"policy": {"pin": "enforce"}},
    )
    await learn(setting)
    toolbox.write_text("saw drill")
    async with proxy(setting) as client:
        told = (await client.call("list_tools", tool="saw|drill")).json
        assert [tool["name"] for tool in told["tools"]] == ["saw"]
        assert set(told["from_catalogue"]) == {"s"}
        assert (await client.execute("saw")).text == "saw"
        refused = await client.execute("drill")
        assert "[needs_approval]" in refused.text
    setting.servers["s"]["start"] = "lazy"
    async with proxy(setting) as client:
        told = (await client.call("list_tools", tool="saw|drill")).json
        assert [tool["name"] for tool in told["tools"]] == ["saw"]
        assert told["not_shown"].keys() == {"s"}


async def test_rules_hold_for_what_the_catalogue_says_and_what_it_starts(tmp_path: Path):
    toolbox, log = tmp_path / "toolbox", tmp_path / "log"
    toolbox.write_text("saw drill")
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto", log=log)},
    )
    await learn(setting)
    setting.servers["s"]["tools"] = {"drill": "off"}
    toolbox.write_text("drill")
    async with proxy(setting) as client:
        told = (await client.call("list_tools", tool="saw|drill")).json
        assert [tool["name"] for tool in told["tools"]] == ["saw"]
        assert "[policy_denied]" in (await client.execute("drill")).text
        gone = await client.execute("saw")
        assert "it had this tool until" in gone.text
        assert "drill" not in gone.text
    assert not [one for one in received_by_server(log) if "tools/call" in json.dumps(one)]


def _files(setting: Setting) -> list[Path]:
    return sorted((setting.home / "state" / "catalogue").glob("[!g]*.json"))


def _corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _nonsense(path: Path) -> None:
    path.write_text('{"identity": ["what"], "lists": 7}')


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [_corrupt, _nonsense, _pipe])
async def test_a_catalogue_that_cannot_be_believed_costs_a_start_and_is_written_anew(
    tmp_path: Path, spoil: Callable[[Path], None]
):
    setting = Setting(home=tmp_path, servers=known("s"))
    before = await learn(setting)
    (path,) = _files(setting)
    spoil(path)
    assert items(await learn(setting)) == items(before)
    async with proxy(setting) as client:
        assert set((await client.call("list_tools")).json["from_catalogue"]) == {"s"}
        assert running(setting) == []


async def test_a_directory_that_cannot_be_written_costs_starts_and_one_line(tmp_path: Path):
    setting = Setting(home=tmp_path, servers=known("s"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "catalogue").write_text("a file in its place")
    before = await learn(setting)
    assert items(await learn(setting)) == items(before)
    lines = [one for one in setting.journal() if one["event"] == "catalogue_unwritable"]
    assert len(lines) == 2, "one in each session"


class Shared(Setting):
    """A session of a person who has others: what is remembered is in the first one's home."""

    first: Setting

    @classmethod
    def beside(cls, first: Setting, number: int) -> "Shared":
        home = first.home / f"session-{number}"
        shared = cls(home=home, servers=first.servers, more=first.more)
        shared.first = first
        return shared

    def environ(self) -> dict[str, str]:
        state = self.first.environ()["EMCEEPEE_STATE_DIR"]
        return super().environ() | {"EMCEEPEE_STATE_DIR": state}


async def _list_all(setting: Setting) -> None:
    """A session that lists everything, whether its servers are known by then or not."""
    async with proxy(setting) as client:
        with anyio.fail_after(WAIT_S):
            while any("servers_that_failed" in told for told in (await listed(client)).values()):
                pass


async def test_several_proxies_that_learn_at_once_lose_nothing(tmp_path: Path):
    setting = Setting(home=tmp_path, servers=known("s", "t"))
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(_list_all, Shared.beside(setting, number))
    assert len(_files(setting)) == len(setting.servers)
    async with proxy(setting) as client:
        for told in (await listed(client)).values():
            assert set(told["from_catalogue"]) == {"s", "t"}
        assert running(setting) == []


async def test_ten_sessions_with_eight_known_servers_start_only_the_one_that_is_called(
    tmp_path: Path,
):
    names = [f"server{number}" for number in range(8)]
    setting = Setting(home=tmp_path, servers=known(*names))
    await learn(setting)
    sessions = [Shared.beside(setting, number) for number in range(10)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(proxy(one)) for one in sessions]
        for client in clients:
            told = (await client.call("list_tools", detail="names", limit=1)).json
            assert set(told["from_catalogue"]) == set(names)
        assert [running(one) for one in sessions] == [[]] * 10
        answer = await clients[3].execute("echo", "server5", args={"message": "hello"})
        assert answer.text == "hello"
        assert [running(one) for one in sessions if running(one)] == [["server5"]]


WRITER = """
import sys
from pathlib import Path
from emceepee_stdio.backends.interface import Era, Hello
from emceepee_stdio.backends.lists import Seen
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.session.catalogue import CatalogueStore

hello = Hello(era=Era.LEGACY, protocol_version="1")
tools = [{"name": f"tool{number}", "description": "x" * 500} for number in range(200)]
store = CatalogueStore(Path(sys.argv[1]))
while True:
    store.add("i" * 64, [Seen(kind=kind, items=tools, hello=hello, at="T") for kind in Kind])
    print("written", flush=True)
"""


async def test_a_writer_that_is_killed_leaves_a_whole_file_and_no_lock(tmp_path: Path):
    store = CatalogueStore(tmp_path / "catalogue")
    for number in range(8):
        writer = await anyio.open_process([sys.executable, "-c", WRITER, str(store.directory)])
        assert writer.stdout is not None
        for _ in range(number + 1):
            await writer.stdout.receive()
        await anyio.sleep(number * 0.0007)  # somewhere in the middle of the next one
        writer.send_signal(signal.SIGKILL)
        await writer.aclose()
        record = store.read("i" * 64)
        assert record is not None
        remembered = recalled(record)
        assert remembered is not None
        assert len(remembered.tools) == 200
    await anyio.to_thread.run_sync(lambda: store.add("j" * 64, []))
    assert not list(store.directory.glob(".*")), "what they left is cleared away"


async def test_ls_lists_a_known_server_without_starting_it_and_doctor_looks_anew(tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("saw")
    setting = Setting(
        home=tmp_path,
        servers={"s": server("--toolbox", str(toolbox), start="auto")},
        more={"policy": {"pin": "off"}},
    )
    setting.write()

    async def run(*arguments: str) -> Any:
        done = await anyio.run_process(
            [sys.executable, "-m", "emceepee_stdio", *arguments, "--json"],
            env=setting.environ(),
            cwd=tmp_path,
            check=False,
        )
        return json.loads(done.stdout)

    def names(told: Any) -> list[str]:
        return [tool["name"] for tool in told["servers"][0]["tools"]]

    first = await run("ls")
    assert ("saw" in names(first), "from_catalogue" in first["servers"][0]) == (True, False)
    toolbox.write_text("drill")
    known_by = await run("ls")
    assert "from_catalogue" in known_by["servers"][0]
    assert names(known_by) == names(first)
    assert (await run("doctor", "s"))["overall_status"] == "ok"
    anew = await run("ls")
    assert "from_catalogue" in anew["servers"][0]
    assert "drill" in names(anew)


async def test_exposed_tools_of_a_known_server_are_listed_without_starting_it(tmp_path: Path):
    setting = Setting(
        home=tmp_path, servers=known("s", expose=["echo"]), fixed={"exposed_settle_s": 0.02}
    )
    await learn(setting)
    (greeting,) = (tmp_path / "state" / "catalogue").glob("greeting-*.json")
    greeting.unlink()
    async with proxy(setting) as client:
        client.exposes = True
        listed_now: list[str] = []
        with anyio.fail_after(WAIT_S):
            while "s__echo" not in listed_now:
                tools = (await client.request("tools/list"))["tools"]
                listed_now = [tool["name"] for tool in tools]
        assert running(setting) == []
        result = await client.request(
            "tools/call", {"name": "s__echo", "arguments": {"message": "hello"}}
        )
        assert result["content"][0]["text"] == "hello"
        assert running(setting) == ["s"]


def _third_parties(work: Path) -> dict[str, Any]:
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / "file.txt").write_text("some words")
    return {
        "everything": command(everything()),
        "filesystem": command(filesystem(work)),
        "memory": command(memory(), env={"MEMORY_FILE_PATH": str(work / "memory.json")}),
        "time": command(time()),
        "git": command(git(work)),
    }


_RESULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "everything": ("echo", {"message": "hello"}),
    "filesystem": ("read_text_file", {"path": "WORK/file.txt"}),
    "memory": ("read_graph", {}),
    "time": (
        "convert_time",
        {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
    ),
    "git": ("git_status", {"repo_path": "WORK"}),
}


@pytest.mark.slow
async def test_servers_of_others_are_the_same_known_started_stopped_and_started_again(
    tmp_path: Path,
):
    work = tmp_path / "work"
    setting = Setting(
        home=tmp_path / "home",
        servers=_third_parties(work),
        more={"start": "auto", "idle_stop_ms": 200},
    )

    async def results(client: Client) -> dict[str, str]:
        return {
            name: (
                await client.execute(
                    tool,
                    name,
                    args={key: text.replace("WORK", str(work)) for key, text in args.items()},
                )
            ).text.partition("day_of_week")[0]
            for name, (tool, args) in _RESULTS.items()
        }

    async def until_all_idle(client: Client) -> None:
        with anyio.fail_after(60):
            while True:
                servers = (await client.call("list_servers")).json["servers"]
                if {one["phase"] for one in servers} == {"idle"}:
                    return
                await anyio.sleep(0.1)

    async with proxy(setting) as client:
        first = await results(client)
        await until_all_idle(client)
        before = await listed(client)
        assert set(before["list_tools"]["from_catalogue"]) == set(setting.servers)
        assert await results(client) == first
        await until_all_idle(client)
        assert items(await listed(client)) == items(before)
    async with proxy(setting) as client:
        assert items(await listed(client)) == items(before)
        assert await results(client) == first
        await client.quiet()
        kinds = {event["type"] for event in client.events} - {"notification"}
        assert kinds == set()


async def test_doctor_and_status_propose_auto_where_proxies_run_the_same_servers(tmp_path: Path):
    servers = {**known("s", start="eager"), "t": server("--paged", start="eager")}
    setting = Setting(home=tmp_path, servers=servers)
    setting.write()

    async def run(*arguments: str) -> str:
        argv = [sys.executable, "-m", "emceepee_stdio", *arguments]
        done = await anyio.run_process(argv, env=setting.environ(), cwd=tmp_path, check=False)
        return done.stdout.decode()

    async def proposed() -> dict[str, Any] | None:
        checks = json.loads(await run("doctor", "--json"))["checks"]
        found = [one for one in checks if one["id"] == "environment.shared_servers"]
        return found[0]["details"] if found else None

    def all_told() -> bool:
        files = (tmp_path / "state" / "running").glob("*.json")
        told = [server for file in files for server in json.loads(file.read_bytes())["servers"]]
        return len([server for server in told if server["pid"]]) == 4

    async with proxy(Shared.beside(setting, 1)) as one, proxy(Shared.beside(setting, 2)) as other:
        await one.connected("s", "t")
        await other.connected("s", "t")
        with anyio.fail_after(WAIT_S):
            while not all_told():
                await anyio.sleep(0.05)
        found = await proposed()
        assert found is not None
        assert (found["proxies"], found["servers"], found["running"]) == (2, 2, 4)
        assert found["memory_bytes"] > 4 << 20
        assert "2 proxies run the same 2 servers, 4 times" in " ".join(
            (await run("status")).split()
        )
    for entry in setting.servers.values():
        entry["start"] = "auto"
    async with proxy(Shared.beside(setting, 1)) as one, proxy(Shared.beside(setting, 2)) as other:
        for client in (one, other):
            for name in setting.servers:
                await client.execute("echo", name, args={"message": "x"})
        assert await proposed() is None
