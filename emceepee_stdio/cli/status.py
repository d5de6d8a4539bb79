"""`emceepee status`: the proxies that run now.

Each of them keeps a small file; memory is what the system says at this moment.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from emceepee_stdio.cli.command_line import flag
from emceepee_stdio.cli.shared_options import JsonOption
from emceepee_stdio.cli.terminal import terminal
from emceepee_stdio.clock import DAY_S, HOUR_S, MINUTE_S, Clock, iso_time
from emceepee_stdio.session import proxy_status
from emceepee_stdio.visible_text import cut, on_one_line, shell_word
from emceepee_stdio.wire.orphans import ProcessFacts, memory_of_trees, process_table

# Servers that several proxies run at the same time, each for itself: what that costs.
#
# Each session starts its own. Where they are the same, `start: auto` lets most of them be.


_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedServers:
    """So many proxies run so many servers so many times; `memory` is None where nobody tells."""

    proxies: int
    servers: int
    running: int
    memory: int | None

    def proposal(self) -> str:
        """The fact and what to do about it."""
        what = "server" if self.servers == 1 else "servers"
        held = "" if self.memory is None else f", {self.memory / _MB:.0f} MB in all"
        return (
            f"{self.proxies} proxies run the same {self.servers} {what}, {self.running} times"
            f'{held}. With `"emceepee": {{"start": "auto"}}` in the configuration, a server that '
            "is known starts on its first use."
        )


def shared_servers(
    proxies: Sequence[proxy_status.ProxyStatus], table: Mapping[int, ProcessFacts]
) -> SharedServers | None:
    """Those that start with each session and run in several; None where there are none."""
    running = [
        (proxy.pid, server.target, server.pid)
        for proxy in proxies
        for server in proxy.servers
        if server.start == "eager" and server.pid is not None
    ]
    times = Counter(target for _, target in {(pid, target) for pid, target, _ in running})
    shared = [one for one in running if times[one[1]] > 1]
    if not shared:
        return None
    return SharedServers(
        proxies=len({pid for pid, _, _ in shared}),
        servers=len({target for _, target, _ in shared}),
        running=len(shared),
        memory=memory_of_trees([pid for _, _, pid in shared], table) if table else None,
    )


_WIDE_COLUMNS = 110  # from here on there is room for the directory
_CLIENT_CHARS = 24  # of what a client calls itself
_GB = 1 << 30
_WELL = ("connected", "connecting", "idle")
_NEXT_STEPS = {"needs_sign_in": "emceepee login {}", "disabled": "emceepee config check"}
_TRY_AGAIN = "emceepee doctor {}"
_READ_LOG = "emceepee tail-logs --server {}"  # of a server that no file has for the doctor to try
# A server that a person disabled is no part of a session: this entry is broken.
_PLAIN = {"disabled": "broken"}
_STYLES = {"connected": "green", "idle": "dim", "nothing": "dim", "failed": "bold red"}


@dataclass(frozen=True, slots=True)
class _Memory:
    """Bytes that processes hold, by proxy; None where the system does not tell."""

    table: Mapping[int, ProcessFacts]

    def of_proxy(self, proxy: proxy_status.ProxyStatus) -> int | None:
        facts = self.table.get(proxy.pid)
        return None if facts is None else facts.memory

    def of_servers(self, servers: Iterable[proxy_status.ServerStatus]) -> int | None:
        pids = [server.pid for server in servers if server.pid is not None]
        return memory_of_trees(pids, self.table) if self.table else None


def status(
    *,
    servers: Annotated[bool, flag("--servers")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the running proxies.

    Shows their clients, servers, calls, tasks, questions and memory.

    Takes:
      servers: A line for each server.

    Example: emceepee status --servers
    """
    clock = Clock()
    directory = proxy_status.status_directory(os.environ)
    proxy_status.sweep(directory, clock=clock)
    proxies = proxy_status.read_running(directory)
    memory = _Memory(process_table())
    now = clock.epoch(clock.now())
    if as_json:
        shared = msgspec.to_builtins(shared_servers(proxies, memory.table))
        reported = [_reported(proxy, memory, now) for proxy in proxies]
        terminal.document({"proxies": reported, "shared_servers": shared})
    elif not proxies:
        terminal.line("No proxy is running: a client that has emceepee registered starts one.")
        terminal.line(
            "Register it with `emceepee install`, or see what earlier ones did with "
            "`emceepee tail-logs`. A session of `emceepee serve --http` is listed here after its "
            "first call."
        )
    else:
        _show(proxies, memory, now, by_server=servers)


def _show(
    proxies: Sequence[proxy_status.ProxyStatus],
    memory: _Memory,
    now: float,
    *,
    by_server: bool,
) -> None:
    if by_server:
        rows = [_server_row(proxy, server, memory) for proxy in proxies for server in proxy.servers]
        terminal.table(("PID", "SERVER", "PHASE", "DOES", "MEMORY"), rows, styles=_STYLES)
    else:
        wide = terminal.columns is None or terminal.columns >= _WIDE_COLUMNS
        heads = ("PID", "CLIENT", "UP", "SERVERS", "DOES", "MEMORY", "DIRECTORY")
        rows = [_proxy_row(proxy, memory, now) for proxy in proxies]
        columns = len(heads) if wide else len(heads) - 1
        terminal.table(heads[:columns], [row[:columns] for row in rows], styles=_STYLES)
    terminal.line(_summary(proxies, memory))
    if (shared := shared_servers(proxies, memory.table)) is not None:
        terminal.line(shared.proposal())
    for line in _unwell(proxies):
        terminal.line(line)


