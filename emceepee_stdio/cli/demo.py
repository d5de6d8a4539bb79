"""`emceepee demo`: the product in one minute, without any set-up.

The real proxy is started as a client would start it, with a small example server behind it, and led
through what it is for. Each step is checked: the exit code is 0 only if everything came true.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.clock import Clock

__all__ = ["demo"]

_MAX_LINE_CHARS = 78  # fits into a terminal of 80 columns
_EXIT_TIMEOUT_S = 30.0  # far longer than the proxy takes to stop its servers
_SERVER = Path(__file__).with_name("demo_server.py")


class _Broken(Exception):
    """Something did not come true."""


class _Client:
    """A client that makes one call at a time, as most do, and shows what it says and hears."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: Terminal, clock: Clock) -> None:
        self._process = process
        self._terminal = terminal
        self._clock = clock
        self._next_id = 1

    def open(self) -> int:
        hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}
        info = {"name": "emceepee-demo", "version": "1"}
        self._request("initialize", {**hello, "clientInfo": info})
        self._write({"method": "notifications/initialized"})
        return len(self._request("tools/list", {})["tools"])

    def call(self, tool: str, /, **arguments: Any) -> list[str]:
        """Call a tool; its text blocks."""
        shown = ", ".join(f"{key}={json.dumps(value)}" for key, value in arguments.items())
        for path in (sys.executable, str(_SERVER)):
            shown = shown.replace(json.dumps(path), json.dumps(Path(path).name))
        self._terminal.line(_cut(f"  → {tool}({shown})"), style="cyan")
        start = self._clock.now()
        result = self._request("tools/call", {"name": tool, "arguments": arguments})
        spent = (self._clock.now() - start) * 1000
        texts = [str(block.get("text", "")) for block in result["content"]]
        self._terminal.line(_cut(f"  ← {spent:7.1f} ms  {texts[0]}"))
        for text in texts[1:]:
            self._terminal.line(_cut(f"                {text}"), style="dim")
        return texts

    def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        request_id = self._next_id
        self._next_id += 1
        self._write({"id": request_id, "method": method, "params": params})
        while True:
            message = self._read()
            if message.get("id") == request_id:
                if "result" not in message:
                    raise _Broken(f"{method} was answered with {message.get('error')}")
                return message["result"]

    def _write(self, message: dict[str, Any]) -> None:
        if self._process.stdin is None:
            raise _Broken("the proxy has no stdin")
        line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            raise _Broken("the proxy ended before it answered")
        return json.loads(line)


def demo() -> None:
    """See the product at work: the real proxy, a small server behind it, and one client.

    Example: emceepee demo
    """
    terminal = Terminal()
    clock = Clock()
    start = clock.now()
    try:
        with _proxy() as process:
            _lead(_Client(process, terminal, clock), terminal)
    except BrokenPipeError:
        raise
    except (_Broken, OSError, KeyError, ValueError) as error:
        terminal.note(f"emceepee demo: this should not have happened: {error}")
        raise typer.Exit(FAILED) from None
    if process.returncode != 0:
        code = process.returncode
        terminal.note(f"emceepee demo: the proxy ended with code {code} instead of 0.")
        raise typer.Exit(FAILED)
    terminal.line(f"\nEverything came true, in {clock.now() - start:.1f} s.", style="bold green")
    terminal.line("Next: `emceepee install claude-desktop`, or another client: `emceepee install`.")


def _lead(client: _Client, terminal: Terminal) -> None:
    terminal.line("1. A client starts emceepee and sees a fixed set of tools.", style="bold")
    terminal.line(f"     {client.open()} tools, whatever servers come and go behind them\n")

    terminal.line("2. A server is added in the middle of the session.", style="bold")
    _expect(
        client.call("add_server", name="bar", command=sys.executable, args=[str(_SERVER)]),
        "coffee-bar",
    )
    terminal.line("\n3. Find a tool by what it does, and run it.", style="bold")
    _expect(client.call("list_tools", query="what is on the menu", detail="summary"), "menu")
    _expect(client.call("execute_tool", server="bar", tool="menu"), "espresso")

    terminal.line(
        "\n4. A slow call becomes a task: the client is never kept waiting too long.", style="bold"
    )
    slow: dict[str, Any] = {"server": "bar", "tool": "roast", "args": {"seconds": 2}}
    task = _fact(client.call("execute_tool", **slow, timeout_ms=500), "proxy_task", "task_id")
    _expect(client.call("await_activity", timeout_ms=20_000), "task_completed")
    _expect(client.call("get_task_result", task_id=task), "dark brown")

    terminal.line(
        "\n5. The server asks a question; a client that knows only tools answers it.", style="bold"
    )
    texts = client.call("execute_tool", server="bar", tool="order", args={"drink": "flat white"})
    task = _fact(texts, "proxy_task", "task_id")
    asked = _fact(texts, "pending_client_action", "elicitations", 0, "request_id")
    answer = {"milk": True, "sugar": 2}
    client.call("respond_to_elicitation", request_id=asked, action="accept", content=answer)
    _expect(client.call("get_task_result", task_id=task), "with milk, 2 lumps")

    terminal.line(
        "\n6. The server crashes. The error says what happened; the next call just works.",
        style="bold",
    )
    _expect(client.call("execute_tool", server="bar", tool="spill"), "pressure lost")
    _expect(client.call("execute_tool", server="bar", tool="menu"), "espresso")


@contextmanager
def _proxy() -> Generator[subprocess.Popen[bytes]]:
    """The real proxy, with a configuration and a journal that leave no trace."""
    with tempfile.TemporaryDirectory(prefix="emceepee-demo-") as directory:
        config = Path(directory) / "config.json"
        config.write_text("{}", encoding="utf-8")
        env = {
            **os.environ,
            "EMCEEPEE_CONFIG": str(config),
            "EMCEEPEE_LOG_DIR": str(Path(directory) / "logs"),
            "EMCEEPEE_STATE_DIR": str(Path(directory) / "state"),
        }
        with subprocess.Popen(
            [sys.executable, "-m", "emceepee_stdio", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        ) as process:
            try:
                yield process
            finally:
                _leave(process)


def _leave(process: subprocess.Popen[bytes]) -> None:
    """Let it stop its servers, as a client that goes away does."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(timeout=_EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _expect(texts: list[str], word: str) -> None:
    if not any(word in text for text in texts):
        raise _Broken(f"{word!r} is missing from {texts}")


def _fact(texts: list[str], *path: str | int) -> Any:
    """A value out of the JSON blocks of an answer."""
    for text in texts:
        try:
            value: Any = json.loads(text)
            for step in path:
                value = value[step]
        except (ValueError, KeyError, IndexError, TypeError):
            continue
        return value
    raise _Broken(f"{path} is missing from {texts}")


def _cut(line: str) -> str:
    line = line.replace("\n", " ")
    return line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + "…"
