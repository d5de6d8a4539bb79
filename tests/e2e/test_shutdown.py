"""However the proxy ends, and whatever it is doing: in time, in order, and nothing is left."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.wire.orphans import kill_marked
from tests.e2e.clients.raw import ROOT, WAIT_S, Message, Proxy, entry, own_first, proxy, until
from tests.e2e.clients.raw import surroundings as proxy_environment
from tests.peers import node_modules, plain, rude
from tests.proxy_entry import proxy_command

NEVER = {"restart": {"base_ms": 3_600_000, "cap_ms": 3_600_000}}
BY_SIGNAL = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGHUP": signal.SIGHUP}

# The ways to end: each does it and says with which code the process has to exit.


def stdin_ends(client: Proxy) -> int:
    client.close_stdin()
    return 0


def client_dies(client: Proxy) -> int:
    client.close_stdin()
    client.close_stdout()
    return 0


def stdout_is_closed(client: Proxy) -> int:
    client.close_stdout()
    client.ask("ping")
    return 0


def is_killed(client: Proxy) -> int:
    client.process.kill()
    return -signal.SIGKILL


def _signalled(number: signal.Signals) -> Callable[[Proxy], int]:
    def end(client: Proxy) -> int:
        client.process.send_signal(number)
        return 0

    return end


WAYS: dict[str, Callable[[Proxy], int]] = {
    "stdin ends": stdin_ends,
    "client dies": client_dies,
    "stdout is closed": stdout_is_closed,
    "is killed": is_killed,
    **{name: _signalled(number) for name, number in BY_SIGNAL.items()},
}

# What it may be doing: each brings a proxy whose server is `server` to that point.


def idle(client: Proxy) -> None:
    connect(client, "server")


def calling(client: Proxy) -> None:
    connect(client, "server")
    client.begin("execute_tool", server="server", tool="slow", args={"seconds": 300})
    until(lambda: client.messages("server", "tools/call"), "the call to arrive")


def connecting(client: Proxy) -> None:
    client.greet()
    until(lambda: client.messages("server", "initialize"), "the handshake to arrive")
    assert client.phases() == {"server": "connecting"}


def restarting(client: Proxy) -> None:
    connect(client, "server")
    client.meet_family()
    client.answer(client.begin("execute_tool", server="server", tool="crash", args={}))
    assert client.phases() == {"server": "reconnecting"}


def asked(client: Proxy) -> None:
    """A task at work, and another that waits for the answer to a question."""
    connect(client, "server")
    slow = {"server": "server", "tool": "slow", "args": {"seconds": 300}, "timeout_ms": 0}
    client.call("execute_tool", **slow)
    client.call("execute_tool", server="server", tool="ask", args={})
    pending = json.loads(client.call("get_elicitations")["content"][0]["text"])
    assert len(pending["elicitations"]) == 1


STATES: dict[str, tuple[list[str], Callable[[Proxy], None]]] = {
    "idle": (plain(), idle),
    "calling": (plain(), calling),
    "connecting": (rude("silent"), connecting),
    "restarting": (plain(), restarting),
    "asked": (plain(), asked),
}


def connect(client: Proxy, *servers: str) -> None:
    client.greet()
    for server in servers:
        client.run(server, "echo", message="x")


def starts(client: Proxy, *servers: str) -> list[int]:
    return [len(client.received(server, "start")) for server in servers]


def check_nothing_left(client: Proxy) -> None:
    until(lambda: not client.left_over(), f"the end of {client.left_over()}")


def check_end(client: Proxy, expected: int) -> None:
    assert client.wait() == expected, client.errors()
    if expected != 0:  # then it is the watchdog that clears away, and nobody waits for it
        check_nothing_left(client)
    assert client.left_over() == set()
    assert "Traceback" not in client.errors()
    if expected == 0:
        assert client.journal()[-1]["event"] == "registry_shutdown_complete"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", WAYS)
def test_it_ends_in_order_and_leaves_nothing(tmp_path: Path, way: str, state: str) -> None:
    argv, prepare = STATES[state]
    servers = {"server": entry(argv, tmp_path, "server", **NEVER)}
    with proxy(tmp_path, servers=servers) as client:
        prepare(client)
        client.meet_family()
        assert alive_watchdog(client)
        begun = starts(client, "server")
        expected = WAYS[way](client)
        check_end(client, expected)
        assert starts(client, "server") == begun


def alive_watchdog(client: Proxy) -> bool:
    return client.watchdog() in client.left_over()


# Every kind of child at once.


def zoo(tmp_path: Path) -> dict[str, Message]:
    """Well-behaved with grandchildren, stubborn, behind a shell, silent, and lost."""
    wrapped = ["sh", "-c", f"{shlex.join(plain())}; true"]
    stubborn_shell = f"trap '' TERM INT HUP; {shlex.join(rude('stubborn'))}; true"
    argvs = {
        "plain": plain(),
        "stubborn": rude("stubborn"),
        "wrapped": wrapped,
        "stubbornly_wrapped": ["sh", "-c", stubborn_shell],
        "silent": rude("silent"),
        "lost": plain(),
        "slow": rude("slow-exit", "300"),
    }
    return {name: entry(argv, tmp_path, name, **NEVER) for name, argv in argvs.items()}


def fill(client: Proxy) -> list[int]:
    """Bring every server of the zoo to its state; the pids that only its tools know."""
    connect(client, "plain", "stubborn", "wrapped", "stubbornly_wrapped", "slow", "lost")
    inner = [json.loads(client.run("wrapped", "env"))["pid"]]
    for server in ("plain", "wrapped"):
        for escape in (False, True):
            spawned = json.loads(client.run(server, "spawn", seconds=300, escape=escape))
            inner.append(spawned["pid"])
    client.begin("execute_tool", server="plain", tool="slow", args={"seconds": 300})
    client.call("execute_tool", server="wrapped", tool="ask", args={})
    client.answer(client.begin("execute_tool", server="lost", tool="crash", args={}))
    until(lambda: client.messages("silent", "initialize"), "the handshake to arrive")
    client.meet_family()
    assert set(inner) <= client.family
    assert len(client.owners) == 1
    return inner


@pytest.mark.parametrize("way", WAYS)
def test_no_kind_of_child_survives(tmp_path: Path, way: str) -> None:
    servers = zoo(tmp_path)
    with proxy(tmp_path, servers=servers) as client:
        fill(client)
        assert alive_watchdog(client)
        begun = starts(client, *servers)
        expected = WAYS[way](client)
        check_end(client, expected)
        assert starts(client, *servers) == begun


@pytest.mark.parametrize("way", ["stdin ends", "SIGTERM", "is killed"])
def test_a_server_behind_npx_is_gone_with_all_that_stands_between(tmp_path: Path, way: str) -> None:
    argv = ["npx", "--no", "--offline", "mcp-server-everything", "stdio"]
    where = {"cwd": str(node_modules().parent)}
    with proxy(tmp_path, servers={"server": entry(argv, tmp_path, "server", **where)}) as client:
        connect(client, "server")
        client.meet_family()
        assert len(client.family) >= 3  # npx, a shell or npm, and the server itself
        expected = WAYS[way](client)
        check_end(client, expected)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_same_signal_again_ends_at_once_and_still_leaves_nothing(
    tmp_path: Path, name: str
) -> None:
    servers = zoo(tmp_path)
    patient = {"signal_kill_s": 60}
    with proxy(tmp_path, servers=servers, fixed=patient) as client:
        fill(client)
        begun = starts(client, *servers)
        client.process.send_signal(BY_SIGNAL[name])
        until(lambda: client.received("stubborn", "eof"), "the shutdown to begin")
        client.process.send_signal(BY_SIGNAL[name])
        check_end(client, 128 + BY_SIGNAL[name])
        assert starts(client, *servers) == begun


def test_a_host_that_sends_one_signal_after_the_other_still_gets_an_orderly_end(
    tmp_path: Path,
) -> None:
    servers = zoo(tmp_path)
    patient = {"signal_kill_s": 3}  # the stubborn one has the time to write down that it heard
    with proxy(tmp_path, servers=servers, fixed=patient) as client:
        fill(client)
        client.process.send_signal(signal.SIGINT)
        until(lambda: client.received("stubborn", "eof"), "the shutdown to begin")
        client.process.send_signal(signal.SIGTERM)
        check_end(client, 0)


def test_a_signal_ends_the_patience_with_a_call_after_the_end_of_stdin(tmp_path: Path) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    patient = {"eof_term_s": 60, "eof_kill_s": 60}
    with proxy(tmp_path, servers=servers, fixed=patient) as client:
        calling(client)
        client.meet_family()
        client.close_stdin()
        client.process.send_signal(signal.SIGTERM)
        check_end(client, 0)


def test_a_grandchild_that_was_started_a_moment_before_is_found_as_well(tmp_path: Path) -> None:
    """Between its exec and its first instruction, a process shows no environment."""
    servers = {"server": entry(plain(), tmp_path, "server")}
    for attempt in range(5):
        path = tmp_path / str(attempt)
        path.mkdir()
        with proxy(path, servers=servers) as client:
            connect(client, "server")
            client.meet_family()
            spawned = json.loads(client.run("server", "spawn", seconds=300, escape=True))
            client.close_stdin()
            client.family.add(spawned["pid"])
            check_end(client, 0)


def test_a_stranger_without_an_environment_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "300"], env={}) as stranger:
        try:
            assert kill_marked("01NOBODY") == []
            assert stranger.poll() is None
        finally:
            stranger.kill()


# What the client still hears.


@pytest.mark.parametrize("way", ["stdin ends", "SIGTERM"])
def test_a_call_in_flight_is_told_once_that_it_ended(tmp_path: Path, way: str) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    with proxy(tmp_path, servers=servers) as client:
        calling(client)
        client.meet_family()
        WAYS[way](client)
        check_end(client, 0)
        (answer,) = client.answers(client.last_id)
        assert answer["result"]["isError"] is True
        assert "server_disconnected" in answer["result"]["content"][0]["text"]


def test_a_client_that_only_closed_its_end_still_gets_its_answer(tmp_path: Path) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    patient = {"eof_term_s": 60, "eof_kill_s": 60}
    with proxy(tmp_path, servers=servers, fixed=patient) as client:
        connect(client, "server")
        client.meet_family()
        quick = {"server": "server", "tool": "slow", "args": {"seconds": 0.3}}
        calls = [client.begin("execute_tool", **quick) for _ in range(5)]
        client.close_stdin()
        check_end(client, 0)
        for call in calls:
            assert client.answer(call)["result"]["content"][0]["text"] == "slept 0.3"


def test_a_client_that_does_not_read_does_not_hold_up_the_end(tmp_path: Path) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    big = {"server": "server", "tool": "big", "args": {"bytes": 2_000_000}}
    whole = {"limits": {"result_bytes": 0}}
    with proxy(tmp_path, servers=servers, settings=whole) as client:
        connect(client, "server")
        client.meet_family()
        client.begin("execute_tool", **big)
        until(lambda: len(client.messages("server", "tools/call")) == 2, "the call to arrive")
        client.close_stdin()
        assert client.process.wait(WAIT_S) == 0
        check_nothing_left(client)


def test_nothing_is_started_for_a_client_that_is_going(tmp_path: Path) -> None:
    """Requests that arrive behind the signal start no server, nor does one that is replaced."""
    servers = {
        "slow": entry(rude("slow-exit", "300"), tmp_path, "slow"),
        "stubborn": entry(rude("stubborn"), tmp_path, "stubborn"),
    }
    # The server that is replaced is still ending when the signal comes, however late that is.
    patient = {"signal_kill_s": 1, "stop_term_s": 60, "stop_kill_s": 90}
    late = entry(plain(), tmp_path, "late")
    with proxy(tmp_path, servers=servers, fixed=patient) as client:
        connect(client, "slow", "stubborn")
        client.meet_family()
        client.begin("add_server", name="slow", replace=True, **late)
        until(lambda: client.received("slow", "eof"), "the old server to be stopped")
        client.process.send_signal(signal.SIGTERM)
        with suppress(BrokenPipeError):
            client.begin("add_server", name="late", **late)
            client.begin("execute_tool", server="slow", tool="echo", args={"message": "x"})
        check_end(client, 0)
        assert starts(client, "slow", "late") == [1, 0]


# A real client that dies, and stdin and stdout that are no pipes.

CLIENT = """
import json, signal, sys
from pathlib import Path
from tests.e2e.clients.raw import Proxy
from tests.e2e.test_shutdown import fill, zoo

