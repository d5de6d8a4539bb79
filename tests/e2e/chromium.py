"""A real browser without a screen, driven over its DevTools protocol on two pipes.

Whatever the page complains about (errors, exceptions, violations of its policy) and wherever it
reaches to is kept, so that a test can ask that there was none. Waiting is done in the page: a
promise there looks again with every frame.
"""

import base64
import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.peers import PeerMissingError

WAIT_S = 60.0
LOOK_S = 40.0  # in the page, so that it is the page that says what was waited for
_FIRST_FREE_FD = 10  # 3 and 4 are what the browser reads and writes
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--window-size=1440,900",
)
_KEY_CODES = {
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}

_ON_PIPES = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

Message = dict[str, Any]


class Chromium:
    """One browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = (_high(fd) for fd in os.pipe())
        self._in, theirs_out = (_high(fd) for fd in os.pipe())
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        flags = [*_FLAGS, *root, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_PIPES, str(theirs_in), str(theirs_out), program, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self._answers: queue.Queue[Message] = queue.Queue()
        self._number = 0
        self._session: str | None = None
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self._attach()

    def send(self, method: str, **params: Any) -> Message:
        """A command, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        whole = json.dumps(message).encode() + b"\0"
        while whole:
            whole = whole[os.write(self._out, whole) :]
        while (answer := self._answers.get(timeout=WAIT_S)).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; what it promises is waited for."""
        given = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in given, given["exceptionDetails"]
        return given["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait in the page until an expression is true; its value. A page that is left meanwhile
        takes its promises with it, so the wait goes on in the next one."""
        script = f"""new Promise((resolve, reject) => {{
            const end = performance.now() + {LOOK_S * 1000};
            const look = () => {{
                let value = false;
                try {{ value = {condition}; }} catch {{ }}
                if (value) return resolve(value);
                if (performance.now() > end) return reject(new Error("waited in vain"));
                setTimeout(look, 20);
            }};
            look();
        }})"""
        while True:
            try:
                return self.run(script)
            except AssertionError as error:
                if "navigated" not in str(error) and "context" not in str(error):
                    raise AssertionError(f"waited in vain for {condition}: {error}") from None

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {} if len(key) > 1 else {"text": key}
            code = _KEY_CODES.get(key, 0)
            about = {"key": key, "windowsVirtualKeyCode": code}
            self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, x, y, button="left", clickCount=1)

    def drag(self, selector: str, start: float, end: float) -> None:
        """From one share of its width to another."""
        box = self._box(selector)
        y = box["y"] + box["height"] / 2
        begin, stop = (box["x"] + box["width"] * share for share in (start, end))
        self._mouse("mousePressed", begin, y, button="left", clickCount=1)
        self._mouse("mouseMoved", (begin + stop) / 2, y, button="left")
        self._mouse("mouseMoved", stop, y, button="left")
        self._mouse("mouseReleased", stop, y, button="left", clickCount=1)

    def wheel(self, selector: str, turn: float, *, ctrl: bool = False) -> None:
        x, y = self._middle(selector)
        self._mouse("mouseWheel", x, y, deltaX=0, deltaY=turn, modifiers=2 if ctrl else 0)

    def hover(self, selector: str) -> None:
        self._mouse("mouseMoved", *self._middle(selector))

    def theme(self, name: str) -> None:
        """What the system says that the person prefers."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def accessible(self) -> list[Message]:
        """What a screen reader is told: every node that is not ignored."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [node for node in nodes if not node.get("ignored")]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        with suppress(AssertionError, queue.Empty, OSError):
            self._session = None
            self.send("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._out)
        self._reader.join(WAIT_S)
        os.close(self._in)

    def _attach(self) -> None:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")

    def _middle(self, selector: str) -> tuple[float, float]:
        box = self._box(selector)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def _box(self, selector: str) -> dict[str, float]:
        found = self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        assert found
        return self.run(
            f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()"
        )

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def _listen(self) -> None:
        rest = b""
        while True:
            try:
                data = os.read(self._in, 1 << 20)
            except OSError:
                return
            if not data:
                return
            *whole, rest = (rest + data).split(b"\0")
            for text in whole:
                message = json.loads(text)
                if "id" in message:
                    self._answers.put(message)
                else:
                    self._hear(message["method"], message["params"])

    def _hear(self, method: str, params: Message) -> None:
        if method == "Network.requestWillBeSent":
            self.addresses.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"]))
        elif method == "Audits.issueAdded":
            self.complaints.append(json.dumps(params["issue"]))


def _high(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD)
    os.close(fd)
    return moved


@contextmanager
def chromium(place: Path) -> Iterator[Chromium]:
    """A browser with a profile of its own, gone at the end."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise PeerMissingError("chromium", "apt-get install chromium, or what your system has")
    browser = Chromium(program, place / "profile")
    try:
        yield browser
    finally:
        browser.close()
