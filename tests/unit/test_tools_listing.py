import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from msgspec import UNSET
from trio.testing import MockClock

from emceepee_stdio.backends.interface import Kind
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import BrokenServer
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import (
    CallFailed,
    InvalidArguments,
    InvalidPattern,
    ProxyError,
    ServerNotFound,
)
from emceepee_stdio.journal import Secrets
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.tools.listing import Found, gather, having, matching, page, pattern

Item = Mapping[str, object]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Server:
    """A backend that answers with its list, an error, or never."""

    rules = None

    def __init__(
        self,
        name: str,
        answer: Sequence[Item] | ProxyError | None = None,
        *,
        phase: Phase = Phase.CONNECTED,
        known: Sequence[Item] | None = None,
        last_error: str | None = None,
    ) -> None:
        self.name, self.answer, self.phase = name, answer, phase
        self.lists = SimpleNamespace(known={Kind.TOOLS: known}.__getitem__, cut=set())
        self._last_error = last_error
        self.asked = 0

    def snapshot(self) -> Any:
        return SimpleNamespace(last_error=self._last_error)

    async def list_all(self, _kind: str, *, within: float) -> Sequence[Item]:
        self.asked += 1
        if isinstance(self.answer, ProxyError):
            raise self.answer
        if self.answer is None:
            await anyio.sleep_forever()
        assert self.answer is not None
        return self.answer


class Servers(dict[str, Server]):
    """Links by name; walking over them gives the links."""

    broken: dict[str, BrokenServer]

    def __iter__(self) -> Any:
        return iter(self.values())


def runtime(*servers: Server, now: Any = None, broken: Sequence[BrokenServer] = ()) -> Any:
    known = Servers({server.name: server for server in servers})
    known.broken = {entry.name: entry for entry in broken}
    clock = Clock(monotonic=now or (lambda: 0.0), wall=lambda: 0.0)
    session = SimpleNamespace(secrets=Secrets(), state=SimpleNamespace(starting=set()))
    pins = SimpleNamespace(enforced=False)
    return SimpleNamespace(
        servers=known, settings=Settings(), clock=clock, session=session, pins=pins
    )


def call(ceiling: float = 45.0) -> Call:
    return Call(client=CallingClient(ceiling=ceiling))


def tools(*names: str) -> list[Item]:
    return [{"name": name} for name in names]


async def test_every_server_is_asked_at_once_and_the_order_is_theirs() -> None:
    here = runtime(Server("b", tools("2", "3")), Server("a", tools("1")))
    found = await gather(here, "tools", ".*", call())
    assert [(server, item["name"]) for server, item in found.items] == [
        ("b", "2"),
        ("b", "3"),
        ("a", "1"),
    ]
    assert found.failures() == {}


async def test_a_server_that_fails_or_hangs_is_named_and_what_is_known_of_it_is_shown() -> None:
    here = runtime(
        Server("well", tools("w")),
        Server("failing", CallFailed("It is closed."), known=tools("old")),
        Server("hanging"),
        broken=[
            BrokenServer(name="broken", reason="args is no list"),
            BrokenServer(name="off", reason="disabled", switched_off=True),
        ],
    )
    found = await gather(here, "tools", ".*", call())
    assert [item["name"] for _, item in found.items] == ["w", "old"]
    assert set(found.failed) == {"failing", "hanging", "broken"}
    assert "It is closed." in found.failed["failing"]
    assert "did not answer within 10 s" in found.failed["hanging"]
    assert found.failed["broken"].startswith("broken is broken: args is no list.")


async def test_servers_that_are_not_used_are_among_the_names_with_a_mark() -> None:
    here = runtime(
        Server("well", tools("w")),
        broken=[
            BrokenServer(name="odd", reason="args is no list"),
            BrokenServer(name="off", reason="disabled", switched_off=True),
        ],
    )
    with pytest.raises(
        ServerNotFound, match=r"There are: well, odd \(broken\), off \(disabled\)\."
    ):
        await gather(here, "tools", "zzz", call())


