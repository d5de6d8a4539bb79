"""The life of a child: it dies, hangs, leaves others behind; we notice, recover, clear up."""

import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from emceepee_stdio.errors import ServerDisconnected, ServerUnavailable
from emceepee_stdio.state.phases import Phase, RestartPolicy
from emceepee_stdio.wire.process import StopTimes
from tests.e2e.harness import FAST, QUICK_RESTARTS, WAIT_S, Rig, alive, backend
from tests.peers import plain, rude

STARTED = ["connecting", "process started", "connected"]
RECOVERED = ["process crashed", "reconnecting", "process started", "connected"]
REMOVED = ["disconnected", "process stopped"]


async def gone(*pids: int) -> None:
    """Wait until the processes are gone; the test's patience is the limit."""
    with anyio.fail_after(WAIT_S):
        while any(alive(pid) for pid in pids):
            await anyio.sleep(0.01)


async def kill(rig: Rig) -> int:
    pid = rig.supervisor.snapshot().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_a_server_that_lives_and_is_removed_is_told_in_exact_order(tmp_path: Path) -> None:
    patient = replace(FAST, stop=StopTimes(term=30.0, kill=40.0))
    async with backend(plain(), tmp_path, options=patient) as rig:
        assert await rig.text("echo", message="hello") == "hello"
    assert rig.sink.received == [*STARTED, *REMOVED]
    assert len(rig.received_by_server("start")) == 1
    assert len(rig.received_by_server("eof")) == 1


async def test_killed_while_idle_it_comes_back_by_itself(tmp_path: Path) -> None:
    async with backend(plain(), tmp_path) as rig:
        await rig.call("echo", message="x")
        first = await kill(rig)
        await rig.sink.until(lambda: rig.sink.received.count("connected") == 2)
        assert await rig.text("echo", message="again") == "again"
        assert not alive(first)
        assert rig.sink.losses[0].fact == "server was killed by SIGKILL."
        assert rig.sink.losses[0].exit_code == -9
    assert rig.sink.received == [*STARTED, *RECOVERED, *REMOVED]
    assert len(rig.sink.pids) == 2


async def test_killed_in_the_middle_of_a_call_the_caller_hears_how_at_once(tmp_path: Path) -> None:
    async with backend(plain(), tmp_path) as rig:
        await rig.call("stderr", text="about to work", n=1)
        caught: list[BaseException] = []

        async def call() -> None:
            try:
                await rig.call("slow", seconds=300)
            except ServerDisconnected as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            with anyio.fail_after(WAIT_S):
                while len(rig.messages("tools/call")) < 2:
                    await anyio.sleep(0.01)
            await kill(rig)
        message = str(caught[0])
        assert "was killed by SIGKILL" in message
        assert "about to work" in message
        assert "Restart 1 of 5 follows" in message
        assert await rig.text("echo", message="on") == "on"
    assert rig.sink.received == [*STARTED, *RECOVERED, *REMOVED]


async def test_twenty_calls_in_flight_all_end_when_the_server_dies(tmp_path: Path) -> None:
    async with backend(plain(), tmp_path) as rig:
        await rig.call("echo", message="x")
        ended: list[str] = []

        async def call() -> None:
            with pytest.raises(ServerDisconnected):
                await rig.call("slow", seconds=300)
            ended.append("ended")

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(call)
            with anyio.fail_after(WAIT_S):
                while len(rig.messages("tools/call")) < 21:
                    await anyio.sleep(0.01)
            await kill(rig)
        assert len(ended) == 20
        assert await rig.text("echo", message="on") == "on"
    assert rig.sink.received == [*STARTED, *RECOVERED, *REMOVED]


