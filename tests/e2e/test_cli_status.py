"""`emceepee status` beside several real proxies: who runs, for whom, and what of the rest."""

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.config.load import load_text
from emceepee_stdio.trust.store import TrustStore, default_trust_directory
from emceepee_stdio.trust.targets import target_id
from tests.e2e.cli_harness import EMCEEPEE, Home
from tests.e2e.clients.raw import INITIALIZE, WAIT_S, Proxy, entry, proxy, until
from tests.peers import plain, rude

Message = dict[str, Any]
FORMS = {"elicitation": {"form": {}}}


class Machine:
    """Proxies in homes of their own that share one state directory."""

    def __init__(self, tmp_path: Path, stack: ExitStack) -> None:
        self.path = tmp_path
        self.state = tmp_path / "state"
        self.running = self.state / "running"
        self._stack = stack

    def start(
        self,
        name: str,
        *,
        version: str = "1",
        capabilities: Message | None = None,
        arguments: Sequence[str] = (),
        **servers: Any,
    ) -> Proxy:
        home = self.path / name
        home.mkdir()
        env = {"EMCEEPEE_STATE_DIR": str(self.state)}
        made = self._stack.enter_context(proxy(home, servers=servers, env=env, arguments=arguments))
        params = {
            **INITIALIZE,
            "clientInfo": {"name": name, "version": version},
            "capabilities": capabilities or {},
        }
        made.answer(made.ask("initialize", params))
        made.send({"method": "notifications/initialized"})
        return made

    def server(self, home: str, name: str = "s") -> Message:
        return entry(plain(), self.path, f"{home}-{name}")

    def environ(self) -> dict[str, str]:
        home = Home(self.path / "person", env={"EMCEEPEE_STATE_DIR": str(self.state)})
        home.path.mkdir(exist_ok=True)
        return home.environ()

    def status(self, *arguments: str) -> str:
        done = subprocess.run(
            [*EMCEEPEE, "status", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environ(),
            timeout=WAIT_S,
            check=True,
        )
        assert done.stderr == b""
        return done.stdout.decode()

    def proxies(self) -> list[Message]:
        report = json.loads(self.status("--json"))
        assert report["schema_version"] == 1
        return sorted(report["proxies"], key=lambda one: one["client"]["name"])

    def until(self, condition: Callable[[list[Message]], object]) -> list[Message]:
        """Look at the files, which tell nobody when they change; then ask the command once."""
        until(lambda: condition(self.files()), "the files")
        return self.proxies()

    def files(self) -> list[Message]:
        """What the proxies wrote; each file is whole whenever it is looked at."""
        found = []
        for path in sorted(self.running.glob("*.json")) if self.running.exists() else []:
            try:
                found.append(json.loads(path.read_text()))
            except FileNotFoundError:
                continue
        return sorted(found, key=lambda one: one["client_name"])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        yield Machine(tmp_path, stack)


def phases(proxies: list[Message]) -> list[list[str]]:
    return [[server["phase"] for server in one["servers"]] for one in proxies]


def test_without_proxies_it_says_so_with_the_next_step(machine: Machine):
    said = machine.status()
    assert "No proxy is running" in said
    assert "emceepee install" in said
    assert machine.proxies() == []


def test_every_running_proxy_is_shown_with_its_client_servers_and_memory(machine: Machine):
    one = machine.start("claude-code", version="2.1.0", s=machine.server("claude-code"))
    two = machine.start(
        "codex",
        s=machine.server("codex"),
        broken=entry(rude("exit-at-once", "3"), machine.path, "broken", restart={"attempts": 0}),
    )
    found = machine.until(
        lambda files: (
            [sorted(row) for row in phases(files)] == [["connected"], ["connected", "failed"]]
            and all(one["client_name"] for one in files)
        )
    )
    assert [p["client"] for p in found] == [
        {"name": "claude-code", "version": "2.1.0"},
        {"name": "codex", "version": "1"},
    ]
    assert [p["pid"] for p in found] == [one.process.pid, two.process.pid]
    assert found[1]["phases"] == {"connected": 1, "failed": 1}
    assert found[0]["directory"] == str(machine.path / "claude-code")
    assert found[0]["config"] == str(machine.path / "claude-code" / "config.json")
    assert found[0]["memory_bytes"] > 5_000_000
    assert found[0]["servers_memory_bytes"] == found[0]["servers"][0]["memory_bytes"] > 5_000_000
    assert found[0]["uptime_ms"] > 0
    shared = json.loads(machine.status("--json"))["shared_servers"]
    assert {"proxies": 2, "servers": 1, "running": 2}.items() <= shared.items()
    assert shared["memory"] > 10_000_000
    shown = machine.status()
    assert "2 proxies run the same 1 server, 2 times" in shown
    assert "claude-code 2.1.0" in shown
    assert "2 proxies, 3 servers. Memory: " in shown
    assert f"broken: failed (pid {two.process.pid}). See: emceepee doctor broken" in shown
    by_server = machine.status("--servers").splitlines()
    assert by_server[0].split("\t") == ["PID", "SERVER", "PHASE", "DOES", "MEMORY"]
    assert any(f"{one.process.pid}\ts\tconnected\tnothing\t" in line for line in by_server)


def test_a_server_that_no_file_has_is_not_sent_to_the_doctor(machine: Machine):
    given = ["serve", "--server", "time=no-such-command"]
    made = machine.start("given", arguments=given, s=machine.server("given"))
    (found,) = machine.until(
        lambda files: [sorted(row) for row in phases(files)] == [["connected", "failed"]]
    )
    assert {one["name"]: one["in_file"] for one in found["servers"]} == {"s": True, "time": False}
    step = "emceepee tail-logs --server time"
    assert f"time: failed (pid {made.process.pid}). See: {step}" in machine.status()
    done = subprocess.run(
        [*EMCEEPEE, "doctor", "time", "--json", "--config", found["config"]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=machine.environ(),
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2
    said = "there is no server 'time' in the configuration. A running proxy has it; see its log"
    assert f"{said}: {step}" in done.stdout + done.stderr


def test_calls_tasks_and_questions_are_counted_and_their_text_is_nowhere(machine: Machine):
    client = machine.start("asks", capabilities=FORMS, s=machine.server("asks"))
    client.run("s", "echo", message="hello")
    client.begin("execute_tool", server="s", tool="hang", timeout_ms=0)
    client.begin("execute_tool", server="s", tool="hang")
    client.begin("execute_tool", server="s", tool="ask")

    def is_told(files: list[Message]) -> bool:
        (server,) = files[0]["servers"]
        counts = server["calls"], server["tasks"], server["questions"]
        return counts == (2, 1, {"person": 1, "tools": 0})

    (found,) = machine.until(is_told)
    assert (found["calls"], found["tasks"]) == (2, 1)
    assert found["questions"] == {"person": 1, "tools": 0}
    assert "2 calls, 1 task, 1 question to the person" in machine.status()
    (path,) = machine.running.iterdir()
    assert "Who are you" not in path.read_text()


def test_a_question_for_the_model_is_counted_as_such(machine: Machine):
    client = machine.start("tools", s=machine.server("tools"))
    client.begin("execute_tool", server="s", tool="ask")
    (found,) = machine.until(lambda files: files and files[0]["servers"][0]["questions"]["tools"])
    assert found["questions"] == {"person": 0, "tools": 1}
    assert "1 question to the model" in machine.status()


def test_a_killed_proxy_is_not_shown_and_its_file_goes(machine: Machine):
    one = machine.start("killed", s=machine.server("killed"))
    two = machine.start("stays")
    machine.until(lambda files: phases(files) == [["connected"], []] and files[0]["client_name"])
    one.meet_family()
    one.process.kill()
    one.process.wait()
    assert [p["pid"] for p in machine.proxies()] == [two.process.pid]
    assert len(list(machine.running.iterdir())) == 1
    until(lambda: not one.left_over(), "the server's end")


def test_the_next_proxy_clears_away_what_a_killed_one_left(machine: Machine):
    one = machine.start("killed")
    machine.until(lambda files: files)
    one.process.kill()
    one.process.wait()
    machine.start("next")
    until(lambda: [f["client_name"] for f in machine.files()] == ["next"], "only the next")


def test_a_proxy_that_ends_takes_its_file_along(machine: Machine):
    client = machine.start("ends")
    machine.until(lambda files: files)
    client.close_stdin()
    assert client.wait() == 0
    assert list(machine.running.iterdir()) == []


def test_a_later_process_with_the_number_of_a_dead_proxy_is_not_taken_for_it(machine: Machine):
    machine.start("real")
    machine.until(lambda files: files)
    (path,) = machine.running.iterdir()
    held = json.loads(path.read_text())
    held |= {"pid": os.getpid(), "session": "OTHER"}
    reused = machine.running / f"{os.getpid()}-OTHER.json"
    reused.write_text(json.dumps(held))
    reused.chmod(0o600)
    assert [p["client"]["name"] for p in machine.proxies()] == ["real"]
    assert not reused.exists()


def test_what_is_not_a_whole_private_file_of_ours_is_ignored_and_left_alone(machine: Machine):
    client = machine.start("real")
    machine.until(lambda files: files and files[0]["client_name"])
    (path,) = machine.running.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(machine.running.stat().st_mode) == 0o700
    text = path.read_text()
    odd = {
        "half.json": text[: len(text) // 2],
        "huge.json": json.dumps({"x": "y" * (1 << 20)}),
        "deep.json": "[" * 100_000,
        "other.json": text,
        "9-future.json": text.replace('"schema_version":1', '"schema_version":2'),
        "8-wide.json": text.replace('"real"', json.dumps("r" * 10_000)),
    }
    for name, content in odd.items():
        (machine.running / name).write_text(content)
        (machine.running / name).chmod(0o600)
    os.mkfifo(machine.running / "pipe.json")
    (machine.running / "link.json").symlink_to(path)
    open_to_all = machine.running / f"{client.process.pid}-OPEN.json"
    open_to_all.write_text(text.replace(json.loads(text)["session"], "OPEN"))
    open_to_all.chmod(0o666)
    foreign = machine.running / f"{client.process.pid}-FOREIGN.json"
    foreign.write_text(text.replace(json.loads(text)["session"], "FOREIGN"))
    foreign.chmod(0o600)
    if os.geteuid() == 0:  # nobody else can give a file away
        os.chown(foreign, 12345, 12345)
    else:
        foreign.unlink()
    before = sorted(p.name for p in machine.running.iterdir())
    assert [p["client"]["name"] for p in machine.proxies()] == ["real"]
    assert sorted(p.name for p in machine.running.iterdir()) == before


def test_a_damaged_file_goes_after_a_while_and_that_of_a_later_version_stays(machine: Machine):
    machine.running.mkdir(mode=0o700, parents=True)
    files = {
        "5-half": '{"schema_version":1,"pid"',
        "6-none": "",
        "7-future": '{"schema_version":2}',
    }
    for name, content in files.items():
        path = machine.running / f"{name}.json"
        path.write_text(content)
        path.chmod(0o600)
    assert machine.proxies() == []
    assert len(list(machine.running.iterdir())) == 3, "they may be half written"
    for path in machine.running.iterdir():
        os.utime(path, (0, 0))
    assert machine.proxies() == []
    assert [path.name for path in machine.running.iterdir()] == ["7-future.json"]


def test_a_running_proxy_writes_its_file_anew_when_somebody_else_did(machine: Machine):
    machine.start("real")
    machine.until(lambda files: files and files[0]["client_name"])
    (path,) = machine.running.iterdir()
    whole = path.read_text()
    path.write_text("{")
    until(lambda: path.read_text() == whole, "the file as it was")
    assert [p["client"]["name"] for p in machine.proxies()] == ["real"]
    path.unlink()
    machine.until(lambda files: files and files[0]["client_name"])


def test_a_target_is_told_in_the_terms_of_this_installation(machine: Machine):
    machine.start("real", s=machine.server("real"))
    machine.until(lambda files: phases(files) == [["connected"]])
    [proxy] = machine.proxies()
    text = json.dumps({"mcpServers": {"s": machine.server("real")}})
    [config] = load_text(text, environ={}, source="test").servers
    key = TrustStore(default_trust_directory(machine.environ())).key()
    assert proxy["servers"][0]["target"] == target_id(config, key)


def test_a_busy_proxy_does_not_write_for_each_call(machine: Machine):
    """Whatever is going on, the file changes with the second, not with the call."""
    client = machine.start("busy", s=machine.server("busy"))
    machine.until(lambda files: phases(files) == [["connected"]])
    (path,) = machine.running.iterdir()
    seen = {path.stat().st_mtime_ns}
    for _ in range(100):
        client.run("s", "slow", seconds=0.01)
        seen.add(path.stat().st_mtime_ns)
    assert len(seen) < 50


HOSTILE = "[bold]\x1b[31m\u202eevil <script>" + "x" * 5_000


def test_what_a_client_calls_itself_is_only_text_at_a_terminal_of_80_columns(machine: Machine):
    home = machine.path / "hostile"
    home.mkdir()
    with proxy(home, env={"EMCEEPEE_STATE_DIR": str(machine.state)}) as client:
        info = {"name": HOSTILE, "version": "\n\x07"}
        client.answer(client.ask("initialize", {**INITIALIZE, "clientInfo": info}))
        client.send({"method": "notifications/initialized"})
        machine.until(lambda files: files and files[0]["client_name"])
        person = Home(machine.path / "person", env={"EMCEEPEE_STATE_DIR": str(machine.state)})
        with person.screen("status", color=False) as screen:
            assert screen.wait() == 0
            assert "\x1b[31m" not in screen.raw
            assert "\u202e" not in screen.raw
            assert "[bold]" in screen.text
            assert screen.fits(), screen.text
            assert str(client.process.pid) in screen.words