async def test_nobody_waits_longer_than_the_client() -> None:
    found = await gather(runtime(Server("hanging")), "tools", ".*", call(ceiling=3.0))
    assert "within 3 s" in found.failed["hanging"]


async def test_a_server_that_was_given_up_is_not_started_again_for_a_list() -> None:
    failed = Server("failed", tools("t"), phase=Phase.FAILED, last_error="no such program")
    found = await gather(runtime(failed), "tools", ".*", call())
    assert failed.asked == 0
    assert found.failed == {"failed": "no such program"}


async def test_a_very_name_is_that_server_only_and_else_it_is_a_pattern() -> None:
    here = runtime(Server("git", tools("1")), Server("github", tools("2")), Server("c++", []))
    assert [server for server, _ in (await gather(here, "tools", "git", call())).items] == ["git"]
    assert len((await gather(here, "tools", "GIT", call())).items) == 2
    assert (await gather(here, "tools", "c++", call())).items == []
    with pytest.raises(ServerNotFound, match="github"):
        await gather(here, "tools", "githob", call())
    assert (await gather(runtime(), "tools", ".*", call())).items == []


def test_a_reason_is_cut() -> None:
    found = Found()
    found.fail("s", "x" * 10_000)
    assert len(found.failed["s"]) == 400


def test_pages_are_complete_and_without_repeats() -> None:
    items: list[dict[str, object]] = [{"n": n} for n in range(103)]
    seen: list[dict[str, object]] = []
    cursor: Any = UNSET
    while True:
        shown, rest = page(items, dict, limit=10, cursor=cursor)
        assert rest["total"] == 103
        seen += shown
        if "next_cursor" not in rest:
            break
        cursor = rest["next_cursor"]
    assert seen == items


def test_a_page_is_bounded_in_bytes_but_never_empty() -> None:
    items: list[dict[str, object]] = [{"text": "x" * 10_000} for _ in range(10)]
    shown, rest = page(items, dict, limit=500, cursor=UNSET)
    assert len(json.dumps(shown)) < 24_100
    assert rest["next_cursor"] == str(len(shown)) == "2"
    huge: list[dict[str, object]] = [{"text": "x" * 100_000}, {"text": "y"}]
    shown, rest = page(huge, dict, limit=500, cursor=UNSET)
    assert (len(shown), rest["next_cursor"]) == (1, "1")


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.0", " 1", "\u0661"])
def test_a_cursor_that_is_not_ours_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidArguments):
        page([{"n": 1}], dict, limit=1, cursor=cursor)


def test_a_cursor_beyond_the_end_shows_nothing() -> None:
    assert page([{"n": 1}], dict, limit=1, cursor="9" * 5_000) == ([], {"total": 1})


async def test_items_match_by_any_of_their_texts() -> None:
    items = [("s", {"name": "a", "title": "Zebra"}), ("s", {"name": "b"}), ("s", {"name": None})]
    here = runtime()
    texts = having("name", "title")
    assert await matching(here, items, pattern(here, "zebra|^b$"), texts) == items[:2]
    assert await matching(here, items, pattern(here, ".*"), texts) == items


async def test_a_pattern_that_is_slow_in_sum_is_refused_and_others_get_their_turn() -> None:
    ticks = iter(range(10**9))
    here = runtime(now=lambda: next(ticks) * 0.05)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        names = [str(number) for number in range(1_000)]
        with pytest.raises(InvalidPattern, match="1000 ms in all"):
            await matching(here, names, pattern(here, "x"), lambda name: [name])
        assert turns >= 10
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("text", ["(", "(" * 400, "x" * 501, "(?r)x", "a{1,2}{3,4}{5,6}" * 30])
def test_a_pattern_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidPattern):
        pattern(runtime(), text)
