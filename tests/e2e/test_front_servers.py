import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import (
    Answer,
    Client,
    Setting,
    both_backends,
    both_eras,
    command,
    http_server,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.peers import plain, rude

SECRET = "sk-proj-Zq8vN2mXw4LrT6yB1cD3fG5h"


def setting(tmp_path: Path, **servers: Any) -> Setting:
    return Setting(home=tmp_path / "home", servers=servers)


def argv(*options: str) -> dict[str, Any]:
    words = plain(*options)
    return {"command": words[0], "args": words[1:]}


async def phases(client: Client) -> dict[str, str]:
    servers = (await client.call("list_servers")).json["servers"]
    assert len({s["name"] for s in servers}) == len(servers)
    return {s["name"]: s["phase"] for s in servers}


@both_eras
@both_backends
async def test_a_server_is_added_used_and_removed(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    log = tmp_path / "log"
    async with proxy(setting(tmp_path), modern=modern) as client:
        added = await client.call(
            "add_server", name="p", **argv("--era", era), era=era, env={"FIXTURE_LOG": str(log)}
        )
        facts = added.json
        assert facts["phase"] == "connected"
        assert facts["era"] == era
        assert facts["server_info"]["name"] == "plain"
        assert facts["instructions"] == "A fixture server called plain."
        assert facts["counts"]["tools"] > 20
        assert facts["counts"]["resources"] == 2
        assert facts["keep_with"].startswith("emceepee config add p ")
        assert not added.events, "what the tool itself did is told by its answer"
        assert (await client.execute("echo", "p", args={"message": "hi"})).text == "hi"
        task = (await client.execute("slow", "p", args={"seconds": 60}, timeout_ms=0)).task
        asking = await client.execute("ask", "p")
        flight = await client.begin_execute("slow", "p", args={"seconds": 60}, timeout_ms=30_000)
        await until(lambda: len(_slow(log)) == 2)
        removed = (await client.call("remove_server", name="p")).json
        assert removed["removed"] == "p"
        assert sorted(removed["failed_tasks"])[:2] == sorted([task, asking.task])[:2]
        assert removed["rejected_requests"] == asking.questions
        ended = await flight.answer()
        assert ended.is_error or ended.json["proxy_task"]
        assert await phases(client) == {}
        for lost in (task, asking.task):
            assert (await client.call("get_task_result", task_id=lost)).is_error
        gone = await client.execute("echo", "p", args={"message": "hi"})
        assert "[server_not_found]" in gone.text
        await client.quiet()
        expired = [e for e in client.events if e["type"] == "elicitation_expired"]
        assert [e["data"]["reason"] for e in expired] == ["removed"]
        kinds = [e["type"] for e in client.events]
        assert "server_removed" not in kinds
        assert "server_connected" not in kinds
        await until(lambda: received_by_server(log, "eof"))


def _slow(log: Path) -> list[Any]:
    return [m for m in received_by_server(log) if '"slow"' in json.dumps(m["message"])]


@both_eras
async def test_a_server_behind_a_url_is_added(tmp_path: Path, *, modern: bool) -> None:
    async with http_server() as url, proxy(setting(tmp_path), modern=modern) as client:
        added = (await client.call("add_server", name="h", url=url)).json
        assert added["phase"] == "connected"
        assert added["transport"] == "http"
        assert "pid" not in added
        assert (await client.execute("echo", "h", args={"message": "hi"})).text == "hi"
        both = [await client.begin_call("add_server", name="i", url=url) for _ in range(3)]
        names = {(await one.answer()).json["name"] for one in both}
        assert names == {"i"}
        assert await phases(client) == {"h": "connected", "i": "connected"}
        assert (await client.call("remove_server", name="h")).json["removed"] == "h"


async def test_the_line_that_keeps_a_server_turns_no_text_of_a_model_into_a_reference(
    tmp_path: Path,
) -> None:
    wanted = ["${keyring:other.TOKEN}", "${HOME}"]
    async with proxy(setting(tmp_path)) as client, http_server() as url:
        by_url = (await client.call("add_server", name="u", url=f"{url}?page={wanted[0]}")).json
        in_shell: dict[str, Any] = {
            "command": "sh",
            "args": ["-c", 'exec "$@"', wanted[1], *plain()],
        }
        by_command = (await client.call("add_server", name="c", **in_shell)).json
    for line, text in zip((by_url["keep_with"], by_command["keep_with"]), wanted, strict=True):
        assert f"${text}" in line
        assert "${" not in line.replace("$${", "")


async def test_a_configured_url_is_known_by_its_name_from_the_first_call(tmp_path: Path) -> None:
    async with http_server() as url:
        made = setting(tmp_path, h={"url": url})
        async with proxy(made) as client:
            assert (await client.execute("echo", "h", args={"message": "first"})).text == "first"


@both_eras
async def test_the_same_settings_are_the_same_server_and_others_need_a_word(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        first = (await client.call("add_server", name="p", **argv())).json
        same = (await client.call("add_server", name="p", **argv())).json
        assert same["pid"] == first["pid"]
        other = await client.call("add_server", name="p", **argv("--paged"))
        assert "[server_exists]" in other.text
        assert "replace" in other.text
        assert (await client.execute("echo", "p", args={"message": "kept"})).text == "kept"
        replaced = (await client.call("add_server", name="p", **argv("--paged"), replace=True)).json
        assert replaced["pid"] != first["pid"]
        assert await phases(client) == {"p": "connected"}
        await client.quiet()


async def test_many_adds_at_once_make_one_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with proxy(setting(tmp_path)) as client:
        adds = [
            await client.begin_call(
                "add_server",
                name="p",
                **argv(*(["--paged"] if n % 2 else [])),
                env={"FIXTURE_LOG": str(log)},
                replace=True,
            )
            for n in range(4)
        ]
        for one in adds:
            await one.answer()
        [shown] = (await client.call("list_servers")).json["servers"]
        assert shown["phase"] == "connected"
        assert (await client.execute("echo", "p", args={"message": "x"})).text == "x"
        await client.drain()


@both_eras
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"command": "no-such-command-at-all"}, "no-such-command-at-all"),
        ({"command": rude("x")[0], "args": rude("exit-at-once")[1:]}, "license file"),
        ({"command": rude("x")[0], "args": rude("init-error")[1:]}, "database"),
        ({"url": "http://127.0.0.1:1/mcp"}, "refused"),
    ],
    ids=["no-command", "exits", "refuses", "nobody-listens"],
)
async def test_a_server_that_cannot_be_added_is_not_kept(
    tmp_path: Path, wrong: dict[str, Any], said: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        failed = await client.call("add_server", name="w", **wrong)
        assert failed.is_error
        assert said in failed.text
        assert "[server_failed]" in failed.text
        assert await phases(client) == {}
        assert (await client.call("add_server", name="w", **argv())).json["phase"] == "connected"
        await client.quiet()


async def test_a_present_server_that_is_down_is_not_lost_by_adding_it_again(tmp_path: Path) -> None:
    made = setting(tmp_path, r=command(rude("exit-at-once")))
    made.more = {"restart": {"base_ms": 60_000}}
    async with proxy(made) as client:
        await client.until_event("server_reconnecting")
        words = rude("exit-at-once")
        again = await client.call("add_server", name="r", command=words[0], args=words[1:])
        assert again.is_error
        assert await phases(client) == {"r": "reconnecting"}


async def test_a_server_that_takes_long_goes_on_in_the_background(tmp_path: Path) -> None:
    made = setting(tmp_path)
    made.timeouts = {"client_ceiling_ms": 200}
    async with proxy(made) as client:
        words = rude("silent")
        slow = await client.call("add_server", name="h", command=words[0], args=words[1:])
        assert slow.json["phase"] == "connecting"
        assert "in the background" in slow.text
        assert await phases(client) == {"h": "connecting"}
        assert (await client.call("remove_server", name="h")).json["removed"] == "h"
        assert await phases(client) == {}


@both_eras
async def test_names_that_cannot_be(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        wrong: list[dict[str, Any]] = [
            {"name": "emceepee", **argv()},
            {"name": "", **argv()},
            {"name": "x" * 10_000, **argv()},
            {"name": "a\nb", **argv()},
            {"name": "p"},
            {"name": "p", "command": ""},
            {"name": "p", "url": "ftp://example.com"},
            {"name": "p", "url": "no url"},
            {"name": "p", "url": "http://127.0.0.1:1", **argv()},
            {"name": "p", "command": "x\0y"},
        ]
        for arguments in wrong:
            refused = await client.call("add_server", **arguments)
            assert refused.is_error, arguments
            assert "[invalid_arguments]" in refused.text or "[server_failed]" in refused.text
            assert len(refused.text) <= 8_000
        assert await phases(client) == {}
        for tool in ("remove_server", "reconnect_server"):
            missing = await client.call(tool, name="nobody")
            assert "[server_not_found]" in missing.text
        await client.quiet()


@both_eras
async def test_a_server_is_connected_anew_in_another_era(tmp_path: Path, *, modern: bool) -> None:
    log = tmp_path / "log"
    entry = command(plain("--era", "both"), env={"FIXTURE_LOG": str(log)})
    async with proxy(setting(tmp_path, s=entry), modern=modern) as client:
        await client.connected()
        [before] = (await client.call("list_servers", name="s")).json["servers"]
        pids = {before["pid"]}
        for era in ("modern", "modern", "legacy", None):
            more = {} if era is None else {"era": era}
            answer = await client.call("reconnect_server", name="s", **more)
            assert answer.json["phase"] == "connected"
            assert answer.json["era"] == (era or "legacy")
            assert answer.json["pid"] not in pids, "connected anew, not left as it was"
            pids.add(answer.json["pid"])
            assert (await client.execute("echo", args={"message": "x"})).text == "x"
        await client.quiet()


async def test_reconnecting_works_in_every_phase(tmp_path: Path) -> None:
    made = setting(
        tmp_path,
        lazy=server(lazy=True),
        failed={"command": "no-such-command-at-all"},
        down=command(rude("exit-at-once")),
    )
    made.more = {"restart": {"base_ms": 60_000}}
    async with proxy(made) as client:
        await client.until_event("server_restart_failed")
        await client.until_event("server_reconnecting")
        assert await phases(client) == {
            "lazy": "idle",
            "failed": "failed",
            "down": "reconnecting",
        }
        [down] = [
            s for s in (await client.call("list_servers")).json["servers"] if s["name"] == "down"
        ]
        assert down["next_retry_ms"] > 0
        assert "license file" in down["last_error"]
        again = await client.call("reconnect_server", name="lazy", era="legacy")
        assert again.json["phase"] == "connected"
        for name in ("failed", "down"):
            answer = await client.call("reconnect_server", name=name)
            assert answer.is_error
            assert "[server_" in answer.text
        assert (await phases(client))["lazy"] == "connected"


@both_eras
async def test_a_broken_entry_is_listed_as_disabled_and_costs_nobody_else(
    tmp_path: Path, *, modern: bool
) -> None:
    made = setting(tmp_path, s=server(), broken={"command": 7}, unset={"command": "${NOT_SET_X}"})
    made.more = {"policy": {"mode": "auto"}}
    async with proxy(made, modern=modern) as client:
        await client.connected()
        assert await phases(client) == {"s": "connected", "broken": "disabled", "unset": "disabled"}
        listed = (await client.call("list_servers")).json["servers"]
        [unset] = [s for s in listed if s["name"] == "unset"]
        assert "NOT_SET_X" in unset["last_error"]
        assert (await client.call("list_servers", name="unset")).json == {"servers": [unset]}
        for name in ("broken", "unset"):
            answer = await client.execute("echo", name, args={})
            assert f"{name} is broken: mcpServers.{name}" in answer.text
            assert "[server_failed]" in answer.text
        unknown = await client.execute("echo", "nobody", args={})
        assert "There are: broken (broken), s, unset (broken)." in unknown.text
        nowhere = await client.call("execute_tool", tool="nobody_has_it", args={})
        assert "the servers are: s, broken (broken), unset (broken)." in nowhere.text
        added = await client.call("add_server", name="broken", **argv())
        assert "[needs_approval]" in added.text, "a configured name is not for a model to take"
        assert (await phases(client))["broken"] == "disabled"


async def test_servers_are_listed_in_a_line_each_and_one_by_its_name_with_all(
    tmp_path: Path,
) -> None:
    made = setting(tmp_path, s=server(), bad=command(rude("exit-at-once")))
    made.more = {"restart": {"base_ms": 60_000}}
    async with proxy(made) as client:
        await client.connected("s")
        await client.call("list_tools", server="s")
        await client.until_event("server_reconnecting")
        lines = {s["name"]: s for s in (await client.call("list_servers")).json["servers"]}
        assert set(lines["s"]) == {"name", "phase", "counts"}
        assert set(lines["bad"]) == {"name", "phase", "last_error", "next_retry_ms"}
        [whole] = (await client.call("list_servers", name="s")).json["servers"]
        assert lines["s"].items() <= whole.items()
        assert {"transport", "target", "pid", "era", "uptime_ms", "capabilities"} <= set(whole)
        unknown = await client.call("list_servers", name="nobody")
        assert "[server_not_found]" in unknown.text


@pytest.mark.real
async def test_servers_may_be_given_on_the_command_line(tmp_path: Path) -> None:
    words = " ".join(plain())
    made = setting(tmp_path, s={"command": "no-such-command-at-all"})
    arguments = ["--server", f"s={words}", "--server", f"t={words} --paged"]
    async with proxy(made, arguments=arguments) as client:
        await client.connected("s", "t")
        assert (await client.execute("echo", "s", args={"message": "mine"})).text == "mine"


@both_eras
async def test_secrets_of_a_server_are_never_shown(tmp_path: Path, *, modern: bool) -> None:
    words = ["sh", "-c", "echo cannot start >&2; exit 1", "x", "--token", SECRET]
    async with http_server() as url:
        secret_url = url.replace("http://", f"http://user:{SECRET}@") + f"?api_key={SECRET}"
        made = setting(
            tmp_path,
            s=server(env={"API_KEY": SECRET}),
            h={"url": secret_url, "headers": {"Authorization": f"Bearer {SECRET}"}},
            r=command([*words, f"--password={SECRET}"], env={"TOKEN": SECRET}),
            n={"command": f"no-such-{1}", "args": [f"--api-key={SECRET}"]},
            w={"url": f"http://user:{SECRET}@127.0.0.1:1/mcp?token={SECRET}"},
        )
        made.more = {"restart": {"base_ms": 50}}
        async with proxy(made, modern=modern) as client:
            await client.connected("s", "h")
            await client.until_event("server_restart_failed")
            received: list[Answer] = [await client.call("list_servers")]
            for name in made.servers:
                received.append(await client.call("list_servers", name=name))
                received.append(await client.execute("echo", name, args={"message": "x"}))
                received.append(await client.call("reconnect_server", name=name))
            received.append(
                await client.call(
                    "add_server",
                    name="a",
                    command="sh",
                    args=["-c", 'exec "$0" "$1"', *plain(), "--token", SECRET],
                    env={"API_KEY": SECRET},
                )
            )
            assert received[-1].json["phase"] == "connected"
            received.append(
                await client.call(
                    "add_server", name="b", command="no-such", args=["--token", SECRET]
                )
            )
            received.append(
                await client.call(
                    "add_server", name="c", url=secret_url, headers={"X-Api-Key": SECRET}
                )
            )
            received.append(
                await client.call(
                    "add_server",
                    name="d",
                    command=words[0],
                    args=[*words[1:], f"--token={SECRET}"],
                )
            )
            received.append(await client.call("list_servers"))
            await client.drain()
        for answer in received:
            assert SECRET not in json.dumps(answer.result), answer
        assert SECRET not in json.dumps(client.events)
        assert SECRET.encode() not in client.stderr
        assert SECRET not in json.dumps(made.journal())


async def test_every_configured_server_connects_in_parallel_behind_our_back(tmp_path: Path) -> None:
    made = setting(tmp_path, **{f"s{n}": server() for n in range(4)}, hung=command(rude("silent")))
    async with proxy(made) as client:
        await client.connected(*(f"s{n}" for n in range(4)))
        assert (await phases(client))["hung"] == "connecting"
        await client.drain()
        told = [e["server"] for e in client.events if e["type"] == "server_connected"]
        assert len(set(told)) == len(told), "told once, and only of those that were named before"


@both_eras
async def test_what_comes_up_by_itself_at_the_start_is_told_only_of_who_was_named_as_missing(
    tmp_path: Path, *, modern: bool
) -> None:
    gate = tmp_path / "gate"
    late = command(
        ["sh", "-c", f'while [ ! -e "{gate}" ]; do sleep 0.01; done; exec "$0" "$@"', *plain()]
    )
    failing = command(["no-such-command-at-all"])
    made = setting(tmp_path, s=server(), late=late, failing=failing)
    async with proxy(made, modern=modern) as client:
        assert (await client.execute("echo", "s", args={"message": "x"})).text == "x"
        await client.until_event("server_restart_failed")
        assert {event["server"] for event in client.events} == {"failing"}
        listed = await client.call("list_tools", server="s|late", detail="names")
        assert "late is still connecting" in listed.text
        gate.touch()
        came = await client.until_event("server_connected")
        assert came["server"] == "late"
        await client.drain()
        kinds = [event["type"] for event in client.events if event["server"] == "s"]
        assert kinds == []


async def test_configured_servers_over_the_limit_are_listed_with_the_reason(tmp_path: Path) -> None:
    one, two = command(plain()), command(plain())
    limited = Setting(home=tmp_path / "home", servers={"a": one, "b": two}, limits={"servers": 1})
    async with proxy(limited) as client:
        while set(await phases(client)) != {"a", "b"}:
            await client.call("await_activity", timeout_ms=100)
        assert (await phases(client))["b"] == "disabled"
        refused = await client.call("execute_tool", server="b", tool="echo")
        assert "which is the limit" in refused.text


@pytest.mark.parametrize("words", [["emceepee"], ["python3", "-m", "emceepee_stdio", "serve"]])
async def test_emceepee_inside_emceepee_is_refused(tmp_path: Path, words: list[str]) -> None:
    async with proxy(setting(tmp_path)) as client:
        refused = await client.call("add_server", name="me", command=words[0], args=words[1:])
        assert "emceepee inside emceepee" in refused.text
        assert await phases(client) == {}


async def test_a_wrong_choice_is_answered_with_the_right_ones(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        refused = await client.call("add_server", name="x", command="y", era="ancient")
        assert "expected is one of auto, legacy, modern" in refused.text
