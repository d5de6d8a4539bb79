"""Stored streams: what is kept, what goes first, and what a reader gets."""

import anyio

from emceepee_stdio.front.http.stored_streams import EventStore, StoredStream, StoreTotal


def make(
    *, events: int = 10, size: int = 1 << 20, total: StoreTotal | None = None
) -> tuple[EventStore, StoredStream]:
    total = total or StoreTotal(max_events=1_000, max_bytes=1 << 30)
    return EventStore(total, max_events=events, max_bytes=size), StoredStream()


async def rest_of(
    stream: StoredStream, place: int = 0, *, reader: object | None = None
) -> list[str]:
    """The messages of a stream that is over, from a place on."""
    frames = stream.read(reader or stream.take(), place)
    return [frame.decode().partition("data: ")[2].strip() async for frame in frames]


async def test_a_reader_gets_what_was_said_before_and_what_is_said_later() -> None:
    store, stream = make()
    store.add(stream, b'"before"')
    got: list[str] = []

    async def read() -> None:
        got.extend(await rest_of(stream))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        store.add(stream, b'"later"')
        await anyio.wait_all_tasks_blocked()
        stream.finish()
    assert got == ['"before"', '"later"']


async def test_an_event_is_found_by_its_id_and_the_rest_follows() -> None:
    store, stream = make()
    other = StoredStream()
    for number in range(4):
        store.add(stream if number % 2 else other, b"%d" % number)
    stream.finish()
    found = store.find("2")
    assert found is not None
    assert found[0] is stream
    assert await rest_of(*found) == ["3"]
    assert store.find("_GET_stream_1") is None


async def test_notifications_go_before_an_answer_that_nobody_has_read() -> None:
    store, stream = make(events=3)
    store.add(stream, b'"answer"', answers=1)
    notes = StoredStream()
    for number in range(5):
        store.add(notes, b"%d" % number)
    stream.finish()
    notes.finish()
    assert await rest_of(stream) == ['"answer"']
    assert await rest_of(notes) == ["3", "4"]
    assert store.lost_answers == 0


async def test_an_answer_that_was_read_goes_like_a_notification() -> None:
    store, stream = make(events=2)
    store.add(stream, b'"read"', answers=1)
    stream.finish()
    assert await rest_of(stream) == ['"read"']
    unread = StoredStream()
    store.add(unread, b'"unread"', answers=2)
    store.add(StoredStream(), b'"note"')
    unread.finish()
    assert store.find("1") is None
    assert await rest_of(unread) == ['"unread"']
    assert store.lost_answers == 0


async def test_a_lost_answer_is_counted_and_its_caller_told() -> None:
    store, stream = make(events=1)
    store.add(stream, b'"one"', answers="call-1")
    store.add(StoredStream(), b'"two"', answers="call-2")
    stream.finish()
    assert store.lost_answers == 1
    (told,) = await rest_of(stream)
    assert '"id":"call-1"' in told
    assert "no longer stored" in told


async def test_a_note_between_two_answers_can_go_without_them() -> None:
    store, stream = make(events=3)
    store.add(stream, b'"first"', answers=1)
    store.add(stream, b'"note"')
    store.add(stream, b'"second"', answers=2)
    store.add(StoredStream(), b'"more"')
    stream.finish()
    assert await rest_of(stream) == ['"first"', '"second"']


async def test_bytes_are_bounded_too_and_one_message_always_stays() -> None:
    store, stream = make(size=100)
    store.add(stream, b"x" * 60)
    store.add(stream, b"y" * 500, answers=1)
    stream.finish()
    assert len(store) == 1
    assert await rest_of(stream) == ["y" * 500]


async def test_in_sum_the_session_that_stores_most_gives_way() -> None:
    total = StoreTotal(max_events=10, max_bytes=1 << 20)
    modest, small = make(events=100, total=total)
    greedy, large = make(events=100, total=total)
    modest.add(small, b'"mine"')
    for number in range(50):
        greedy.add(large, b"%d" % number)
    assert total.events == 10
    assert (len(modest), len(greedy)) == (1, 9)
    greedy.close()
    assert (total.events, total.size) == (1, modest.size)


async def test_whoever_comes_later_takes_the_stream_over() -> None:
    store, stream = make()
    ended = anyio.Event()

    async def first() -> None:
        await rest_of(stream)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await anyio.wait_all_tasks_blocked()
        reader = stream.take()
        second = stream.read(reader, 0)
        store.add(stream, b'"for the second"')
        assert b"for the second" in await anext(second)
        await ended.wait()
        assert stream.is_read
        stream.leave(reader)
        assert [frame async for frame in second] == []
        assert not stream.is_read


async def test_a_connection_that_ends_late_does_not_end_the_one_that_took_its_stream_over() -> None:
    store, stream = make()
    first, second = stream.take(), stream.take()
    got: list[str] = []

    async def resume() -> None:
        got.extend(await rest_of(stream, reader=second))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resume)
        await anyio.wait_all_tasks_blocked()
        stream.leave(first)
        await anyio.wait_all_tasks_blocked()
        assert stream.is_read
        store.add(stream, b'"answer"', answers=1)
        stream.finish()
    assert got == ['"answer"']
