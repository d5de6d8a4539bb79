"""How a step calls tools through the proxy, and sees its calls through to their ends."""

import signal
from typing import Any

import anyio

from tests.e2e.client import Answer
from tests.faults import processes, promises
from tests.faults.proxy import WAIT_S, HangError, Pending, Proxy
from tests.faults.steps import Step


class Caller:
    """Calls on one proxy. `spawned_on` are the servers that have started processes of their own."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.spawned_on: set[str] = set()

    async def servers(self) -> list[dict[str, Any]]:
        """All that is known of each; one that goes meanwhile is left out."""
        answer = await self._proxy.call("list_servers")
        names = [] if answer is None else [shown["name"] for shown in answer.json["servers"]]
        looked = [await self._proxy.call("list_servers", name=name) for name in names]
        return [
            shown
            for answer in looked
            if answer is not None and not answer.is_error
            for shown in answer.json["servers"]
        ]

    def _executing(
        self, server: str, tool: str, *, timeout_ms: int | None = None, **args: Any
    ) -> Pending:
        more = {} if timeout_ms is None else {"timeout_ms": timeout_ms}
        return self._proxy.calling("execute_tool", server=server, tool=tool, args=args, **more)

    async def _execute(self, server: str, tool: str, **how: Any) -> Answer | None:
        call = self._executing(server, tool, **how)
        await self._proxy.send(call)
        return await call.answer()

    async def _follow(self, answer: Answer | None) -> Answer | None:
        """The answer, or the result of the task that it names, once that has ended."""
        task_id = None if answer is None else promises.promoted(answer)
        if task_id is None:
            return answer
        deadline = anyio.current_time() + WAIT_S
        while anyio.current_time() < deadline:
            result = await self._proxy.call("get_task_result", task_id=task_id, timeout_ms=2000)
            if result is None or not promises.no_result_yet(result):
                return result
            await self._proxy.call("await_activity", timeout_ms=100)
        raise HangError(f"task {task_id} does not end")

    async def _signal(self, server: str, number: signal.Signals) -> int | None:
        """Send it to the process of that server; its pid, if there was one."""
        found = [shown.get("pid") for shown in await self.servers() if shown["name"] == server]
        pid = found[0] if found else None
        if pid is None or not processes.send_signal(pid, number, self._proxy.home):
            return None
        return pid


def word(step: Step, number: int = 0) -> str:
    """A word that no other call says."""
    return f"word-{step.number}-{number}"
