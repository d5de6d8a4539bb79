"""What programs read: every answer of `--json`, held to the shapes of docs/reference/json.md."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from typer.main import get_command

from emceepee_stdio.cli.command_line import app
from emceepee_stdio.trust.store import Pending, TrustStore
from tests.e2e.cli_harness import EMCEEPEE, Ran
from tests.e2e.clients.raw import entry, proxy, until
from tests.e2e.keyring_harness import KeyringHome
from tests.peers import plain

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"
SECRET = "ghp_quietriverbank0123456789abcdefghij"
AT = "2026-01-01T00:00:00.000Z"
_ROW = re.compile(r"^\| `([^`]+)` \| ([a-z ]+) \| (.+) \|$", re.MULTILINE)
_KINDS = {
    "string": str,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "list": list,
}


class Field(NamedTuple):
    """A row of the page."""

    kinds: tuple[str, ...]
    optional: bool


class Shape(NamedTuple):
    """A section of the page: the fields by their path, `a[].b` in each element of the list a."""

    title: str
    fields: dict[str, Field]

    def check(self, value: object, path: str = "") -> set[str]:
        """That a value is as the page has it; the paths that it has."""
        if path:
            assert path in self.fields, f"{self.title}: {path} is not on the page"
            kinds = self.fields[path].kinds
            assert any(self._is(value, kind) for kind in kinds), f"{self.title}: {path}: {value!r}"
        within = [name for name in self.fields if self._parent(name) == path]
        seen = {path} if path else set()
        if isinstance(value, list) and f"{path}[]" in self.fields:
            for one in value:
                seen |= self.check(one, f"{path}[]")
        if not isinstance(value, dict) or (path and not within):
            return seen
        for name in within:
            key = name.removeprefix(path).removeprefix(".")
            assert self.fields[name].optional or key in value, f"{self.title}: no {name}: {value}"
        for key, one in value.items():
            seen |= self.check(one, f"{path}.{key}" if path else key)
        return seen

    def _parent(self, name: str) -> str:
        return name[:-2] if name.endswith("[]") else name.rpartition(".")[0]

    @staticmethod
    def _is(value: object, kind: str) -> bool:
        if kind == "number" and isinstance(value, bool):
            return False
        return isinstance(value, _KINDS[kind])


def shapes() -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.splitlines()[0].strip("`")
        fields = {
            path.rstrip("?"): Field(tuple(kinds.split(" or ")), path.endswith("?"))
            for path, kinds, _ in _ROW.findall(section)
        }
        found[title] = Shape(
            title, {"schema_version": Field(("number",), optional=False), **fields}
        )
    return found


SHAPES = shapes() if PAGE.exists() else {}


def commands_with_json(group: Any, *words: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_with_json(command, *words, name)
        elif any("--json" in param.opts for param in command.params):
            yield " ".join((*words, name))


def read(ran: Ran, title: str) -> set[str]:
    """The one document that a command printed, held to its section."""
    document = json.loads(ran.out)
    assert document["schema_version"] == 1
    return SHAPES[title].check(document)


@pytest.fixture
def home(tmp_path: Path) -> KeyringHome:
    made = KeyringHome(tmp_path / "home")
    made.write(
        {
            "plain": entry(plain(), made.path, "plain") | {"tools": {"x*": "off"}},
            "secret": {"command": "true", "env": {"GITHUB_TOKEN": SECRET}, "disabled": True},
            "broken": {"command": 5},
        }
    )
    return made


def test_every_command_with_json_has_its_shape_on_the_page():
    commands = set(commands_with_json(get_command(app)))
    assert {title.split(" --")[0] for title in SHAPES} - {"errors"} == commands


async def test_what_commands_on_the_configuration_print_is_on_the_page(home: KeyringHome):
    seen = read((await home.run("config", "show", "--json")).well(), "config show")
    assert "servers[].reason" in seen
    listed = (await home.run("config", "list", "--json")).well()
    assert SECRET not in listed.out
    assert read(listed, "config list") == SHAPES["config list"].fields.keys()
    dry = await home.run("config", "rules", "plain", "y", "ask", "--dry-run", "--json")
    assert SECRET not in dry.well().out
    read(dry, "config rules")
    read((await home.run("config", "get", "plain", "--json")).well(), "config get")
    read((await home.run("config", "get", "broken", "--json")).well(), "config get")
    read(await home.run("config", "check", "--json"), "config check")
    read((await home.run("config", "rules", "plain", "--json")).well(), "config rules")
    read((await home.run("config", "rules", "plain", "y", "ask", "--json")).well(), "config rules")
    read((await home.run("config", "expose", "plain", "a", "--json")).well(), "config expose")
    read((await home.run("config", "expose", "plain", "--json")).well(), "config expose")
    read((await home.run("secrets", "move", "--json")).well(), "secrets move")
    seen = read((await home.run("secrets", "list", "--json")).well(), "secrets list")
    assert SHAPES["secrets list"].fields.keys() == seen
    shown = await home.run("config", "show", "--json")
    assert SECRET not in shown.out


async def test_what_commands_on_clients_print_is_on_the_page(home: KeyringHome):
    cursor = home.path / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    cursor.write_text(json.dumps({"mcpServers": {"a": {"command": "b"}}}))
    seen = read((await home.run("install", "--json")).well(), "install")
    assert "clients[].names" in seen
    dry = await home.run("config", "import", "cursor", "--dry-run", "--json")
    assert "changes[].diff" in read(dry.well(), "config import")
    read((await home.run("config", "import", "cursor", "--json")).well(), "config import")
    read((await home.run("install", "cursor", "--json")).well(), "install")


async def test_what_commands_on_approvals_print_is_on_the_page(home: KeyringHome):
    store = TrustStore(home.path / "state")
    store.wait_for(Pending(digest="ab" * 32, name="s", text="Server: s", at=AT))
    seen = read((await home.run("approve", "--json")).well(), "approve")
    assert "waiting[].text" in seen
    read((await home.run("approve", "--granted", "--json")).well(), "approve --granted")


async def test_what_commands_that_ask_servers_print_is_on_the_page(home: KeyringHome):
    (await home.run("config", "expose", "plain", "echo")).well()
    seen = read(await home.run("doctor", "plain", "--json"), "doctor")
    assert "checks[].details" in seen
    read(await home.run("ls", "--json"), "ls")
    read((await home.run("call", "plain", "echo", "message=x", "--json")).well(), "call")
    read((await home.run("read", "plain", "fixture://one", "--json")).well(), "read")
    seen = read((await home.run("config", "expose", "plain", "--json")).well(), "config expose")
    assert "known_at" in seen
    seen = read((await home.run("config", "show", "--json")).well(), "config show")
    assert "servers[].exposed_as" in seen
    read((await home.run("prompt", "plain", "plain", "--json")).well(), "prompt")


async def test_what_commands_on_running_proxies_print_is_on_the_page(home: KeyringHome):
    more = {"EMCEEPEE_STATE_DIR": str(home.path / "state")}
    servers = {"plain": entry(plain(), home.path, "running")}
    with proxy(home.path, servers=servers, env=more) as running:
        running.greet()
        running.call("list_servers")
        written = home.path / "state" / "running"
        until(lambda: written.exists() and list(written.glob("*.json")), "its status")
        done = await anyio.run_process([*EMCEEPEE, "status", "--json"], env=home.environ())
        seen = SHAPES["status"].check(json.loads(done.stdout))
        assert "proxies[].servers[].phase" in seen
        running.close_stdin()
        assert running.wait() == 0
    logs = home.path / "journal"
    traced = await home.run("trace", "--json", "--log-dir", str(logs))
    assert "requests[].legs" in read(traced.well(), "trace")
    lines = (await home.run("tail-logs", "--json", "--no-follow", "--log-dir", str(logs))).well()
    for line in lines.out.splitlines():
        assert json.loads(line)["schema_version"] == 1
        SHAPES["tail-logs"].check(json.loads(line))
    assert lines.out


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["config", "get", "nope"], 2, "usage"),
        (["config", "get"], 2, "usage"),
        (["call", "nope", "x"], 2, "usage"),
        (["trace", "--slow", "x"], 2, "usage"),
        (["config", "show", "--config", "no/such/file"], 1, "config_invalid"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
async def test_an_error_is_json_too_with_the_same_exit_code(
    home: KeyringHome, words: list[str], code: int, error: str
):
    plainly = await home.run(*words)
    assert (plainly.code, plainly.out) == (code, "")
    assert plainly.err
    ran = await home.run(*words, "--json")
    assert (ran.code, ran.err) == (code, "")
    read(ran, "errors")
    told = json.loads(ran.out)["error"]
    assert told["code"] == error
    assert " ".join(told["message"].split()) in " ".join(plainly.err.split())


async def test_a_tool_that_is_not_there_is_an_error_in_json(home: KeyringHome):
    plainly = await home.run("call", "plain", "nope")
    ran = await home.run("call", "plain", "nope", "--json")
    assert ran.code == plainly.code != 0
    read(ran, "errors")
    assert json.loads(ran.out)["error"]["code"] == "tool_not_found"
