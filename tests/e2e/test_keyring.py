"""Secrets that the configuration refers to in the keyring, through a whole proxy.

The package keyring is real; its backend is one of `servers/keyring_backends.py`.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import WAIT_S, Client, command, proxy, server, until
from tests.e2e.http_harness import mcp_server
from tests.e2e.keyring_harness import KeyringHome

# None of them looks like a secret: only that it comes from the keyring says so.
SECRET = "quiet river bank"
OTHER = "amber lantern hill"
ENTRY = {"SETTING": "${keyring:s.one}"}

LOUD = """
import json, os, sys
os.write(2, (os.environ["SETTING"] + json.dumps(dict(os.environ)) + "\\n").encode())
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        error = {"code": -32603, "message": os.environ["SETTING"]}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
"""


def whole(answer: Any) -> str:
    return json.dumps(answer.result, ensure_ascii=False)


async def seen_by(client: Client, name: str) -> dict[str, Any]:
    """What a server has in its environment."""
    answer = await client.execute("env", name, args={"show": ["SETTING"]})
    return json.loads(answer.text)


async def phase(client: Client, name: str, wanted: str) -> dict[str, Any]:
    with anyio.fail_after(WAIT_S):
        while True:
            listed = (await client.call("list_servers", name=name)).json["servers"][0]
            if listed["phase"] == wanted:
                return listed
            await client.call("await_activity", timeout_ms=200)


def command_lines() -> str:
    """Those of every process on this machine that can be read."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found.append((entry / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(found)


async def test_a_server_is_given_its_secret_and_nobody_else_is(tmp_path: Path):
    home = KeyringHome(tmp_path / "home")
    home.hold(**{"s.one": SECRET, "s.two": OTHER})
    servers = {
        "s": server(env=ENTRY),
        "other": server(env={"SETTING": "${keyring:s.two}"}),
        "plain": server(),
        "loud": command([sys.executable, "-c", LOUD], env=ENTRY),
    }
    made = home.proxy(servers)
    made.more |= {"logging": {"level": "debug"}, "restart": {"attempts": 0}}
    async with proxy(made) as client:
        await client.connected("s", "other", "plain")
        assert (await seen_by(client, "s"))["values"] == {"SETTING": SECRET}
        assert (await seen_by(client, "other"))["values"] == {"SETTING": OTHER}
        assert "SETTING" not in (await seen_by(client, "plain"))["names"]
        said = [whole(await client.execute("echo", "loud", args={"message": "x"}))]
        assert "server_failed" in said[0]
        said += [whole(await client.call("list_servers"))]
        said += [whole(await client.call("list_servers", name=name)) for name in servers]
        said += [whole(await client.call("get_logs", limit=500)), command_lines()]
        await client.drain()
        said += [json.dumps(client.events), json.dumps(await client.status())]
    said += [path.read_text() for path in (home.path / "logs").glob("*.jsonl")]
    said += [client.stderr.decode()]
    for words in (("config", "show"), ("config", "show", "--json"), ("doctor", "--json")):
        ran = await home.run(*words)
        said += [ran.out, ran.err]
    assert [text for text in said if SECRET in text or OTHER in text] == []


async def test_a_url_its_headers_and_its_query_are_filled_in(tmp_path: Path):
    home = KeyringHome(tmp_path / "home")
    home.hold(one="quiet-river-bank", two="amber-lantern-hill")
    async with mcp_server(era="legacy") as remote:
        entry = {
            "url": f"{remote.url}?key=${{keyring:two}}",
            "headers": {"X-Key": "Token ${keyring:one}"},
        }
        async with proxy(home.proxy({"s": entry})) as client:
            await client.connected("s")
            listed = whole(await client.call("list_servers", name="s"))
        received = remote.exchanges()[0]
        assert received.headers["x-key"] == "Token quiet-river-bank"
        assert received.path.endswith("?key=amber-lantern-hill")
        assert "quiet-river" not in listed
        assert "amber-lantern" not in listed


async def test_nothing_is_asked_for_a_server_that_nobody_uses_and_one_helper_serves_many(
    tmp_path: Path,
):
    home = KeyringHome(tmp_path / "home")
    names = [f"n{n}" for n in range(6)]
    home.hold(**dict.fromkeys(names, SECRET))
    entries = {name: server(env={"SETTING": f"${{keyring:{name}}}"}) for name in names}
    entries["idle"] = server(env={"SETTING": "${keyring:idle}"}, lazy=True)
    async with proxy(home.proxy(entries)) as client:
        await client.connected(*names)
        assert sorted(home.asked()) == names
    lines = home.file.with_suffix(".asked").read_text().splitlines()
    assert len({line.split()[0] for line in lines}) <= 3, "the first, and those that wait together"


