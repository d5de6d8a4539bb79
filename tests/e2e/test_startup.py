"""The first moments: a client is greeted before all is loaded, and nothing starts too soon."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.raw import (
    INITIALIZE,
    MODERN,
    PROXY,
    ROOT,
    WAIT_S,
    Message,
    Proxy,
    entry,
    proxy,
    surroundings,
    until,
)
from tests.peers import plain

pytestmark = pytest.mark.fresh

HEAVY = {
    *("anyio", "asyncio", "concurrent", "httpx2", "importlib.metadata", "keyring", "logging"),
    *("mcp", "msgspec", "platformdirs", "regex", "rich", "subprocess", "threading", "tomlkit"),
    *("pathlib", "typer", "ulid", "uvloop"),
}
GREETING = {"emceepee_stdio"} | {
    f"emceepee_stdio.{name}"
    for name in (
        *("front", "front.hello", "front.protocol", "greeting", "json_values", "versions"),
        *("storage", "storage.private_file"),
    )
}

# Loaded by Python itself at its start. GATE holds up the import of whatever is not of the greeting
# until a file is there; STRAY writes where only the wire should.
HOOK = """
import os, sys, time

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("HOOK_AT"):
            {action}
        return None

sys.meta_path.insert(0, Hook())
"""
GATE = """
            open(os.environ["HOOK_REACHED"], "w").close()
            while not os.path.exists(os.environ["HOOK_OPEN"]):
                time.sleep(0.005)
"""
STRAY = """
            print("a stray print", flush=True)
            os.write(1, b"stray bytes\\n")
            sys.__stdout__.write("a stray line\\n")
            assert sys.stdin.read() == ""
            open(os.environ["HOOK_REACHED"], "w").close()
