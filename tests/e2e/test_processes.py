"""Processes as every system has them: what they print, how they end, and what is left of them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from emceepee_stdio.wire import system
from emceepee_stdio.wire.orphans import started
from emceepee_stdio.wire.process import Listener, Process, Spawn, StopTimes

pytestmark = pytest.mark.fresh
WAIT_S = 150.0  # a program takes half a minute to start under Wine on a loaded machine
EMCEEPEE = (sys.executable, "-m", "emceepee_stdio")
windows_only = pytest.mark.skipif(os.name == "posix", reason="about programs of Windows")

# A server and what it starts: each is connected to the test for as long as it lives.
TREE = """
import runpy, socket, subprocess, sys
alive = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
wait = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
subprocess.Popen([sys.executable, "-c", wait, sys.argv[1]], stdin=subprocess.DEVNULL)
runpy.run_module("emceepee_stdio.cli.demo_server", run_name="__main__")
"""
LAST_WORDS = """
import os, sys
os.close(1)
for number in range(20_000):
    print("line", number, file=sys.stderr)
sys.stderr.flush()
"""


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "EMCEEPEE_STATE_DIR": str(tmp_path / "state"), **more}


def configuration(tmp_path: Path, command: str, args: Sequence[str]) -> Path:
    path = tmp_path / "config.json"
    server = {"command": command, "args": [*args]}
    path.write_text(json.dumps({"mcpServers": {"bar": server}}), encoding="utf-8")
    return path


def ran(tmp_path: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [*EMCEEPEE, *words],
        env=environment(tmp_path, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


def test_all_of_stderr_arrives_although_stdout_ended_before(tmp_path: Path):
    lines: list[str] = []
    listener = Listener(on_stdout=lambda _: None, on_stderr=lines.append, on_end=lambda: None)
    spawn = Spawn(
        argv=[sys.executable, "-c", LAST_WORDS], env=dict(os.environ), cwd=tmp_path, owner="O"
    )

    async def main() -> None:
        with anyio.fail_after(WAIT_S):
            process = await Process.start(spawn, listener, drain=WAIT_S)
            await process.ended.wait()
            await process.stop(StopTimes(term=1, kill=2))

    anyio.run(main, backend="asyncio")
    assert lines == [f"line {number}" for number in range(20_000)]


def test_a_process_that_ended_is_not_running_whatever_its_exit_code_was():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = started(process.pid)
        assert system.is_running(process.pid, began)
        assert not system.is_running(process.pid, f"{began}0")
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(259)"]) as process:
        process.wait()
        assert not system.is_running(process.pid, "")


@contextmanager
def proxy_with_a_tree(
    tmp_path: Path,
) -> Iterator[tuple[subprocess.Popen[bytes], list[socket.socket]]]:
    script = tmp_path / "tree é.py"
    script.write_text(TREE, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.settimeout(WAIT_S)
        args = [str(script), str(port.getsockname()[1])]
        config = configuration(tmp_path, sys.executable, args)
        proxy = subprocess.Popen(
            [*EMCEEPEE, "serve", "--config", str(config)],
            env=environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert proxy.stdin is not None
        client = {"name": "test", "version": "1"}
        said = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        asked = {"name": "list_tools", "arguments": {"server": "bar"}}
        for message in (
            {"id": 1, "method": "initialize", "params": said},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": asked},
        ):
            proxy.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        proxy.stdin.flush()
        tree: list[socket.socket] = []
        try:
            tree += [port.accept()[0] for _ in range(2)]
            yield proxy, tree
        finally:
            for end in tree:
                end.close()
            proxy.kill()
            proxy.communicate(timeout=WAIT_S)


def is_gone(end: socket.socket) -> bool:
    end.settimeout(WAIT_S)
    try:
        return end.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("way", ["end of input", "kill"])
def test_nothing_of_a_server_is_left_however_the_proxy_ends(tmp_path: Path, way: str):
    with proxy_with_a_tree(tmp_path) as (proxy, tree):
        if way == "kill":
            proxy.kill()
        else:
            assert proxy.stdin is not None
            proxy.stdin.close()
            proxy.stdin = None
        assert all(map(is_gone, tree))
        assert way == "kill" or proxy.wait(WAIT_S) == 0


def test_a_pipe_that_lacks_most_characters_ends_no_command(tmp_path: Path):
    config = configuration(tmp_path, "no-such-command-→", [])
    variables = {"PYTHONIOENCODING": "cp1252", "EMCEEPEE_CONFIG": str(config)}
    done = ran(tmp_path, "doctor", **variables)
    assert b"Traceback" not in done.stderr, done.stderr.decode("cp1252")
    assert b"\\u2192" in done.stdout + done.stderr


@windows_only
def test_a_pipe_is_utf_8_whatever_the_code_page(tmp_path: Path):
    config = configuration(tmp_path, "no-such-command-→", [])
    done = ran(tmp_path, "doctor", EMCEEPEE_CONFIG=str(config), PYTHONUTF8="0")
    assert "→" in (done.stdout + done.stderr).decode()


@windows_only
@pytest.mark.parametrize(
    ("argument", "outcome"),
    [
        ("c&d", None),
        ("http://x/?a=1&b=2", None),
        ("a b", None),
        ('"&echo x>{}&"', "a quote"),
        ("%PATH%", "a percent"),
    ],
)
def test_arguments_reach_a_cmd_file_unchanged_or_not_at_all(
    tmp_path: Path, argument: str, outcome: str | None
):
    place = tmp_path / "programs é"
    place.mkdir()
    seen, written = tmp_path / "seen.json", tmp_path / "written"
    show = place / "show.py"
    show.write_text(
        "import json, runpy, sys\n"
        f"open({str(seen)!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
        "sys.argv[1:] = []\n"
        "runpy.run_module('emceepee_stdio.cli.demo_server', run_name='__main__')\n",
        encoding="utf-8",
    )
    (place / "bar.cmd").write_text(f'@"{sys.executable}" "%~dp0show.py" %*\r\n')
    argument = argument.format(written)
    config = configuration(tmp_path, "bar", [argument])
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    done = ran(tmp_path, "call", "--config", str(config), "bar", "menu", PATH=path)
    said = " ".join((done.stdout + done.stderr).decode(errors="replace").split())
    assert not written.exists()
    if outcome is None:
        assert done.returncode == 0, said
        assert json.loads(seen.read_text()) == [argument]
    else:
        assert outcome in said
        assert not seen.exists()
