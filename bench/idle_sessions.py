"""Servers that are known and not started: what lists cost from the catalogue, and idle sessions."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.client import Client, call
from bench.figures import Check, Section, Table, percentiles
from bench.processes import at_rest, descendants, resident_mb
from bench.ways import Way, environ
from tests.e2e.servers.catalogue import servers as catalogue

_MANY = Path(__file__).resolve().parent.parent / "tests" / "e2e" / "servers" / "many.py"
_SESSIONS = 10
_SERVERS = 8
_FACTOR = 1.5  # of two medians in one run, what may be noise
_LISTERS = ("tools", "resources", "resource_templates", "prompts")
_FIRST_PAGE = call("list_tools")


def idle(_ways: Sequence[Way], *, quick: bool) -> Section:
    lists = _lists(10 if quick else 60)
    modes = ("eager", "auto")
    sessions = {mode: _sessions(mode, 3 if quick else _SESSIONS) for mode in modes}
    memory, catalogued = lists["from memory"]["p50_ms"], lists["from the catalogue"]["p50_ms"]
    count = int(sessions["auto"]["sessions"])
    return Section(
        tables=[
            Table(title="list_tools over 30 servers, 1,200 tools", columns=lists),
            Table(title=f"{count} idle sessions, {_SERVERS} known servers", columns=sessions),
        ],
        checks=[
            Check(
                what="list_tools from the catalogue",
                target=f"≤ {_FACTOR} × from memory",
                figure=f"{catalogued / memory:.2f} ×",
                met=catalogued <= _FACTOR * memory,
            ),
            Check(
                what="server processes of idle sessions, auto",
                target="0",
                figure=f"{sessions['auto']['servers']:.0f}",
                met=not sessions["auto"]["servers"],
            ),
        ],
        data={**lists, **sessions},
    )


def _lists(times: int) -> dict[str, dict[str, float]]:
    names = list(catalogue())
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as home:
        _learn(home, names)
        for mode, column in (("eager", "from memory"), ("auto", "from the catalogue")):
            with _session(home, names, mode) as client:
                while b"servers_that_failed" in client.answered(_FIRST_PAGE):
                    pass
                found[column] = percentiles([client.once(_FIRST_PAGE) for _ in range(times)])
    return found


def _sessions(mode: str, count: int) -> dict[str, float]:
    """What so many sessions hold that have been shown their tools and then do nothing."""
    names = list(catalogue())[:_SERVERS]
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        _learn(home, names)
        clients = [stack.enter_context(_session(home, names, mode)) for _ in range(count)]
        for client in clients:
            while b"servers_that_failed" in client.answered(_FIRST_PAGE):
                pass
            at_rest(client.process.pid)
        servers = [pid for client in clients for pid in _servers_of(client.process.pid)]
        return {
            "sessions": float(count),
            "servers": float(len(servers)),
            "proxies_mb": sum(resident_mb(client.process.pid) for client in clients),
            "servers_mb": sum(map(resident_mb, servers)),
        }


def _servers_of(pid: int) -> list[int]:
    """Not the shell that watches over them."""
    commands = {
        one: (Path("/proc") / str(one) / "cmdline").read_bytes() for one in descendants(pid)
    }
    return [one for one, command in commands.items() if _MANY.name.encode() in command]


def _learn(home: str, names: Sequence[str]) -> None:
    with _session(home, names, "eager") as client:
        for lister in _LISTERS:
            while b"servers_that_failed" in client.answered(call(f"list_{lister}")):
                pass


def _session(home: str, names: Sequence[str], mode: str) -> Client:
    servers: Mapping[str, object] = {
        name: {"command": sys.executable, "args": [str(_MANY), name]} for name in names
    }
    config = Path(home) / f"{mode}.json"
    config.write_text(json.dumps({"mcpServers": servers, "emceepee": {"start": mode}}))
    argv = [sys.executable, "-m", "emceepee_stdio", "serve", "--config", str(config)]
    client = Client(argv, {**environ(), "HOME": home, "EMCEEPEE_STATE_DIR": f"{home}/state"})
    client.open()
    return client
