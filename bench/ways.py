"""The ways to a backend that are measured side by side: directly, through a relay, through a proxy.

A proxy is described by a profile, a small JSON file; ours is one of them. In its values `{config}`
stands for the path of the written configuration, `{home}` for an empty directory; as whole values,
`{servers}` stands for the map of servers, `{server}`, `{tool}` and `{arguments}` for the call, and
in the command `{backend}` for the command of the only backend. Where a configuration wants a list
of servers, `entry` describes one of them, with its `{server}` and `{argv}`, and `{entries}` stands
for the list.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from bench.client import Call, Client, Failed

HERE = Path(__file__).resolve().parent
BACKEND = [sys.executable, str(HERE / "raw_backend.py")]
PROFILES = HERE / "profiles"
_ATTEMPTS = 400

Servers = Mapping[str, Sequence[str]]


def raw_servers(count: int, *options: str) -> dict[str, list[str]]:
    """So many backends of the same kind; the one that is called is named `raw`."""
    names = ["raw", *(f"raw{number}" for number in range(1, count))]
    return {name: [*BACKEND, *options] for name in names[:count]}


class Way(Protocol):
    """How the backend is reached and its tool called."""

    @property
    def name(self) -> str: ...

    def call(self, tool: str = "t", *, server: str = "raw", **arguments: Any) -> Call: ...

    def start(self, servers: Servers) -> Any:
        """A context manager: the client of a started process, with which nothing was said yet."""


class Direct:
    """Nothing between."""

    name = "direct"

    def call(self, tool: str = "t", *, server: str = "raw", **arguments: Any) -> Call:
        del server
        return Call({"name": tool, "arguments": arguments})

    @contextmanager
    def start(self, servers: Servers) -> Generator[Client]:
        with Client(self.argv(servers["raw"]), environ()) as client:
            yield client

    def argv(self, backend: Sequence[str]) -> list[str]:
        return list(backend)


class Relay(Direct):
    """A process between that only copies bytes: the floor for any proxy that is a process."""

    def __init__(self, kind: str) -> None:
        self.name = f"{kind} relay"
        self._kind = kind

    def argv(self, backend: Sequence[str]) -> list[str]:
        return [sys.executable, str(HERE / "relay.py"), self._kind, *backend]


class Proxy:
    """A stdio proxy, as its profile describes it."""

    def __init__(self, command: Sequence[str], profile: Mapping[str, Any]) -> None:
        self.name: str = profile["name"]
        self._command = list(command)
        self._profile = profile

    @classmethod
    def read(cls, command: Sequence[str], path: Path) -> "Proxy":
        profile = json.loads(path.read_text(encoding="utf-8"))
        for key in ("name", "call"):
            if key not in profile:
                raise Failed(f"the profile {path.name} lacks {key!r}")
        return cls(command, profile)

    def started_by(self, command: Sequence[str]) -> "Proxy":
        """The same proxy, started in another way."""
        return Proxy(command, self._profile)

    def with_fields(self, **fields: Any) -> "Proxy":
        """The same proxy, whose entry for each server also says this."""
        return Proxy(self._command, {**self._profile, "fields": fields})

    def call(self, tool: str = "t", *, server: str = "raw", **arguments: Any) -> Call:
        values = {"server": server, "tool": tool, "arguments": arguments}
        return Call(filled(self._profile["call"], values))

    @property
    def takes_many(self) -> bool:
        """Whether it can have more than one backend."""
        return "config" in self._profile

    def config(self, servers: Servers, *, home: str) -> Any:
        """What its configuration file says: the servers as a map, or as a list of its own form."""
        fields = self._profile.get("fields", {})
        usual = {
            name: {"command": argv[0], "args": list(argv[1:]), **fields}
            for name, argv in servers.items()
        }
        entry = self._profile.get("entry")
        own = [
            filled(entry, {"server": name, "argv": list(argv)}) for name, argv in servers.items()
        ]
        return filled(self._profile["config"], {"servers": usual, "entries": own, "home": home})

    @contextmanager
    def start(self, servers: Servers) -> Generator[Client]:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
            self.start_in(home, servers) as client,
        ):
            yield client

    @contextmanager
    def start_in(self, home: str, servers: Servers) -> Generator[Client]:
        """In a directory that is kept, with what an earlier start there has left."""
        argv, env = self.prepared(home, servers)
        with Client(argv, env) as client:
            yield client

    def prepared(
        self, home: str, servers: Servers, **more: str
    ) -> tuple[list[str], dict[str, str]]:
        """Its command and environment, once its configuration is written."""
        values: dict[str, Any] = {"home": home, "backend": servers.get("raw", []), **more}
        if self.takes_many:
            path = Path(home) / "config.json"
            if not path.exists():
                path.write_text(json.dumps(self.config(servers, home=home)), encoding="utf-8")
            values["config"] = str(path)
        argv = filled(self._command, values)
        return argv, {**environ(), **filled(self._profile.get("env", {}), values)}


def environ() -> dict[str, str]:
    """Ours, with compiled modules kept as they are for most people: a start depends on it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with its placeholders replaced; a list in a list is spliced into it."""
    if isinstance(template, dict):
        members = cast("dict[str, Any]", template)
        return {filled(key, values): filled(value, values) for key, value in members.items()}
    if isinstance(template, list):
        return _spliced(cast("list[Any]", template), values)
    if not isinstance(template, str):
        return template
    for name, value in values.items():
        if template == f"{{{name}}}":
            return value
        if isinstance(value, str):
            template = template.replace(f"{{{name}}}", value)
    return template


def _spliced(template: list[Any], values: Mapping[str, Any]) -> list[Any]:
    made: list[Any] = []
    for item in template:
        value = filled(item, values)
        if isinstance(item, str) and isinstance(value, list):
            made.extend(cast("list[Any]", value))
        else:
            made.append(value)
    return made


def ready(client: Client, made: Call) -> None:
    """Until a call comes through: a proxy may still be connecting to its backends."""
    for attempt in range(_ATTEMPTS):
        try:
            client.once(made)
        except Failed as failed:
            if attempt == _ATTEMPTS - 1 or client.process.poll() is not None:
                raise Failed(f"no call came through: {failed}") from failed
            time.sleep(0.05)
        else:
            return


OURS = Proxy(
    [sys.executable, "-m", "emceepee_stdio", "serve"],
    json.loads((PROFILES / "emceepee.json").read_text(encoding="utf-8")),
)