"""


def hooked(tmp_path: Path, at: str, action: str) -> dict[str, str]:
    """The environment in which `action` happens when the proxy is about to import `at`."""
    (tmp_path / "sitecustomize.py").write_text(HOOK.format(action=action.strip()))
    return {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "HOOK_AT": at,
        "HOOK_REACHED": str(tmp_path / "reached"),
        "HOOK_OPEN": str(tmp_path / "open"),
    }


def lines(*messages: Message) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in messages)


def modern(request_id: int, method: str) -> Message:
    return {"id": request_id, "method": method, "params": {"_meta": MODERN}}


OPENING = (
    {"id": 1, "method": "initialize", "params": INITIALIZE},
    {"id": 2, "method": "ping"},
    modern(3, "server/discover"),
)
INITIALIZED = {"method": "notifications/initialized"}


def run(
    tmp_path: Path,
    stdin: bytes,
    *arguments: str,
    python: Sequence[str] = PROXY,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """A client that says all at once and leaves."""
    return subprocess.run(
        [*python, *arguments],
        input=stdin,
        capture_output=True,
        cwd=tmp_path,
        env=surroundings(tmp_path, **options),
        timeout=WAIT_S,
        check=False,
    )


def imported(stderr: bytes) -> set[str]:
    """The modules in the table that `-X importtime` writes."""
    rows = [line for line in stderr.decode().splitlines() if line.startswith("import time:")]
    return {row.rpartition("|")[2].strip() for row in rows}


# The greeting


def test_the_greeting_loads_only_itself_and_a_little_of_the_standard_library(
    tmp_path: Path,
) -> None:
    timed = (sys.executable, "-X", "importtime", "-m", "emceepee_stdio")
    said = lines(*OPENING, INITIALIZED, {"id": 4, "method": "tools/list"}, modern(5, "tools/list"))
    done = run(tmp_path, said, python=timed)
    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2, 3, 4, 5]
    loaded = imported(done.stderr)
    assert {name for name in loaded if name.startswith("emceepee_stdio")} == GREETING
    assert not {name.partition(".")[0] for name in loaded} & HEAVY
    assert not loaded & HEAVY


def test_serving_loads_nothing_that_only_a_terminal_needs(tmp_path: Path) -> None:
    timed = (sys.executable, "-X", "importtime", "-m", "emceepee_stdio")
    call = {"name": "list_servers", "arguments": {}}
    said = lines(*OPENING, INITIALIZED, {"id": 4, "method": "tools/call", "params": call})
    done = run(tmp_path, said, "serve", "--policy", "deny", python=timed)
    assert done.returncode == 0
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2, 3, 4]
    loaded = {name.partition(".")[0] for name in imported(done.stderr)}
    assert "anyio" in loaded
    assert not loaded & {"click", "rich", "shellingham", "tomlkit", "typer"}


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        ("--help", False),
        ("install", False),
        ("uninstall codex", False),
        ("config import codex --dry-run", False),
        ("install codex --dry-run", True),
    ],
)
def test_only_a_command_that_writes_toml_loads_its_writer(
    tmp_path: Path, command: str, *, loaded: bool
) -> None:
    file = tmp_path / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_text("[mcp_servers.time]\ncommand = 'uvx'\n")
    timed = (sys.executable, "-X", "importtime", "-m", "emceepee_stdio")
    done = run(tmp_path, b"", *command.split(), python=timed)
    assert done.returncode == 0
    assert ("tomlkit" in imported(done.stderr)) is loaded


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_hello_and_the_tools_are_answered_while_the_rest_is_still_being_loaded(
    tmp_path: Path, era: str
) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    gate = hooked(tmp_path, "anyio", GATE)
    meta = {"_meta": MODERN} if era == "modern" else {}
    with proxy(tmp_path, servers=servers, env=gate) as client:
        if era == "legacy":
            client.greet()
        else:
            client.request("server/discover", meta)
            client.ask("subscriptions/listen", {"notifications": {}, **meta})
            client.read_until(lambda: "acknowledged" in str(client.said), "the stream")
        assert len(client.request("tools/list", meta)["tools"]) > 10
        until((tmp_path / "reached").exists, "the rest to be loaded")
        call = client.ask("tools/call", {"name": "list_servers", "arguments": {}, **meta})
        assert client.said[-1]["id"] != call
        assert not client.received("server", "start")
        (tmp_path / "open").touch()
        assert "server" in json.dumps(client.answer(call))
        until(lambda: client.received("server", "start"), "the server to start")


def test_a_stray_print_or_read_cannot_reach_the_wire(tmp_path: Path) -> None:
    stray = hooked(tmp_path, "emceepee_stdio.session.runtime", STRAY)
    with proxy(tmp_path, env=stray) as client:
        client.greet()
        assert client.phases() == {}
        assert (tmp_path / "reached").exists()
        client.close_stdin()
        assert client.wait() == 0
        assert all(message["jsonrpc"] == "2.0" for message in client.said)
        for words in ("a stray print", "stray bytes", "a stray line"):
            assert words in client.errors()


# When servers are started


def started_servers(client: Proxy) -> list[str]:
    (line,) = [line for line in client.journal() if line["event"] == "registry_shutdown_start"]
    return line["data"]["servers"]


def test_a_client_that_only_looks_starts_nothing(tmp_path: Path) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    done = run(tmp_path, lines(*OPENING), servers=servers)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1, 2, 3]
    assert (done.returncode, done.stderr) == (0, b"")
    assert not (tmp_path / "received-server.jsonl").exists()
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize(
    "noise", [b"no JSON\n", b'{"jsonrpc":"2.0","method":"notifications/x"}\n', b'["batch"]\n']
)
def test_noise_is_no_sign_that_the_client_stays(tmp_path: Path, noise: bytes) -> None:
    """Whatever is not for the greeting loads the rest; that alone starts no server."""
    servers = {"server": entry(plain(), tmp_path, "server")}
    with proxy(tmp_path, servers=servers) as client:
        client.answer(client.ask("initialize", INITIALIZE))
        client.write(noise)
        for _ in range(3):
            client.request("ping")
            client.request("server/discover", {"_meta": MODERN})
        client.close_stdin()
        assert client.wait() == 0
        assert started_servers(client) == []
        assert not client.received("server", "start")


@pytest.mark.parametrize("sign", ["initialized", "legacy tools/list", "modern tools/list"])
def test_a_client_that_stays_finds_its_servers_started(tmp_path: Path, sign: str) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    with proxy(tmp_path, servers=servers) as client:
        if sign == "initialized":
            client.greet()
        elif sign == "legacy tools/list":
            client.answer(client.ask("initialize", INITIALIZE))
            client.request("tools/list")
        else:
            client.request("tools/list", {"_meta": MODERN})
        until(lambda: client.received("server", "start"), "the server to start")
        client.meet_family()
        client.close_stdin()
        assert client.wait() == 0
        assert started_servers(client) == ["server"]
        until(lambda: not client.left_over(), "the server to end")


def test_a_lazy_server_and_a_switched_off_one_are_not_started(tmp_path: Path) -> None:
    servers = {
        "lazy": entry(plain(), tmp_path, "lazy", lazy=True),
        "off": entry(plain(), tmp_path, "off", disabled=True),
        "eager": entry(plain(), tmp_path, "eager"),
    }
    with proxy(tmp_path, servers=servers) as client:
        client.greet()
        client.run("eager", "echo", message="x")
        assert client.phases() == {"lazy": "idle", "off": "disabled", "eager": "connected"}
        assert not client.received("lazy", "start")
        client.run("lazy", "echo", message="x")
        assert len(client.received("lazy", "start")) == 1
        assert not client.received("off", "start")


# Signals before there is anything to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_greeting_ends_it_quietly(tmp_path: Path, number: int) -> None:
    with proxy(tmp_path) as client:
        client.answer(client.ask("initialize", INITIALIZE))
        client.process.send_signal(number)
        assert client.wait() == 0
        assert client.errors() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("at", ["anyio", "emceepee_stdio.session.runtime"])
def test_a_signal_while_the_rest_is_loaded_ends_it_quietly(
    tmp_path: Path, at: str, number: int
) -> None:
    with proxy(tmp_path, env=hooked(tmp_path, at, GATE)) as client:
        client.greet()
        until((tmp_path / "reached").exists, "the rest to be loaded")
        client.process.send_signal(number)
        assert client.wait() == 0
        assert client.errors() == ""


# The command line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nope"], "unrecognized arguments: --nope"),
        (["--server", "nothing"], "expected NAME=COMMAND"),
        (["--config"], "expected one argument"),
    ],
)
@pytest.mark.parametrize("said", [b"", lines(*OPENING), lines(*OPENING, INITIALIZED)])
def test_a_wrong_command_line_ends_with_usage(
    tmp_path: Path, said: bytes, arguments: list[str], words: str
) -> None:
    done = run(tmp_path, said, "serve", *arguments)
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert "emceepee serve" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_a_client_with_a_wrong_command_line_is_not_left_waiting(tmp_path: Path) -> None:
    with proxy(tmp_path, arguments=["serve", "--nope"]) as client:
        client.greet()
        assert client.wait() == 2
        assert "unrecognized arguments: --nope" in client.errors()


def test_servers_of_the_command_line_are_served(tmp_path: Path) -> None:
    command = " ".join(plain())
    with proxy(tmp_path, arguments=["serve", "--server", f"given={command}"]) as client:
        client.greet()
        assert client.run("given", "echo", message="x") == "x"


def test_a_broken_configuration_costs_its_servers_and_not_the_proxy(tmp_path: Path) -> None:
    with proxy(tmp_path) as client:
        (tmp_path / "config.json").write_text("{ this is no JSON")
        client.greet()
        assert client.phases() == {}
        client.close_stdin()
        assert client.wait() == 0
        assert "config_invalid" in client.errors()


def test_the_installed_command_serves(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("emceepee")
    done = run(tmp_path, lines(*OPENING, INITIALIZED), python=[str(command)])
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)


# Unusual descriptors


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_started_without_a_descriptor_it_ends_quietly(tmp_path: Path, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *PROXY]
    done = run(tmp_path, lines(*OPENING, INITIALIZED), python=shell)
    assert (done.returncode, done.stderr) == (0, b"")
    expected = 3 if closed == "2>&-" else 0
    assert len(done.stdout.splitlines()) == expected


def test_without_a_stderr_no_warning_takes_its_way_onto_the_wire(tmp_path: Path) -> None:
    """Clients on Node use sockets: what is written to such a stdin would reach the client."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", *PROXY],
            stdin=theirs,
            stdout=theirs,
            cwd=tmp_path,
            env=surroundings(tmp_path),
        )
        theirs.close()
        ours.sendall(lines(*OPENING, INITIALIZED) + b"no JSON\n" + lines({"id": 4, "method": "x"}))
        ours.shutdown(socket.SHUT_WR)
        with ours.makefile("rb") as stream:
            said = [json.loads(line) for line in stream]
        assert process.wait(WAIT_S) == 0
    assert [message.get("id") for message in said] == [1, 2, 3, None, 4]
    (journal,) = (tmp_path / "journal").glob("emceepee-*.jsonl")
    assert "client_noise" in journal.read_text()