def _proxy_row(proxy: proxy_status.ProxyStatus, memory: _Memory, now: float) -> tuple[str, ...]:
    own, theirs = memory.of_proxy(proxy), memory.of_servers(proxy.servers)
    return (
        str(proxy.pid),
        _client(proxy),
        _span(now - proxy.started_at),
        ", ".join(f"{n} {_plain(p)}" for p, n in _phases(proxy).items()) or "none",
        _work(proxy.servers),
        _size(None if own is None else own + (theirs or 0)),
        _short_path(proxy.directory),
    )


def _server_row(
    proxy: proxy_status.ProxyStatus, server: proxy_status.ServerStatus, memory: _Memory
) -> tuple[str, ...]:
    held = memory.of_servers([server]) if server.pid else None
    return str(proxy.pid), server.name, _plain(server.phase), _work([server]), _size(held)


def _plain(phase: str) -> str:
    return _PLAIN.get(phase, phase)


def _client(proxy: proxy_status.ProxyStatus) -> str:
    """What a client calls itself is its own text."""
    text = on_one_line(f"{proxy.client_name} {proxy.client_version}".strip())
    text = cut(text, _CLIENT_CHARS)
    return f"{text} (http {on_one_line(proxy.http_session)})" if proxy.http_session else text


def _phases(proxy: proxy_status.ProxyStatus) -> dict[str, int]:
    return dict(Counter(server.phase for server in proxy.servers).most_common())


def _questions(servers: Iterable[proxy_status.ServerStatus]) -> proxy_status.OpenQuestions:
    asked = [server.questions for server in servers]
    return proxy_status.OpenQuestions(
        person=sum(q.person for q in asked), tools=sum(q.tools for q in asked)
    )


def _work(servers: Sequence[proxy_status.ServerStatus]) -> str:
    asked = _questions(servers)
    parts = [
        (sum(server.calls for server in servers), "call", ""),
        (sum(server.tasks for server in servers), "task", ""),
        (asked.person, "question", " to the person"),
        (asked.tools, "question", " to the model"),
    ]
    return ", ".join(_counted(n, noun) + more for n, noun, more in parts if n) or "nothing"


def _summary(proxies: Sequence[proxy_status.ProxyStatus], memory: _Memory) -> str:
    servers = [server for proxy in proxies for server in proxy.servers]
    own = sum(memory.of_proxy(proxy) or 0 for proxy in proxies)
    theirs = memory.of_servers(servers)
    held = "" if theirs is None else f" Memory: {_size(own)}; servers: {_size(theirs)}."
    return f"{_counted(len(proxies), 'proxy')}, {_counted(len(servers), 'server')}.{held}"


def _unwell(proxies: Sequence[proxy_status.ProxyStatus]) -> list[str]:
    """Servers that cannot be used, each once, and what to do about it."""
    found: dict[tuple[str, str, bool], list[str]] = {}
    for proxy in proxies:
        for server in proxy.servers:
            if server.phase not in _WELL:
                key = (server.name, server.phase, server.in_file)
                found.setdefault(key, []).append(str(proxy.pid))
    lines: list[str] = []
    for (name, phase, in_file), pids in found.items():
        step = _NEXT_STEPS.get(phase, _TRY_AGAIN) if in_file else _READ_LOG
        step = step.replace("{}", shell_word(name))
        what = on_one_line(f"{name}: {_plain(phase)}")
        lines.append(f"{what} (pid {', '.join(pids)}). See: {on_one_line(step)}")
    return lines


def _reported(proxy: proxy_status.ProxyStatus, memory: _Memory, now: float) -> dict[str, object]:
    return {
        "pid": proxy.pid,
        "session": proxy.session,
        "http_session": proxy.http_session or None,
        "version": proxy.version,
        "client": {"name": proxy.client_name, "version": proxy.client_version},
        "started_at": iso_time(proxy.started_at),
        "uptime_ms": max(round((now - proxy.started_at) * 1000), 0),
        "directory": proxy.directory,
        "config": proxy.config,
        "phases": _phases(proxy),
        "calls": sum(server.calls for server in proxy.servers),
        "tasks": sum(server.tasks for server in proxy.servers),
        "questions": msgspec.to_builtins(_questions(proxy.servers)),
        "memory_bytes": memory.of_proxy(proxy),
        "servers_memory_bytes": memory.of_servers(proxy.servers),
        "servers": [
            {
                **msgspec.to_builtins(server),
                "memory_bytes": memory.of_servers([server]) if server.pid else None,
            }
            for server in proxy.servers
        ],
    }


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def _span(seconds: float) -> str:
    if seconds < MINUTE_S:
        return f"{max(seconds, 0):.0f} s"
    if seconds < HOUR_S:
        return f"{seconds // MINUTE_S:.0f} min"
    if seconds < DAY_S:
        return f"{seconds // HOUR_S:.0f} h {seconds % HOUR_S // MINUTE_S:.0f} min"
    return f"{seconds // DAY_S:.0f} d {seconds % DAY_S // HOUR_S:.0f} h"


def _size(held: int | None) -> str:
    if held is None:
        return "-"
    if held < _GB:
        return f"{held / _MB:.0f} MB"
    return f"{held / _GB:.1f} GB"


def _short_path(path: str) -> str:
    home = str(Path.home())
    return f"~{path[len(home) :]}" if f"{path}/".startswith(f"{home}/") else path