@pytest.mark.parametrize(
    ("backend", "fact", "step"),
    [
        ("FileKeyring", "The keyring has no secret s.one", "emceepee secrets set s.one"),
        ("LockedKeyring", "is locked", "Unlock it"),
        ("keyring.backends.fail.Keyring", "no keyring that can be used", "emceepee config edit"),
        ("keyring.backends.null.Keyring", "no keyring that can be used", "emceepee config edit"),
        ("keyring_backends.NoSuchKeyring", "cannot be used", "--list-backends"),
    ],
)
async def test_a_secret_that_is_not_to_be_had_fails_its_server_with_the_next_step(
    tmp_path: Path, backend: str, fact: str, step: str
):
    home = KeyringHome(tmp_path / "home", backend)
    if backend != "FileKeyring":
        home.hold(**{"s.one": SECRET})
    async with proxy(home.proxy({"s": server(env=ENTRY), "plain": server()})) as client:
        await client.connected("plain")
        listed = json.dumps(await phase(client, "s", "failed"))
        assert fact in listed
        called = await client.execute("echo", "s", args={"message": "x"})
        assert called.is_error
        assert fact in called.text
        assert step in called.text
        home.use("FileKeyring")
    assert SECRET not in listed + called.text + json.dumps(client.events)


async def test_a_secret_that_is_stored_later_is_found_by_the_next_call(tmp_path: Path):
    home = KeyringHome(tmp_path / "home")
    async with proxy(home.proxy({"s": server(env=ENTRY)})) as client:
        await phase(client, "s", "failed")
        home.hold(**{"s.one": SECRET})
        assert (await seen_by(client, "s"))["values"] == {"SETTING": SECRET}
        home.hold(**{"s.one": OTHER})
        assert not (await client.call("reconnect_server", name="s")).is_error
        assert (await seen_by(client, "s"))["values"] == {"SETTING": OTHER}


async def test_a_keyring_that_hangs_holds_up_nobody_else_and_is_given_up(tmp_path: Path):
    home = KeyringHome(tmp_path / "home", "HangingKeyring")
    made = home.proxy({"s": server(env=ENTRY), "plain": server()}, keyring_s=1.5)
    async with proxy(made) as client:
        await client.connected("plain")
        assert not (await client.execute("echo", "plain", args={"message": "x"})).is_error
        listed = json.dumps(await phase(client, "s", "failed"))
        assert "did not answer within 1.5 s" in listed
        assert "may be locked" in listed


async def test_a_helper_that_hangs_ends_with_the_proxy(tmp_path: Path):
    home = KeyringHome(tmp_path / "home", "HangingKeyring")
    async with proxy(home.proxy({"s": server(env=ENTRY)}), code=-signal.SIGKILL) as client:
        await until(home.file.with_suffix(".hangs").exists)
        client.process.kill()
        await until(lambda: home.left_over() == [])


async def test_a_keyring_that_is_locked_later_does_not_part_us_from_a_server(tmp_path: Path):
    home = KeyringHome(tmp_path / "home", "LockableKeyring")
    home.hold(**{"s.one": SECRET})
    made = home.proxy({"s": server(env=ENTRY)})
    made.more["restart"] = {"base_ms": 1, "cap_ms": 1}
    async with proxy(made) as client:
        await client.connected("s")
        home.file.with_suffix(".locked").touch()
        await client.execute("crash", "s")
        await client.until_event("server_reconnected")
        assert (await seen_by(client, "s"))["values"] == {"SETTING": SECRET}


async def test_a_server_that_is_connected_again_has_its_secret_looked_up_again(tmp_path: Path):
    home = KeyringHome(tmp_path / "home")
    home.hold(**{"s.one": SECRET})
    async with proxy(home.proxy({"s": server(env=ENTRY)})) as client:
        await client.connected("s")
        for value in (SECRET, OTHER):
            home.hold(**{"s.one": value})
            assert not (await client.call("reconnect_server", name="s")).is_error
            assert (await seen_by(client, "s"))["values"] == {"SETTING": value}
    assert home.asked() == ["s.one"] * 3


async def test_a_secret_that_is_removed_is_not_used_again(tmp_path: Path):
    home = KeyringHome(tmp_path / "home")
    home.hold(**{"s.one": SECRET})
    made = home.proxy({"s": server(env=ENTRY)})
    made.more["restart"] = {"base_ms": 1, "cap_ms": 1, "attempts": 1}
    async with proxy(made) as client:
        await client.connected("s")
        home.file.unlink()
        await client.execute("crash", "s")
        assert "has no secret s.one" in json.dumps(await phase(client, "s", "failed"))


async def test_what_a_model_adds_refers_to_nothing(tmp_path: Path):
    home = KeyringHome(tmp_path / "home")
    home.hold(**{"s.one": SECRET})
    made = home.proxy({})
    made.more["policy"] = {"mode": "allow"}
    entry = server(env=ENTRY)
    async with proxy(made) as client:
        arguments = {key: entry[key] for key in ("command", "args", "env")}
        assert not (await client.call("add_server", name="s", **arguments)).is_error
        assert (await seen_by(client, "s"))["values"] == ENTRY
    assert home.asked() == []