@pytest.mark.parametrize("said", [OPENING, (*OPENING, INITIALIZED, {"id": 4, "method": "x"})])
def test_a_client_that_dies_with_answers_unread_is_a_client_that_has_left(
    tmp_path: Path, said: tuple[Message, ...]
) -> None:
    """On a socket that is an error, no end: reading says that the connection was reset."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            PROXY,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=surroundings(tmp_path),
        )
        theirs.close()
        ours.sendall(lines(*said))
        answers = sum("id" in message for message in said)
        ours.settimeout(WAIT_S)
        until(lambda: ours.recv(1 << 20, socket.MSG_PEEK).count(b"\n") == answers, "the answers")
    assert process.communicate(timeout=WAIT_S) == (None, b"")
    assert process.returncode == 0


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_pipes_that_do_not_block_are_served_as_well(tmp_path: Path) -> None:
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    for fd in (their_in, their_out):
        os.set_blocking(fd, False)
    process = subprocess.Popen(
        PROXY, stdin=their_in, stdout=their_out, cwd=tmp_path, env=surroundings(tmp_path)
    )
    os.close(their_in)
    os.close(their_out)
    with open(our_in, "rb") as stream, open(our_out, "wb", buffering=0) as sink:  # noqa: PTH123
        sink.write(lines(OPENING[0]))
        assert json.loads(stream.readline())["id"] == 1
        until(lambda: state(process.pid) in ("S", "Z"), "it to wait for more")
        # Many answers that nobody reads yet: more than the pipe holds.
        listing = [{"id": n, "method": "tools/list"} for n in range(2, 20)]
        sink.write(lines(*listing))
        sink.close()
        assert [json.loads(line)["id"] for line in stream] == list(range(2, 20))
    assert process.wait(WAIT_S) == 0
