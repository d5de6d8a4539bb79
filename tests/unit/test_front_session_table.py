"""The sweep over HTTP sessions, also when their processes do not answer."""

from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio.testing

from emceepee_stdio.clock import Clock
from emceepee_stdio.front.http.access import HttpTokens
from emceepee_stdio.front.http.http_replies import HttpLimits
from emceepee_stdio.front.http.http_session import HttpSession
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.stored_streams import EventStore

pytestmark = pytest.mark.anyio

HUNG_S = 5.0  # for which the front waits for a process that does not answer
LIMITS = HttpLimits(idle_s=0.0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


async def test_sessions_that_hang_are_asked_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(_: HttpSession) -> bool:
        await anyio.sleep(HUNG_S)
        return True

    monkeypatch.setattr(HttpSession, "is_busy", hang)
    renewed: list[float] = []
    async with anyio.create_task_group() as tasks:
        clock = Clock(monotonic=anyio.current_time)
        table = SessionTable([], LIMITS, HttpTokens(None), clock=clock, tasks=tasks, note=print)
        for number in range(LIMITS.sessions):
            store = EventStore(table.total, max_events=1, max_bytes=1)
            hung = HttpSession(
                name="", owner="someone", path=str(number), store=store, is_shared=True
            )
            table._sessions[hung.key] = hung
        watchdog = table._watchdog
        monkeypatch.setattr(watchdog, "renew", lambda: renewed.append(anyio.current_time()))
        with anyio.move_on_after(5 * (LIMITS.sweep_s + HUNG_S)):
            await table.sweep()
        assert len(list(table)) == LIMITS.sessions
    pauses = [after - before for before, after in pairwise(renewed)]
    assert len(renewed) >= 5
    assert max(pauses) <= LIMITS.sweep_s + HUNG_S