async def test_a_crash_loop_is_given_up_even_though_every_start_succeeds(tmp_path: Path) -> None:
    policy = RestartPolicy(base=0.01, cap=0.02, limit=3)
    async with backend(rude("crash-loop"), tmp_path, restarts=policy) as rig:
        await rig.sink.until(lambda: rig.supervisor.phase is Phase.FAILED)
        assert rig.supervisor.snapshot().last_error is not None
        assert len(rig.sink.pids) == 4
        assert len(rig.received_by_server("start")) == 4
        assert "exited with code 1" in rig.supervisor.snapshot().last_error
    crash = ["process crashed", "reconnecting", "process started", "connected"]
    end = ["process crashed", "failed", "disconnected"]
    assert rig.sink.received == [*STARTED, *crash * 3, *end]


async def test_a_call_within_the_backoff_does_not_wait_for_it(tmp_path: Path) -> None:
    slow = RestartPolicy(base=3600.0, cap=3600.0)
    async with backend(plain(), tmp_path, restarts=slow) as rig:
        await rig.call("echo", message="x")
        await kill(rig)
        await rig.sink.until(lambda: rig.supervisor.phase is Phase.RECONNECTING)
        assert rig.supervisor.snapshot().next_retry_at is not None
        texts: list[str] = []

        async def call() -> None:
            texts.append(await rig.text("echo", message="now"))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(call)
        assert texts == ["now"] * 10
        assert len(rig.sink.pids) == 2


async def test_a_grandchild_that_holds_stdout_hides_no_crash(tmp_path: Path) -> None:
    async with backend(rude("grandchild-holds-stdout"), tmp_path) as rig:
        await rig.call("echo", message="x")
        with pytest.raises(ServerDisconnected, match="SIGKILL"):
            await rig.call("die")
        assert await rig.text("echo", message="on") == "on"
    assert rig.sink.received == [*STARTED, *RECOVERED, *REMOVED]


async def test_a_stubborn_child_is_killed_in_bounded_time(tmp_path: Path) -> None:
    async with backend(rude("stubborn"), tmp_path) as rig:
        await rig.call("echo", message="x")
        (pid,) = rig.sink.pids
        with anyio.fail_after(WAIT_S):
            await rig.supervisor.stop()
        assert not alive(pid)
        assert rig.sink.losses[0].exit_code == -signal.SIGKILL


@pytest.mark.parametrize("escape", [False, True])
async def test_grandchildren_go_with_the_server_even_from_another_session(
    tmp_path: Path, *, escape: bool
) -> None:
    async with backend(plain(), tmp_path) as rig:
        spawned = json.loads(await rig.text("spawn", seconds=300, escape=escape))
        grandchild = spawned["pid"] if isinstance(spawned, dict) else spawned
        assert alive(grandchild)
    assert not alive(grandchild)


@pytest.mark.parametrize("escape", [False, True])
async def test_grandchildren_of_a_server_that_crashed_are_cleared_away(
    tmp_path: Path, *, escape: bool
) -> None:
    async with backend(plain(), tmp_path) as rig:
        spawned = json.loads(await rig.text("spawn", seconds=300, escape=escape))
        grandchild = spawned["pid"] if isinstance(spawned, dict) else spawned
        await kill(rig)
        await rig.sink.until(lambda: rig.sink.received.count("connected") == 2)
        assert not alive(grandchild)


async def test_a_child_behind_a_shell_goes_with_the_shell(tmp_path: Path) -> None:
    command = shlex.join(plain())
    async with backend(["sh", "-c", f"{command}; true"], tmp_path) as rig:
        environment = json.loads(await rig.text("env"))
        assert environment["pid"] != rig.supervisor.snapshot().pid
        assert environment["pgid"] == rig.supervisor.snapshot().pid
        await kill(rig)
        await rig.sink.until(lambda: rig.sink.received.count("connected") == 2)
        assert not alive(environment["pid"])
        second = json.loads(await rig.text("env"))["pid"]
    assert not alive(second)


