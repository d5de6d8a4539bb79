"""A rest: everything that is under way comes to its end, so that the books can be closed."""

import json
from typing import Any

import anyio

from tests.faults import processes
from tests.faults.backends import ConfigFile, UrlServer
from tests.faults.deeds import Deeds
from tests.faults.promises import more_descriptors
from tests.faults.proxy import WAIT_S, HangError, Proxy
from tests.faults.steps import COMMANDS, LOUD, URLS

_CORE = {*COMMANDS, *URLS, LOUD}


class Rest:
    """Brings one proxy to rest, and looks at it then."""

    def __init__(
        self, proxy: Proxy, deeds: Deeds, urls: dict[str, UrlServer], config: ConfigFile
    ) -> None:
        self._proxy = proxy
        self._deeds = deeds
        self._urls = urls
        self._config = config
        self._words = 0

    async def take(self) -> None:
        await self._end_tasks()
        await self._settle_config()
        await self._restore_servers()
        await self._let_timers_fire()
        for server in sorted(_CORE):
            await self._see_it_work(server)
        status = await self._drain()
        await self._proxy.call("list_tasks", include_completed=True)
        self._proxy.note("quiet", status | await self._look())

    async def _end_tasks(self) -> None:
        for task in await self._listed("list_tasks", "tasks"):
            await self._proxy.call("cancel_task", task_id=task["task_id"])
        for asked in await self._listed("get_elicitations", "elicitations"):
            await self._respond("elicitation", asked)
        for asked in await self._listed("get_sampling_requests", "sampling_requests"):
            await self._respond("sampling", asked)

    async def _respond(self, kind: str, asked: dict[str, Any]) -> None:
        await self._proxy.call(
            f"respond_to_{kind}", request_id=asked["request_id"], action="decline"
        )

    async def _settle_config(self) -> None:
        """A broken file is mended, and what came late goes."""
        self._config.set_late(set())
        await self._deeds.until_config_counts()

    async def _restore_servers(self) -> None:
        for behind in self._urls.values():
            if not behind.is_up:
                await behind.start()
        for server in await self._deeds.servers():
            if server["name"].startswith("added-"):
                await self._proxy.call("remove_server", name=server["name"])
        # Anew, whatever they are: what they hold then is always the same.
        doubtful = {LOUD, *URLS, *self._deeds.spawned_on}
        self._deeds.spawned_on.clear()
        deadline = anyio.current_time() + WAIT_S
        while True:
            for name in sorted(doubtful):
                await self._proxy.call("reconnect_server", name=name)
            phases = {server["name"]: server["phase"] for server in await self._deeds.servers()}
            doubtful = {name for name in _CORE if phases.get(name) != "connected"}
            if not doubtful:
                return
            if anyio.current_time() > deadline:
                raise HangError(f"servers do not come back: {phases}")

    async def _see_it_work(self, server: str) -> None:
        """With everything in order, a call has no excuse."""
        self._words += 1
        word = f"word-0-{self._words}"
        answer = await self._proxy.call(
            "execute_tool", server=server, tool="echo", args={"message": word}
        )
        if answer is None or answer.text != word:
            self._proxy.model.blame("a sound server does not answer", f"{server}: {answer!r}")

    async def _let_timers_fire(self) -> None:
        deadline = anyio.current_time() + WAIT_S
        while await self._listed("list_timers", "timers"):
            if anyio.current_time() > deadline:
                raise HangError("a timer does not fire")
            await self._proxy.call("await_activity", timeout_ms=500)

    async def _drain(self) -> dict[str, int]:
        """Until nothing is at work or left to be told, and what was closed has gone."""
        deadline = anyio.current_time() + WAIT_S
        while True:
            answer = await self._proxy.call("await_activity", timeout_ms=0)
            status = await self._status()
            is_quiet = answer is not None and not answer.told and not any(status.values())
            if (is_quiet and self._is_tidy()) or anyio.current_time() > deadline:
                return status
            await self._proxy.call("await_activity", timeout_ms=50)

    def _is_tidy(self, held: dict[str, Any] | None = None) -> bool:
        first = self._proxy.model.first_quiet
        if not first:  # a thread opens the file of requests some time after the first one
            return any((self._proxy.home / "logs").glob("requests-*.jsonl"))
        held = held or self._proxy.holdings()
        return not more_descriptors(first["descriptors"], held["descriptors"])

    async def _holdings(self) -> dict[str, Any]:
        """What it still holds when files that are open for a moment, to be written, are closed."""
        deadline = anyio.current_time() + WAIT_S
        while True:
            held = self._proxy.holdings()
            if self._is_tidy(held) or anyio.current_time() > deadline:
                return held
            await self._proxy.call("await_activity", timeout_ms=50)

    async def _look(self) -> dict[str, Any]:
        return {
            **await self._holdings(),
            "strays": await self._strays(),
            "stderr": self._proxy.new_stderr(),
            "bugs": self._proxy.bugs_in_journal(),
        }

    async def _strays(self) -> list[int]:
        """Processes outside the group of every server in use, and children that nobody buried."""
        deadline = anyio.current_time() + WAIT_S
        while True:
            in_use = {server.get("pid") for server in await self._deeds.servers()}
            alive = set(processes.at_home(self._proxy.home)) - {self._proxy.pid}
            strays = {pid for pid in alive if processes.group_of(pid) not in in_use}
            states = processes.children(self._proxy.pid).items()
            strays |= {pid for pid, state in states if state == "Z"}
            if not strays or anyio.current_time() > deadline:
                return sorted(strays)
            await self._proxy.call("await_activity", timeout_ms=100)

    async def _status(self) -> dict[str, int]:
        answer = await self._proxy.call("read_resource", server="emceepee", uri="emceepee://status")
        assert answer is not None
        status = json.loads(answer.text)
        return {
            "calls_in_flight": status["calls_in_flight"],
            "working_tasks": status["working_tasks"],
            "pending_requests": status["pending_requests"],
            "events_waiting": status["events"]["waiting"],
        }

    async def _listed(self, tool: str, key: str) -> list[dict[str, Any]]:
        answer = await self._proxy.call(tool)
        return [] if answer is None else answer.json[key]
