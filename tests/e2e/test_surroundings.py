"""A bad machine: no room, no home, nothing writable, asleep. The proxy goes on serving.

Permissions do not stop everybody, so what must not be writable is a file where a directory should
be, or lies in /proc, where nobody makes a file.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.wire.orphans import leftovers, owner_mark
from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import ROOT, until
from tests.e2e.harness import alive
from tests.e2e.hosts import Host, host, proposal
from tests.peers import plain
from tests.proxy_entry import proxy_command


def entry(*options: str) -> dict[str, Any]:
    argv = plain(*options)
    return {"command": argv[0], "args": argv[1:]}


AS_A_PERSON = {"automatic_answer_s": 0.0}  # however fast the test answers


def serves(client: Host, count: int = 3) -> None:
    """It answers, starts servers, and asks its person."""
    for i in range(count):
        assert client.execute("s", "echo", message=f"hi {i}").text.startswith(f"hi {i}")
    client.use("remove_server", name="new")
    said = client.decide("accept", **proposal("--ttl", str(count)))
    assert said.json["phase"] == "connected"
    assert client.execute("new", "echo", message="hi").text.startswith("hi")
    assert "unexpected_error" not in client.errors()


def in_the_way(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "file").write_text("in the way")
    return {"EMCEEPEE_LOG_DIR": f"{tmp_path}/file/logs", "EMCEEPEE_STATE_DIR": f"{tmp_path}/file/x"}


def no_home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "file").write_text("in the way")
    return {"HOME": f"{tmp_path}/file/home", "EMCEEPEE_LOG_DIR": "", "EMCEEPEE_STATE_DIR": ""}


PLACES: dict[str, Callable[[Path], dict[str, str]]] = {
    "directories that cannot be made": in_the_way,
    "a home where nothing can be written": lambda _: {
        "HOME": "/proc",
        "EMCEEPEE_LOG_DIR": "",
        "EMCEEPEE_STATE_DIR": "",
    },
    "a home that is not there": no_home,
    "a relative home": lambda _: {
        "HOME": "proc/nowhere",
        "EMCEEPEE_LOG_DIR": "/proc/nowhere",
        "EMCEEPEE_STATE_DIR": "/proc/nowhere",
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_it_serves_in(tmp_path: Path, place: str) -> None:
    with host(tmp_path, servers={"s": entry()}, env=PLACES[place](tmp_path)) as client:
        serves(client)
    assert not (tmp_path / "state").exists()


def test_it_serves_without_any_home(tmp_path: Path) -> None:
    without = ["env", "-u", "HOME", "-u", "EMCEEPEE_CONFIG", *proxy_command(AS_A_PERSON)]
    arguments = ["--config", str(tmp_path / "config.json")]
    with host(tmp_path, servers={"s": entry()}, python=without, arguments=arguments) as client:
        serves(client)


def test_it_serves_a_user_whom_the_machine_does_not_know(tmp_path: Path) -> None:
    """As in a container that runs under a number: no HOME, and nobody who could tell it."""
    script = (
        "import pwd, runpy, sys\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
    )
    python, *entry_point = proxy_command(AS_A_PERSON)
    stranger = ["env", "-u", "HOME", "-u", "EMCEEPEE_CONFIG", python, "-c", script, *entry_point]
    arguments = ["--config", str(tmp_path / "config.json")]
    with host(tmp_path, servers={"s": entry()}, python=stranger, arguments=arguments) as client:
        serves(client)


def test_an_unwritable_journal_is_said_once_on_stderr(tmp_path: Path) -> None:
    with host(tmp_path, servers={"s": entry()}, env=in_the_way(tmp_path)) as client:
        serves(client, 30)
        lines = [line for line in client.errors().splitlines() if "file/logs" in line]
        assert len(lines) == 1, client.errors()


# No room


def test_it_serves_when_no_file_can_grow_any_more(tmp_path: Path) -> None:
    """Each file may have four kilobytes, and then writing to it fails as on a full disk."""
    # Under such a bound Python itself would leave half of its compiled files in our tree.
    careful = "export PYTHONDONTWRITEBYTECODE=1; ulimit -f 8"
    bounded = ["sh", "-c", f'{careful}; exec "$@"', "sh", *proxy_command(AS_A_PERSON)]
    loud = {"logging": {"level": "debug"}}
    server = entry() | {"env": {"PYTHONDONTWRITEBYTECODE": "1"}}
    with host(tmp_path, servers={"s": server}, python=bounded, settings=loud) as client:
        for i in range(5):
            client.execute("s", "stderr", text="x" * 1_000, n=10)
            serves(client, i + 1)
        sizes = [path.stat().st_size for path in (tmp_path / "journal").iterdir()]
        assert max(sizes) <= 8 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with next to no room, where the test may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount here")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("this user may not mount")
    try:
        yield place
    finally:
        subprocess.run([umount, "-l", str(place)], check=True)


def test_it_serves_when_the_disk_is_full_and_writes_again_when_there_is_room(
    tmp_path: Path, small_disk: Path
) -> None:
    places = {
        "EMCEEPEE_LOG_DIR": str(small_disk / "logs"),
        "EMCEEPEE_STATE_DIR": str(small_disk / "state"),
    }
    loud = {"logging": {"level": "debug"}}
    with host(tmp_path, servers={"s": entry()}, env=places, settings=loud) as client:
        serves(client)
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 512)
            except OSError:
                pass
        client.execute("s", "stderr", text="x" * 1_000, n=100)
        for i in range(4, 7):
            serves(client, i)
        until(lambda: _said(client, "journal_unwritable", "o space left"), "a word on stderr")
        ballast.unlink()
        client.execute("s", "stderr", text="there is room again")
        (journal,) = (small_disk / "logs").glob("emceepee-*.jsonl")

        def written() -> bool:
            client.execute("s", "stderr", text="there is room again")
            return "there is room again" in journal.read_text()

        until(written, "the journal to go on")
        until(lambda: _said(client, "journal_recovered"), "a word on stderr")
        for line in journal.read_text().splitlines():
            json.loads(line)


def _said(client: Host, *words: str) -> bool:
    """Whether one line on stderr has all of them."""
    return any(all(word in line for word in words) for line in client.errors().splitlines())


# Time


def test_a_clock_that_is_set_back_costs_no_line_and_no_order(tmp_path: Path) -> None:
    now, wall = 1_000.0, 1_800_000_000.0
    clock = Clock(monotonic=lambda: now, wall=lambda: wall)
    ids = Ids(clock)
    journal = Journal.open(
        directory=tmp_path, session="s", clock=clock, stderr=None, max_bytes=2_000, files=5
    )
    made: list[str] = []
    for i in range(60):
        now += 1.0
        wall += 1.0 if i != 30 else -86_400.0
        made.append(ids())
        journal.record(JournalEvent.CONFIG_WARNING, warning=f"line {i}")
    journal.close()
    assert made == sorted(made)
    assert len(set(made)) == 60
    lines = [
        json.loads(line)
        for path in tmp_path.iterdir()
        for line in path.read_text().splitlines()
        if path.is_file()
    ]
    assert len(list(tmp_path.iterdir())) > 2, "it went on to new files, before and after"
    kept = sorted(int(line["data"]["warning"].split()[1]) for line in lines)
    assert kept == list(range(60))
    days = {line["data"]["warning"]: line["timestamp"][:10] for line in lines}
    assert {days[f"line {i}"] for i in range(30)} == {"2027-01-15"}
    assert {days[f"line {i}"] for i in range(30, 60)} == {"2027-01-14"}


def test_a_machine_that_slept_goes_on_with_its_calls_timers_and_tasks(tmp_path: Path) -> None:
    with host(tmp_path, servers={"s": entry()}) as client:
        assert client.execute("s", "echo", message="x").text.startswith("x")
        client.meet_family()
        call = client.start("execute_tool", server="s", tool="slow", args={"seconds": 0.5})
        task = client.use(
            "execute_tool", server="s", tool="slow", args={"seconds": 1}, timeout_ms=0
        )
        task_id = json.loads(task.result["content"][1]["text"])["proxy_task"]["task_id"]
        client.use("set_timer", duration_ms=300, message="once")
        client.use("set_timer", duration_ms=200, message="again and again", interval=True)
        before = client.servers()["s"]["pid"]
        os.kill(client.process.pid, signal.SIGSTOP)
        late = client.start("execute_tool", server="s", tool="echo", args={"message": "late"})
        _sleep(3.0)
        os.kill(client.process.pid, signal.SIGCONT)
        assert client.said_to(call).text.startswith("slept 0.5")
        assert client.said_to(late).text.startswith("late")
        assert client.use("get_task_result", task_id=task_id).text.startswith("slept 1")

        def slept_through() -> bool:
            """What an interval missed is counted, not told one by one: here fourteen or so."""
            client.use("await_activity", timeout_ms=100)
            return any(event["data"].get("missed", 0) >= 10 for event in _fired(client))

        until(slept_through, "the interval that was slept through")
        once = [event for event in _fired(client) if event["data"]["message"] == "once"]
        assert len(once) == 1
        shown = client.servers()["s"]
        assert (shown["pid"], shown["phase"]) == (before, "connected")


def _sleep(seconds: float) -> None:
    """The time that the machine sleeps is the matter of the test, not a wait for something."""
    subprocess.run(["sleep", str(seconds)], check=True)


def _fired(client: Host) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for message in client.said:
        for block in message.get("result", {}).get("content", []):
            if "timer_expired" in block.get("text", "") and block["text"].startswith("{"):
                body = json.loads(block["text"])
                events = list(body.get("events_since_last_response", []))
                groups = body.get("events", [])
                events += [event for group in groups for event in group.get("events", [])]
                found += [event for event in events if event["type"] == "timer_expired"]
    return found


# What a killed proxy left


def orphans(tmp_path: Path, env: dict[str, str]) -> tuple[Host, set[int]]:
    """A proxy that is killed together with its watchdog; what it leaves."""
    stubborn = {"s": entry()}
    client = Host(tmp_path, servers=stubborn, env=env)
    client.meet()
    spawned = client.execute("s", "spawn", seconds=300, escape=True)
    pid = json.loads(spawned.result["content"][0]["text"])["pid"]
    client.meet_family()
    watchdog = client.watchdog()
    os.kill(watchdog, signal.SIGSTOP)
    client.process.kill()
    client.process.wait()
    os.kill(watchdog, signal.SIGKILL)
    until(lambda: not alive(watchdog), "the watchdog to be gone")
    return client, {pid}


async def test_what_a_killed_proxy_left_is_reported_and_what_a_healthy_one_has_is_not(
    tmp_path: Path,
) -> None:
    for name in ("killed", "healthy", "new"):
        (tmp_path / name).mkdir()
    home = {"HOME": str(tmp_path / "person")}
    killed, left = orphans(tmp_path / "killed", home)
    try:
        with (
            host(tmp_path / "healthy", servers={"s": entry()}, env=home) as healthy,
            host(tmp_path / "new", servers={"s": entry()}, env=home) as new,
        ):
            for client in (healthy, new):
                assert client.execute("s", "echo", message="hi").text.startswith("hi")
                client.meet_family()
            for client in (healthy, new):
                (noted,) = client.until_noted("leftovers")
                assert noted["level"] == "warning"
                pids = {int(line.split()[0]) for line in noted["data"]["processes"]}
                assert left <= pids
                assert not pids & (healthy.family | new.family)
                assert all(alive(pid) for pid in left), "reported, not killed"
            doctor = Home(tmp_path / "doctor", env={"PYTHONPATH": str(ROOT), **home})
            ran = await doctor.run("doctor", "--json")
            checks = {check["id"]: check for check in json.loads(ran.out)["checks"]}
            check = checks["environment.leftovers"]
            assert check["status"] == "warning"
            assert left <= set(check["details"]["pids"])
            assert not set(check["details"]["pids"]) & (healthy.family | new.family)
            assert check["remediation"].startswith("End them:\n  kill ")
    finally:
        killed.clear_away()
    until(lambda: not any(map(alive, left)), "the end of what was left")
    assert not left & {one.pid for one in leftovers(None)}


def test_a_mark_tells_whether_its_very_owner_is_still_there() -> None:
    """Also when somebody else has got its pid."""

    def carrying(mark: str) -> "subprocess.Popen[bytes]":
        env = {"EMCEEPEE_OWNER": f"{mark}.01START"}
        code = "print(flush=True); input()"
        child = subprocess.Popen(
            [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        return child

    ours = owner_mark("01OWNER")
    unique, pid, started = ours.split("-")
    assert pid == str(os.getpid())
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    cases = {
        "here": (ours, False),
        "another with its pid": (f"{unique}-{pid}-{int(started) + 1}", True),
        "gone": (f"{unique}-{gone.pid}-123", True),
        "no mark of ours": ("01OWNER", False),
        "forged": ("x-y-z", False),
    }
    children = {name: carrying(mark) for name, (mark, _) in cases.items()}
    try:
        found = {one.pid: one.name for one in leftovers(None)}
        for name, (_, is_left) in cases.items():
            assert (children[name].pid in found) == is_left, name
        assert not set(leftovers("/another/home")) & set(leftovers(None))
    finally:
        for child in children.values():
            child.communicate(b"\n")
