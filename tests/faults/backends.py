"""The servers behind the proxy: how they are configured, and those behind a URL themselves."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import anyio.to_thread

from tests.e2e.client import Setting, command, server
from tests.faults.steps import LOUD
from tests.peers import SERVERS, rude

Entry = dict[str, Any]

# Ways of the loud server. It comes well through an echo in all of them.
_MODES: tuple[tuple[str, ...], ...] = (
    ("garbage",),
    ("banner",),
    ("duplicate-answers",),
    ("string-id-answers",),
    ("float-id",),
    ("no-jsonrpc",),
    ("result-and-error",),
    ("result-null",),
    ("dup-keys",),
    ("nan",),
    ("lone-surrogate",),
    ("deep",),
    ("flood", "300"),
    ("late-answers", "0.3"),
    ("withdraw", "0.1"),
    ("unknown-request",),
    ("ping-client",),
    ("crash-on-call",),
    ("grandchild-holds-stdout",),
    ("huge-line", "3000000"),
    ("endless", "300000"),
    ("never-reads",),
    ("stubborn",),
)
GOOD: tuple[Entry, ...] = (
    server(era="legacy"),
    server(era="modern"),
    command(rude("banner")),
    command(rude("stubborn")),
)
BAD: tuple[Entry, ...] = (
    {"command": "no-such-command-anywhere"},
    command(rude("exit-at-once", "3")),
    command(rude("exit-after-init")),
    command(rude("crash-loop")),
    command(rude("init-error")),
    command(rude("wrong-version")),
    command(rude("init-wrong-shape", "null")),
)

_TIMEOUTS = {
    "client_ceiling_ms": 10_000,
    "connect_ms": 10_000,
    "request_ms": 8_000,
    "client_request_ms": 600,
    "task_ttl_ms": 20_000,
}
_LIMITS = {
    "stored_bytes": 4 << 20,
    "result_bytes": 20_000,
}
_RESTART = {"base_ms": 50, "cap_ms": 400}
# What the log lines of a flood nearly are: masking must not be slow because of it.
_SECRET = {"API_TOKEN": "a" * 20_000 + "b"}
_FIXED = {
    "probe_s": 3,
    "stop_term_s": 0.2,
    "stop_kill_s": 0.4,
    "config_poll_s": 0.1,
    "events": 300,
    "event_data_bytes": 65_536,
    "finished_tasks": 400,
    "restart_stable_s": 2,
    "restart_http_cap_s": 0.4,
}


def closed_port() -> Entry:
    return {"url": "http://127.0.0.1:9/mcp"}


class UrlServer:
    """A server behind a URL that can be killed, and comes back at the same address."""

    def __init__(self, era: str) -> None:
        self._era = era
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.lock = anyio.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self._start)

    def _start(self) -> None:
        script = str(SERVERS / "plain_http.py")
        options = ["--era", self._era, "--port", str(self._port), "--hostile"]
        self._process = subprocess.Popen(
            [sys.executable, script, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.kill()


class ConfigFile:
    """The configuration of a running proxy, edited under its eyes.

    Only servers `late-…` come and go. `edition` counts the edits.
    """

    NAMES: Sequence[str] = ("late-1", "late-2", "late-3")

    def __init__(self, setting: Setting) -> None:
        self.edition = 0
        self._setting = setting
        self._fixed = dict(setting.servers)

    @property
    def late(self) -> set[str]:
        return self._setting.servers.keys() - self._fixed.keys()

    def set_late(self, names: set[str]) -> None:
        late = {name: server(era="legacy") for name in sorted(names)}
        self._setting.servers = self._fixed | late
        ours: dict[str, Any] = {"timeouts": _TIMEOUTS, "limits": _LIMITS, "restart": _RESTART}
        ours["policy"] = {"mode": "allow"}
        self._write(json.dumps({"mcpServers": self._setting.servers, "emceepee": ours}))

    def break_it(self, text: str | None) -> bool:
        """Not a configuration any more, or no file at all, if that is a change."""
        if text is None and not self._setting.config.exists():
            return False
        self._write(text)
        return True

    def _write(self, text: str | None) -> None:
        self.edition += 1
        path = self._setting.config
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)


def setting(home: Path, random: Random, urls: dict[str, UrlServer]) -> Setting:
    """A private place for a proxy, with every kind of server behind it."""
    return Setting(
        home=home,
        servers={
            "calm": server("--hostile", era="legacy", env=_SECRET),
            "keen": server("--hostile", era="modern", env=_SECRET),
            LOUD: command(rude(*random.choice(_MODES)), era="legacy"),
            **{name: {"url": behind.url} for name, behind in urls.items()},
        },
        timeouts=_TIMEOUTS,
        limits=_LIMITS,
        more={"restart": _RESTART},
        fixed=_FIXED,
    )
