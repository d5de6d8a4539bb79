import json
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from emceepee_stdio.backends.interface import LogLine, LogSource
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import ServerNotFound
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.session.server_output import Logged, Notified
from emceepee_stdio.state.results import Results
from emceepee_stdio.state.ring import Ring
from emceepee_stdio.tools.log_tools import GetLogs, GetNotifications, get_logs, get_notifications


class Servers:
    """Knows the names of the living."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def get(self, name: str) -> str:
        if name not in self._names:
            raise ServerNotFound(f"There is no server {name!r}.")
        return name


class Around:
    """What the tools of logs are given, and a way to fill it."""

    def __init__(self, *, lines: int = 100) -> None:
        self.moments = count(1)
        self._lines = lines
        clock = Clock(monotonic=lambda: 0.0, wall=lambda: 0.0)
        session = SimpleNamespace(
            word="w0rd",
            settings=Settings(),
            clock=clock,
            state=SimpleNamespace(
                logs={},
                notifications={},
                results=Results(new_id=lambda: "R", max_bytes=10**7),
            ),
        )
        self.runtime: Any = SimpleNamespace(
            session=session, servers=Servers("a", "b", "quiet"), settings=Settings(), clock=clock
        )

    def log(self, server: str, text: str, level: str | None = None, source: str = "stderr") -> None:
        ring = self.runtime.session.state.logs.setdefault(server, Ring(self._lines))
        line = LogLine(source=LogSource(source), text=text, level=level)
        ring.append(Logged(server=server, line=line, created_at=float(next(self.moments))))

    def notify(self, server: str, number: int) -> None:
        ring = self.runtime.session.state.notifications.setdefault(server, Ring(self._lines))
        notified = Notified(server=server, method=f"n/{number}", params=None, created_at=0.0)
        ring.append(notified)

    async def logs(self, **arguments: Any) -> dict[str, Any]:
        reply = await get_logs(self.runtime, GetLogs(**arguments), _call())
        return json.loads(json.loads(reply.content)["text"])

    async def texts(self, **arguments: Any) -> list[str]:
        return [line["text"] for line in (await self.logs(**arguments))["logs"]]

    async def notices(self, **arguments: Any) -> dict[str, Any]:
        reply = await get_notifications(self.runtime, GetNotifications(**arguments), _call())
        return json.loads(json.loads(reply.content)["text"])


def _call() -> Call:
    return Call(client=CallingClient(ceiling=45.0))


async def test_the_newest_of_all_servers_come_out_first_and_in_order() -> None:
    around = Around()
    for number in range(10):
        around.log("ab"[number % 3 == 0], str(number))
    assert await around.texts(limit=4) == ["6", "7", "8", "9"]
    assert await around.texts(limit=4) == ["2", "3", "4", "5"]
    last = await around.logs(limit=4)
    assert [line["text"] for line in last["logs"]] == ["0", "1"]
    assert last["remaining"] == 0


async def test_peeking_changes_nothing_and_reading_starts_the_count_of_losses_anew() -> None:
    around = Around(lines=3)
    for number in range(5):
        around.log("a", str(number))
    for _ in range(2):
        peeked = await around.logs(peek=True, limit=2)
        assert (peeked["overwritten"], peeked["remaining"]) == (2, 1)
    assert (await around.logs())["overwritten"] == 2
    assert await around.logs() == {"logs": [], "overwritten": 0, "remaining": 0}


async def test_what_a_filter_leaves_out_stays() -> None:
    around = Around()
    around.log("a", "debug word", "debug", "protocol")
    around.log("a", "error word", "error", "protocol")
    around.log("a", "odd word", "odd", "protocol")
    around.log("a", "stderr word")
    around.log("b", "stdout word", source="stdout")
    assert await around.texts(level="warning", peek=True) == ["error word"]
    assert await around.texts(level="debug", peek=True) == ["debug word", "error word"]
    assert await around.texts(sources=["stdout"]) == ["stdout word"]
    assert await around.texts(exclude_sources=["protocol"]) == ["stderr word"]
    assert await around.texts(pattern="^ERR") == ["error word"]
    assert await around.texts() == ["debug word", "odd word"]


async def test_only_one_server_is_read_even_one_that_is_gone() -> None:
    around = Around()
    around.log("a", "of a")
    around.log("gone", "last words")
    assert await around.texts(server="gone") == ["last words"]
    assert await around.texts(server="quiet") == []
    assert await around.texts(server="a") == ["of a"]
    with pytest.raises(ServerNotFound):
        await around.logs(server="never")


async def test_notifications_are_given_once_and_within_the_limit() -> None:
    around = Around(lines=4)
    for number in range(6):
        around.notify("a", number)
    around.notify("b", 6)
    first = await around.notices(limit=3)
    assert [notice["method"] for notice in first["notifications"]] == ["n/2", "n/3", "n/4"]
    assert (first["overwritten"], first["remaining"]) == (2, 2)
    rest = await around.notices(limit=3)
    assert [notice["method"] for notice in rest["notifications"]] == ["n/5", "n/6"]
    assert (rest["overwritten"], rest["remaining"]) == (0, 0)


async def test_every_instant_has_the_same_name() -> None:
    around = Around()
    around.log("a", "line")
    around.notify("a", 1)
    [line] = (await around.logs())["logs"]
    [notice] = (await around.notices())["notifications"]
    for shown in (line, notice):
        assert shown["created_at"].startswith("1970-01-01T00:00:0")
        assert not {"at", "received_at"} & shown.keys()
