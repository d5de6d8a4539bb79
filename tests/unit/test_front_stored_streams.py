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


async def test_a_stream_can_be_resumed_by_an_event_that_had_to_go() -> None:
    store, _ = make(events=3)
    stream = StoredStream(awaited=1)
    store.add(stream, b"", retry_ms=500)
    store.add(stream, b'"progress"')
    store.add(stream, b'"answer"', answers=1)
    stream.finish()
    noise = StoredStream()
    for number in range(10):
        store.add(noise, b"%d" % number)
    for seen in ("1", "2"):
        found = store.find(seen)
        assert found is not None
        assert await rest_of(*found) == ['"answer"']
    assert store.find("4") is None  # nobody waits there for an answer


async def test_the_beginning_of_a_stream_outlasts_the_noise_of_others() -> None:
    store, _ = make(events=3)
    quiet, noisy = StoredStream(awaited=1), StoredStream(awaited=1)
    store.add(quiet, b"", retry_ms=500)
    for number in range(10_000):
        store.add(noisy, b"%d" % number)
    store.add(quiet, b'"answer"', answers=1)
    quiet.finish()
    found = store.find("1")
    assert found is not None
    assert await rest_of(*found) == ['"answer"']
    assert store.find("2") is None


async def test_what_a_client_saw_last_outlasts_calls_that_are_over() -> None:
    store, _ = make(events=10)
    live = StoredStream(awaited=1)
    store.add(live, b"", retry_ms=500)
    store.add(live, b'"seen"')
    for number in range(6_000):
        call = StoredStream(awaited=1)
        store.add(call, b"", retry_ms=500)
        store.add(call, b"%d" % number, answers=number)
        call.finish()
        assert await rest_of(call) == ["", str(number)]
    store.add(live, b'"answer"', answers=6_000)
    live.finish()
    found = store.find("2")
    assert found is not None
    assert await rest_of(*found) == ['"answer"']


async def test_an_event_leads_nowhere_once_all_behind_it_is_gone() -> None:
    store, _ = make(events=2)
    stream = StoredStream(awaited=1)
    store.add(stream, b"", retry_ms=500)
    store.add(stream, b'"answer"', answers=1)
    stream.finish()
    assert await rest_of(stream) == ["", '"answer"']
    for number in range(5):
        store.add(StoredStream(), b"%d" % number)
    assert store.find("1") is None


async def test_what_was_being_written_when_its_reader_left_is_not_read() -> None:
    store, stream = make(events=2)
    store.add(stream, b'"answer"', answers=1)
    stream.finish()
    reader = stream.take()
    written = stream.read(reader, 0)
    assert b"answer" in await anext(written)
    stream.leave(reader)
    assert [frame async for frame in written] == []
    for number in range(5):
        store.add(StoredStream(), b"%d" % number)
    assert await rest_of(stream) == ['"answer"']


async def test_in_sum_the_token_that_stores_most_gives_way_in_however_many_sessions() -> None:
    total = StoreTotal(max_events=1_000, max_bytes=3_000)
    modest = EventStore(total, max_events=100, max_bytes=10_000, owner="modest")
    kept = StoredStream(awaited=1)
    modest.add(kept, b"x" * 1_000, answers=1)
    for _ in range(10):
        spread = EventStore(total, max_events=100, max_bytes=10_000, owner="spread")
        spread.add(StoredStream(awaited=1), b"y" * 500, answers=1)
    kept.finish()
    assert total.size <= 3_000
    assert await rest_of(kept) == ["x" * 1_000]


async def test_what_is_too_much_to_be_taken_at_once_stays_unread() -> None:
    store, stream = make()
    store.add(stream, b"x" * 100, answers=1)
    stream.finish()
    assert await stream.rest(0, within=1, most=99) is None
    assert stream.read_up_to == 0
    assert (await stream.rest(0, within=1, most=1_000) or b"").endswith(b"x\n\n")


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
