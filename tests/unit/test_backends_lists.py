from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.backends.interface import Kind, RemoteError
from emceepee_stdio.backends.lists import Lists, differ
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CallTimeout
from emceepee_stdio.wire.codec import RpcError, to_json

TOOLS = Kind.TOOLS


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def page(*names: str, **fields: object) -> dict[str, object]:
    return {"tools": [{"name": name} for name in names], **fields}


class Server:
    """Answers tools/list from a script: a page, an error, or something to wait for."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.cursors: list[object] = []

    async def fetch(self, params: Mapping[str, object] | None) -> Raw:
        self.cursors.append((params or {}).get("cursor"))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, Callable):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        return Raw(to_json(answer))


class Reader:
    """Reads the tools, and remembers their names."""

    def __init__(self, lists: Lists, server: Server, *, told: bool = True) -> None:
        self.lists, self.server, self.told = lists, server, told
        self.read: list[list[object]] = []

    async def __call__(self, within: float = 60.0) -> list[object]:
        items = await self.lists.get(
            TOOLS, self.server.fetch, told_of_changes=self.told, within=within
        )
        self.read.append([item["name"] for item in items])
        return self.read[-1]


def reader(*script: Any, told: bool = True) -> Reader:
    clock = Clock(monotonic=trio.current_time, wall=lambda: 0.0)
    return Reader(Lists("server", clock), Server(*script), told=told)


def error(code: int) -> RemoteError:
    return RemoteError("server", RpcError(code, "no"))


@pytest.mark.parametrize(
    ("fields", "told", "asked_after"),
    [
        ({"ttlMs": 0}, True, None),
        ({"ttlMs": 0}, False, 0),
        ({}, True, None),
        ({}, False, 0),
        ({"ttlMs": 5000}, True, 5),
        ({"ttlMs": 5000}, False, 5),
        ({"ttlMs": -5}, False, 0),
        ({"ttlMs": True}, False, 0),
        ({"ttlMs": "5000"}, False, 0),
        ({"ttlMs": 10**30}, False, 24 * 3600),
        ({"ttlMs": 1e300}, False, 24 * 3600),
    ],
)
async def test_a_list_is_kept_as_long_as_the_server_lets_it_live(
    fields: dict[str, object],
    told: bool,  # noqa: FBT001
    asked_after: float | None,
) -> None:
    read = reader(page("a", **fields), told=told)
    await read()
    if asked_after is None:
        await anyio.sleep(23 * 3600)
        await read()
        assert len(read.server.cursors) == 1
        return
    if asked_after:
        await anyio.sleep(asked_after - 0.001)
        await read()
        assert len(read.server.cursors) == 1
        await anyio.sleep(0.001)
    await read()
    assert len(read.server.cursors) == 2


async def test_the_shortest_life_of_the_pages_counts() -> None:
    read = reader(page("a", ttlMs=9000, nextCursor="2"), page("b", ttlMs=1000))
    assert await read() == ["a", "b"]
    await anyio.sleep(1)
    await read()
    assert len(read.server.cursors) > 2


async def test_a_cursor_may_be_empty_and_null_is_the_end() -> None:
    read = reader(page("a", nextCursor=""), page("b", nextCursor=None))
    assert await read() == ["a", "b"]
    assert read.server.cursors == [None, ""]


async def test_a_cursor_that_comes_again_ends_in_an_error() -> None:
    read = reader(page("a", nextCursor="x"), page("b", nextCursor="y"), page("c", nextCursor="x"))
    with pytest.raises(CallFailed, match="does not come to an end of tools/list: 3 items"):
        await read()
    assert read.lists.known(TOOLS) is None


async def test_a_method_that_is_not_there_is_an_empty_list_but_not_in_the_middle() -> None:
    read = reader(error(-32601))
    assert await read() == []
    assert read.lists.known(TOOLS) == ()
    read = reader(page("a", nextCursor="2"), error(-32601))
    with pytest.raises(RemoteError):
        await read()


@pytest.mark.parametrize(
    "answer",
    [
        *({}, {"tools": {}}, {"tools": None}, [], "text", None),
        *(Raw(b"garbage"), Raw(b"[" * 5_000), Raw(b'{"tools":' + b"[" * 5_000)),
    ],
)
async def test_an_answer_without_the_list_is_an_error(answer: object) -> None:
    read = reader(answer)
    with pytest.raises(CallFailed, match="answered tools/list without tools"):
        await read()
    assert read.lists.known(TOOLS) is None
    assert read.lists.tools is None


async def test_what_is_no_object_is_no_item() -> None:
    read = reader({"tools": [1, None, "text", [{"name": "a"}], {"name": "b"}]})
    assert await read() == ["b"]


async def test_tools_are_found_by_name_as_they_were_seen_last() -> None:
    tools = [{"name": "a", "n": 1}, {"name": 7}, {"n": 2}, {"name": ["x"]}, {"name": "b"}]
    read = reader({"tools": tools}, page("c"))
    assert read.lists.tools is None
    assert read.lists.tool("a") is None
    await read.lists.get(TOOLS, read.server.fetch, told_of_changes=True, within=60.0)
    assert list(read.lists.tools or ()) == ["a", "b"]
    assert read.lists.tool("a") == {"name": "a", "n": 1}
    assert read.lists.tool("c") is None
    read.lists.drop(TOOLS)
    assert list(read.lists.tools or ()) == ["a", "b"]
    await read()
    assert list(read.lists.tools or ()) == ["c"]
    read.lists.nothing(TOOLS)
    assert read.lists.tools == {}


async def test_the_lists_of_other_kinds_are_not_tools() -> None:
    read = reader({"prompts": [{"name": "p"}]})
    await read.lists.get(Kind.PROMPTS, read.server.fetch, told_of_changes=True, within=60.0)
    assert read.lists.tools is None


async def test_callers_at_the_same_time_share_one_fetch_even_of_what_is_not_kept() -> None:
    async def slowly() -> dict[str, object]:
        await anyio.sleep(10)
        return page("a")

    read = reader(slowly, told=False)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(read)
    assert read.read == [["a"]] * 5
    assert len(read.server.cursors) == 1


async def test_who_waits_for_the_fetch_of_another_keeps_to_its_own_time() -> None:
    read = reader(trio.sleep_forever)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, 1000.0)
        await anyio.wait_all_tasks_blocked()
        began = trio.current_time()
        with pytest.raises(CallTimeout, match="did not answer tools/list within 3 s"):
            await read(3.0)
        assert trio.current_time() - began == pytest.approx(3.0)
        tasks.cancel_scope.cancel()


async def test_a_fetch_that_is_given_up_is_taken_over_by_who_waits_for_it() -> None:
    read = reader(trio.sleep_forever, page("a"))
    async with anyio.create_task_group() as tasks:
        impatient = anyio.CancelScope()

        async def give_up() -> None:
            with impatient:
                await read()

        tasks.start_soon(give_up)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        impatient.cancel()
    assert read.read == [["a"]]
    assert len(read.server.cursors) == 2


async def test_a_refusal_is_shared_by_all_who_wait() -> None:
    async def refuse() -> Exception:
        await anyio.sleep(1)
        return error(-32000)

    read = reader(refuse)
    refused: list[RemoteError] = []

    async def try_it() -> None:
        try:
            await read()
        except RemoteError as caught:
            refused.append(caught)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(try_it)
    assert len(refused) == 4
    assert len(read.server.cursors) == 1


async def test_a_change_during_a_fetch_is_not_covered_up() -> None:
    first = anyio.Event()

    async def old() -> dict[str, object]:
        await first.wait()
        return page("old")

    read = reader(old, page("new"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        read.lists.drop(TOOLS)
        assert await read() == ["new"]
        first.set()
    assert read.read == [["new"], ["old"]]
    assert [item["name"] for item in read.lists.known(TOOLS) or ()] == ["new"]
    assert await read() == ["new"]
    assert len(read.server.cursors) == 2


async def test_what_was_known_stays_known_until_something_newer_is() -> None:
    read = reader(page("a"), page("b"))
    assert read.lists.known(TOOLS) is None
    await read()
    read.lists.drop_all()
    assert [item["name"] for item in read.lists.known(TOOLS) or ()] == ["a"]
    assert read.lists.counts() == {"tools": 1}
    assert await read() == ["b"]
    assert read.lists.nothing(TOOLS) == ()
    assert read.lists.all_known() == {TOOLS: ()}
    assert repr(read.lists) == "<Lists server {'tools': 0}>"


def test_lists_differ_by_their_items_and_not_by_their_order() -> None:
    a, b = {"name": "a", "x": {"y": 1, "z": 2}}, {"uri": "u://b", "name": "b"}
    assert not differ([a, b], [b, {"x": {"z": 2, "y": 1}, "name": "a"}])
    assert differ([a, b], [a])
    assert differ([a], [{**a, "x": {}}])
    assert differ([], [a])