async def test_a_child_gets_the_allow_list_and_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "planted")
    monkeypatch.setenv("LC_TEST", "passes")
    async with backend(plain(), tmp_path, env={"GIVEN": "1"}) as rig:
        environment = json.loads(await rig.text("env"))
    names = set(environment["names"])
    assert "GITHUB_TOKEN" not in names
    assert {"PATH", "LC_TEST", "GIVEN", "EMCEEPEE_DEPTH", "EMCEEPEE_OWNER"} <= names
    assert environment["cwd"] == str(tmp_path)
    assert environment["sid"] == environment["pid"]


async def test_reconnecting_replaces_the_process_and_never_runs_two(tmp_path: Path) -> None:
    async with backend(plain(), tmp_path) as rig:
        await rig.call("echo", message="x")
        for _ in range(3):
            await rig.supervisor.reconnect(within=WAIT_S)
            assert len(rig.left_over()) == 1
            assert await rig.text("echo", message="on") == "on"
    again = ["connecting", "process stopped", "process started", "connected"]
    assert rig.sink.received == [*STARTED, *again * 3, *REMOVED]


async def test_a_call_in_flight_ends_at_once_when_we_leave(tmp_path: Path) -> None:
    async with backend(rude("silent-after-init"), tmp_path) as rig:
        await rig.supervisor.connection(within=WAIT_S)
        caught: list[BaseException] = []

        async def call() -> None:
            try:
                await rig.call("never answered")
            except (ServerDisconnected, ServerUnavailable) as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            with anyio.fail_after(WAIT_S):
                while not rig.messages("tools/call"):
                    await anyio.sleep(0.01)
            await rig.supervisor.stop()
        assert "was removed" in str(caught[0])


async def test_one_that_hangs_delays_nobody(tmp_path: Path) -> None:
    async with backend(rude("silent"), tmp_path) as hanging:
        for index in range(3):
            path = tmp_path / str(index)
            path.mkdir()
            async with backend(plain(), path) as rig:
                assert await rig.text("echo", message="hello") == "hello"
        assert hanging.supervisor.phase is Phase.CONNECTING


async def test_a_lazy_server_is_not_started_before_its_first_use(tmp_path: Path) -> None:
    async with backend(plain(), tmp_path, lazy=True) as rig:
        await rig.sink.until(lambda: rig.sink.received == ["idle"])
        assert rig.left_over() == []
        assert await rig.text("echo", message="hello") == "hello"
    assert rig.sink.received == ["idle", *STARTED, *REMOVED]


OWNER = """
import os, sys
from pathlib import Path
import anyio
sys.path.insert(0, sys.argv[1])
from tests.e2e.harness import backend
from tests.peers import plain, rude

async def main() -> None:
    path = Path(sys.argv[2])
    (path / "a").mkdir(); (path / "b").mkdir()
    async with backend(plain(), path / "a") as one, backend(rude("stubborn"), path / "b") as two:
        escaped = await one.text("spawn", seconds=300, escape=True)
        inside = await one.text("spawn", seconds=300, escape=False)
        await two.call("echo", message="x")
        pids = [one.supervisor.snapshot().pid, two.supervisor.snapshot().pid]
        print(pids, escaped, inside, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


async def test_when_the_owner_is_killed_nothing_survives_it(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        line = await anyio.to_thread.run_sync(owner.stdout.readline)
        pids = [int(word) for word in "".join(c if c.isdigit() else " " for c in line).split()]
        assert len(pids) == 4
        assert all(alive(pid) for pid in pids)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()  # type: ignore[union-attr]
    await gone(*pids)


async def test_memory_stays_flat_over_many_restarts_and_calls(tmp_path: Path) -> None:
    policy = RestartPolicy(base=0.01, cap=0.01, limit=None)
    async with backend(plain(), tmp_path, restarts=policy) as rig:
        descriptors = []
        for _ in range(8):
            for n in range(50):
                await rig.call("echo", message=str(n))
            await kill(rig)
            await rig.sink.until(lambda: rig.supervisor.phase is not Phase.CONNECTED)
            await rig.call("echo", message="on")
            descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
        assert descriptors[-1] <= descriptors[0]
    assert QUICK_RESTARTS.limit == 5
