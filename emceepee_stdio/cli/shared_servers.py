"""Servers that several proxies run at the same time, each for itself: what that costs.

Each session starts its own. Where they are the same, `start: auto` lets most of them be.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emceepee_stdio.cli.report import Check
from emceepee_stdio.session.proxy_status import ProxyStatus, read_running, status_directory
from emceepee_stdio.wire.process_table import ProcessFacts, memory_of_trees, process_table

__all__ = ["SharedServers", "shared_server_checks", "shared_servers"]

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
    proxies: Sequence[ProxyStatus], table: Mapping[int, ProcessFacts]
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


def shared_server_checks() -> list[Check]:
    """For `doctor`: nothing is wrong with it, but it can be had for less."""
    found = shared_servers(read_running(status_directory(os.environ)), process_table())
    if found is None:
        return []
    return [
        Check(
            id="environment.shared_servers",
            category="environment",
            status="ok",
            summary=found.proposal(),
            details={
                "proxies": found.proxies,
                "servers": found.servers,
                "running": found.running,
                "memory_bytes": found.memory,
            },
        )
    ]
