"""`emceepee demo`: the product in one minute, without any set-up.

The real proxy is started as a client would start it, with a small example server behind it, and led
through what it is for. Each step is checked: the exit code is 0 only if everything came true.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from emceepee_stdio.cli.clients.install import client_here, registered_in
from emceepee_stdio.cli.command_line import flag
from emceepee_stdio.cli.terminal import ExitCode, terminal
from emceepee_stdio.clock import Clock

_CONTEXT = ('{"events_since_last_response"', '{"pending_client_action"')
_COLUMNS = 80  # of a text in a pipe; a wide terminal has no wider one, which is hard to read
_EXIT_TIMEOUT_S = 30.0  # far longer than the proxy takes to stop its servers
_SERVER = Path(__file__).with_name("demo_server.py")


class _Broken(Exception):
    """Something did not come true."""


class _Client:
    """A client that makes one call at a time, as most do; `show` gets what it says and hears."""

    def __init__(
        self, process: subprocess.Popen[bytes], clock: Clock, show: Callable[[str], None]
    ) -> None:
        self._process = process
        self._clock = clock
        self._show = show
        self._next_id = 1
        self.spent_s = 0.0  # by the last call

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
        self._show(f"→ {tool}({shown})")
        start = self._clock.now()
        result = self._request("tools/call", {"name": tool, "arguments": arguments})
        self.spent_s = self._clock.now() - start
        texts = [str(block.get("text", "")) for block in result["content"]]
        self._show(f"← {self.spent_s * 1000:.1f} ms")
        for text in texts:
            self._show(f"  {text}")
        # For a client whose limits nobody knows, emceepee puts its context first.
        return sorted(texts, key=lambda text: text.startswith(_CONTEXT))

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


class _Story:
    """What happens, in the words of somebody who sits in front of the client."""

    def __init__(self) -> None:
        self._columns = min(terminal.columns or _COLUMNS, _COLUMNS)

    def scene(self, text: str) -> None:
        terminal.line()
        self._write(text, "", "bold cyan" if text.startswith("You:") else "bold")

    def tell(self, text: str) -> None:
        self._write(text, "  ", "")

    def show(self, text: str) -> None:
        """A message of the wire, whole; a terminal breaks it where it likes."""
        terminal.line(f"    {text}", style="dim")

    def _write(self, text: str, indent: str, style: str) -> None:
        for line in textwrap.wrap(
            text, self._columns, initial_indent=indent, subsequent_indent=indent
        ):
            terminal.line(line, style=style)


def demo(
    *,
    verbose: Annotated[bool, flag("--verbose", "-v")] = False,
) -> None:
    """See it at work: the real proxy and a small server.

    Takes a few seconds, and leaves nothing behind.

    Takes:
      verbose: Show every call and its answer, too.

    Example: emceepee demo
    """
    clock = Clock()
    story = _Story()
    start = clock.now()
    try:
        with _proxy() as process:
            _lead(_Client(process, clock, story.show if verbose else _keep_quiet), story)
    except BrokenPipeError:
        raise
    except (_Broken, OSError, KeyError, ValueError) as error:
        terminal.note(f"emceepee demo: this should not have happened: {error}")
        raise typer.Exit(ExitCode.FAILED) from None
    if process.returncode != 0:
        code = process.returncode
        terminal.note(f"emceepee demo: the proxy ended with code {code} instead of 0.")
        raise typer.Exit(ExitCode.FAILED)
    terminal.line(f"\nAll of this happened, in {clock.now() - start:.1f} s.", style="bold green")
    if not verbose:
        terminal.line("The calls behind it: emceepee demo --verbose")
    if not registered_in():
        here = client_here().key
        terminal.line(f"Next: emceepee install {here}, or see the others: emceepee install")


def _keep_quiet(_: str) -> None:
    pass


def _lead(client: _Client, story: _Story) -> None:
    story.tell("A coffee bar plays the server. The client knows nothing but tools.")
    story.scene("Your client starts, with emceepee as its only server.")
    story.tell(f"It has {client.open()} tools, and will not have to be restarted for more.")
    _add_and_use(client, story)
    _roast(client, story)
    _order(client, story)
    _crash(client, story)


def _add_and_use(client: _Client, story: _Story) -> None:
    story.scene('You: "Add the coffee bar. What do they have?"')
    added = client.call("add_server", name="bar", command=sys.executable, args=[str(_SERVER)])
    _expect(added, "coffee-bar")
    story.tell(f"The server was started in the middle of the chat, in {client.spent_s:.1f} s.")
    story.tell("The demo agreed to it. Outside of the demo, you are asked first.")
    found = client.call("list_tools", query="what is on the menu", detail="summary")
    _expect(found, "menu")
    (menu, *_) = client.call("execute_tool", server="bar", tool="menu")
    _expect([menu], "espresso")
    story.tell(f"The model searched for a tool, found `menu`, and ran it: {menu}.")


def _roast(client: _Client, story: _Story) -> None:
    story.scene('You: "Roast some beans." That takes longer than the client waits.')
    slow: dict[str, Any] = {"server": "bar", "tool": "roast", "args": {"seconds": 2}}
    task = _fact(client.call("execute_tool", **slow, timeout_ms=500), "proxy_task", "task_id")
    story.tell(f"After {client.spent_s:.1f} s the call went on as a task, and the chat with it.")
    _expect(client.call("await_activity", timeout_ms=20_000), "task_completed")
    (roasted, *_) = client.call("get_task_result", task_id=task)
    _expect([roasted], "dark brown")
    story.tell(f"Its result is not lost: {roasted}")


def _order(client: _Client, story: _Story) -> None:
    story.scene('You: "One flat white, please."')
    texts = client.call("execute_tool", server="bar", tool="order", args={"drink": "flat white"})
    task = _fact(texts, "proxy_task", "task_id")
    question = _fact(texts, "pending_client_action", "elicitations", 0)
    story.tell(f"The bar asks back, in the middle of the call: {question['message']}")
    answer = {"milk": True, "sugar": 2}
    asked = question["request_id"]
    client.call("respond_to_elicitation", request_id=asked, action="accept", content=answer)
    story.tell('You: "With milk, two lumps."')
    (served, *_) = client.call("get_task_result", task_id=task)
    _expect([served], "with milk, 2 lumps")
    story.tell(f"The answer goes back to the bar: {served}")


def _crash(client: _Client, story: _Story) -> None:
    story.scene("The bar crashes in the middle of a call.")
    (error, *_) = client.call("execute_tool", server="bar", tool="spill")
    _expect([error], "pressure lost")
    cause, _, _ = error.partition("\nThe call")  # the advice behind it is for the model
    story.tell(f"The model is told why: {cause}")
    (menu, *_) = client.call("execute_tool", server="bar", tool="menu")
    _expect([menu], "espresso")
    story.tell(f"The next call starts it again, and just works: {menu}.")


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
            # Whoever runs the demo agrees to its server.
            [sys.executable, "-m", "emceepee_stdio", "serve", "--policy", "allow"],
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
