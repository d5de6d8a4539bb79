"""Hosts without a person: a fresh home, our entry as `install` writes it, one run.

They reach nothing but the model on loopback (`model_api`): it is their proxy, there is no key, and
updates and telemetry are off.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests import peers
from tests.e2e.clients.raw import until
from tests.e2e.front_harness import RunningFront
from tests.real_hosts.dialects import (
    NAMESPACE,
    Completions,
    Dialect,
    Message,
    Messages,
    Responses,
    Turn,
)
from tests.real_hosts.model_api import ModelApi, Step, model_api

HANG_S = 100.0  # far more than a run takes; one that hangs fails
EMCEEPEE = (sys.executable, "-m", "emceepee_stdio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the model saw at each turn, and what the host printed."""

    turns: Sequence[Turn]
    output: str

    @property
    def last(self) -> Turn:
        return self.turns[-1]


@dataclass
class Headless:
    """One host in a home of its own, which the runs of a test share."""

    place: Path
    servers: Mapping[str, Message]
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Sequence[str] = ()
    front: RunningFront | None = None  # to be reached over HTTP, instead of started on stdio

    key: ClassVar[str]
    dialect: ClassVar[Dialect]
    refused: ClassVar[frozenset[str]] = frozenset()  # what it wants to reach, and does without

    def run(self, *steps: Step, **env: str) -> Run:
        """Let the model take these steps, and wait for the host and all that it started to end."""
        with model_api(self.dialect, steps) as api:
            self.prepare(api)
            done = self._start(self.argv(), self.environ(api) | env)
            assert done.returncode == 0, done.stdout + done.stderr
            until(lambda: not self._processes(), "every process of the host to end")
            others = set(api.refused) - self.refused
            assert not others, f"it wanted to reach {others}"
            return Run(turns=api.turns, output=done.stdout)

    def prepare(self, api: ModelApi) -> None:
        """Write the configuration of emceepee, and its entry in the host's own file."""
        config = self.place / "config.json"
        if config.exists():
            return
        config.write_text(
            json.dumps({"mcpServers": dict(self.servers), "emceepee": dict(self.settings)})
        )
        to = ["--http", self.front.url] if self.front else ["--config", str(config)]
        words = [*EMCEEPEE, "install", self.key, "--force", *to]
        self._start(words, self.environ(api)).check_returncode()

    def argv(self) -> list[str]:
        raise NotImplementedError

    def environ(self, api: ModelApi) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place),
            "HTTP_PROXY": api.url,
            "HTTPS_PROXY": api.url,
            "NO_PROXY": "127.0.0.1",
        }

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        project = self.place / "project"
        project.mkdir(exist_ok=True)
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": -1, "stderr": -1}
        with subprocess.Popen(
            argv, env=env, cwd=project, text=True, start_new_session=True, **pipes
        ) as process:
            try:
                out, err = process.communicate(timeout=HANG_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def _processes(self) -> list[str]:
        """Those that have this home."""
        mark = f"HOME={self.place}\0".encode()
        return [path.name for path in Path("/proc").glob("[0-9]*") if _has(path / "environ", mark)]


def _has(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes()
    except OSError:  # it ended meanwhile, or is somebody else's
        return False


class ClaudeCode(Headless):
    """`claude -p`, which may use all that we have unless `options` say otherwise."""

    key = "claude-code"
    dialect = Messages()

    def argv(self) -> list[str]:
        allowed = self.options or ("--allowedTools", NAMESPACE)
        return [peers.claude_code(), "-p", "go on", "--output-format", "json", *allowed]

    def environ(self, api: ModelApi) -> dict[str, str]:
        return {
            **super().environ(api),
            "ANTHROPIC_BASE_URL": api.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # Its first turn waits for us as long as a busy machine takes to start us.
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "60000",
        }


class Codex(Headless):
    """`codex exec`, with a model that it knows: of others it cuts a result much sooner."""

    key = "codex"
    dialect = Responses()

    def argv(self) -> list[str]:
        return [peers.codex(), "exec", "--json", "--skip-git-repo-check", *self.options, "go on"]

    def prepare(self, api: ModelApi) -> None:
        file = self.place / ".codex" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        super().prepare(api)
        ours = file.read_text().partition("[mcp_servers")
        file.write_text(_CODEX.format(url=api.url) + ours[1] + ours[2])

    def environ(self, api: ModelApi) -> dict[str, str]:
        return {**super().environ(api), "MODEL_KEY": "none"}


class OpenCode(Headless):
    """`opencode run`, which runs tools of MCP servers without asking."""

    key = "opencode"
    dialect = Completions("emceepee_")
    refused = frozenset({"registry.npmjs.org:443"})  # for its plugins

    def argv(self) -> list[str]:
        return [peers.opencode(), "run", "--model", "scripted/model", *self.options, "go on"]

    def prepare(self, api: ModelApi) -> None:
        file = self.place / ".config" / "opencode" / "opencode.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        super().prepare(api)
        model = {"name": "model", "limit": {"context": 1_000_000, "output": 10_000}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{api.url}/v1", "apiKey": "none"},
            "models": {"model": model},
        }
        ours = json.loads(file.read_text())
        file.write_text(json.dumps({**ours, "provider": {"scripted": provider}}))

    def environ(self, api: ModelApi) -> dict[str, str]:
        off = ("AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")
        return {**super().environ(api), **{f"OPENCODE_DISABLE_{what}": "1" for what in off}}


class QwenCode(Headless):
    """`qwen -p` in its mode that asks nothing."""

    key = "qwen"
    dialect = Completions("mcp__emceepee__")

    def argv(self) -> list[str]:
        return [peers.qwen_code(), "--yolo", *self.options, "-p", "go on"]

    def prepare(self, api: ModelApi) -> None:
        file = self.place / ".qwen" / "settings.json"
        file.parent.mkdir(exist_ok=True)
        super().prepare(api)
        ours = json.loads(file.read_text())
        quiet = {"privacy": {"usageStatisticsEnabled": False}}
        file.write_text(json.dumps({**ours, **quiet, "general": {"enableAutoUpdate": False}}))

    def environ(self, api: ModelApi) -> dict[str, str]:
        return {
            **super().environ(api),
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"{api.url}/v1",
            "OPENAI_MODEL": "model",
        }


_CODEX = """\
model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "MODEL_KEY"
wire_api = "responses"

[analytics]
enabled = false

[features]
apps = false
plugins = false

"""