path = Path(sys.argv[1])
client = Proxy(path, servers=zoo(path))
fill(client)
facts = {"proxy": client.process.pid, "family": [*client.family], "owners": [*client.owners]}
print(json.dumps(facts), flush=True)
signal.pause()
"""


def test_a_client_that_is_killed_takes_the_proxy_and_all_servers_along(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    ) as owner:
        try:
            assert owner.stdout is not None
            facts = json.loads(owner.stdout.readline())
        finally:
            owner.kill()
    client = Proxy.__new__(Proxy)
    client.tmp_path = tmp_path
    client.family = {facts["proxy"], *facts["family"]}
    client.owners = set(facts["owners"])
    assert len(client.owners) == 1
    check_nothing_left(client)
    assert client.journal()[-1]["event"] == "registry_shutdown_complete"


def _run(
    tmp_path: Path,
    stdin: bytes | None,
    fixed: dict[str, float] | None = None,
    **options: Any,
) -> tuple[list[Message], int]:
    """The proxy with a file (or nothing) as stdin and a file as stdout."""
    requests, out = tmp_path / "requests.jsonl", tmp_path / "out.jsonl"
    requests.write_bytes(stdin or b"")
    source = requests if stdin is not None else Path(os.devnull)
    with source.open("rb") as wire_in, out.open("wb") as wire_out:
        done = subprocess.run(
            proxy_command(fixed),
            stdin=wire_in,
            stdout=wire_out,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=proxy_environment(tmp_path, **options),
            timeout=WAIT_S,
            check=False,
        )
    assert b"Traceback" not in done.stderr
    return [json.loads(line) for line in out.read_bytes().splitlines()], done.returncode


def _lines(*messages: Message) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in messages)


HELLO = (
    {
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}},
    },
    {"method": "notifications/initialized"},
)


def test_requests_from_a_file_are_answered_into_a_file(tmp_path: Path) -> None:
    call = {
        "id": "run",
        "method": "tools/call",
        "params": {
            "name": "execute_tool",
            "arguments": {"server": "server", "tool": "echo", "args": {"message": "from a file"}},
        },
    }
    status = {"id": 7, "method": "resources/read", "params": {"uri": "emceepee://status"}}
    answers, code = _run(
        tmp_path,
        _lines(*HELLO, {"id": 1, "method": "tools/list"}, call, status),
        servers={"server": entry(plain(), tmp_path, "server")},
        fixed={"eof_term_s": 60, "eof_kill_s": 60},
    )
    assert code == 0
    by_id = {answer["id"]: answer["result"] for answer in answers}
    assert sorted(map(str, by_id)) == ["0", "1", "7", "run"]
    assert own_first(by_id["run"])[0]["text"] == "from a file"
    assert "emceepee://status" in json.dumps(by_id[7])


def test_the_last_request_of_a_file_needs_no_newline(tmp_path: Path) -> None:
    for last in ({"id": 1, "method": "ping"}, {"id": 1, "method": "x/unknown"}):
        answers, code = _run(tmp_path, _lines(*HELLO, last).rstrip(b"\n"))
        assert (len(answers), answers[-1]["id"], code) == (2, 1, 0)


def test_nothing_as_stdin_is_a_client_that_has_left(tmp_path: Path) -> None:
    assert _run(tmp_path, None) == ([], 0)
    assert _run(tmp_path, b"") == ([], 0)
    assert _run(tmp_path, b"\n\n") == ([], 0)
