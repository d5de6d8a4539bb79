"""Questions over HTTP whose stream has no reader any more: asked elsewhere, never left waiting."""

import json
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.client import own_first
from tests.e2e.clients.raw import INITIALIZE, Message, entry
from tests.e2e.front_harness import (
    Event,
    HttpClient,
    RunningFront,
    calling,
    events_of,
    http_client,
    running_front,
)
from tests.front_entry import front_command
from tests.peers import plain

ANSWER = {"action": "accept", "content": {"name": "Ada", "age": 36}}
FORMS = {"elicitation": {"form": {}}}
ASK = calling("execute_tool", server="plain", tool="ask")


@pytest.fixture
def front(tmp_path: Path) -> Generator[RunningFront]:
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    quick = front_command(sweep_s=0.2)
    with running_front(tmp_path, servers=servers, python=quick) as running:
        yield running


@asynccontextmanager
async def asked_and_cut(front: RunningFront) -> AsyncIterator[tuple[HttpClient, Event]]:
    """A client whose call asks only once its stream was cut; and the last event that it saw."""
    async with http_client(front) as client:
        await client.initialize(capabilities=FORMS)
        async with client.post(ASK) as response:  # its server has to be started first
            first = await anext(events_of(response))
        yield client, first


async def question_in(events: AsyncIterator[Event]) -> Message:
    async for event in events:
        if event.message is not None and event.message.get("method") == "elicitation/create":
            return event.message
    raise AssertionError("no question")


async def answer(client: HttpClient, question: Message, begun: Event) -> None:
    """The answer reaches the server: the call, resumed, ends with it."""
    assert (await client.tell({"id": question["id"], "result": ANSWER})).status_code == 202
    async with client.get(begun.id) as resumed:
        messages = [event.message async for event in events_of(resumed)]
    assert messages[-1] is not None
    assert json.loads(own_first(messages[-1]["result"])[0]["text"]) == ANSWER


async def test_a_question_goes_to_the_stream_that_is_read(front: RunningFront) -> None:
    async with http_client(front) as client:
        await client.initialize(capabilities=FORMS)
        async with client.get() as listening:
            async with client.post(ASK) as response:
                begun = await anext(events_of(response))
            question = await question_in(events_of(listening))
            await answer(client, question, begun)


async def test_a_question_waits_for_the_stream_that_is_opened(front: RunningFront) -> None:
    async with asked_and_cut(front) as (client, begun), client.get() as listening:
        await answer(client, await question_in(events_of(listening)), begun)


async def test_a_question_that_no_stream_brings_goes_to_the_tools(front: RunningFront) -> None:
    async with asked_and_cut(front) as (client, begun):
        asked: list[Message] = []
        while not asked:
            listed = await client.call("get_elicitations")
            found = json.loads(own_first(listed)[0]["text"])["elicitations"]
            asked = [one for one in found if one.get("asked") != "person"]
        assert "name" in json.dumps(asked[0]["schema"])
        said = {"request_id": asked[0]["request_id"], **ANSWER}
        await client.call("respond_to_elicitation", **said)
        async with client.get(begun.id) as resumed:
            messages = [event.message async for event in events_of(resumed)]
        assert all("method" not in message for message in messages if message is not None)


async def test_a_client_that_begins_again_is_asked_again(front: RunningFront) -> None:
    async with http_client(front) as client:
        await client.initialize(capabilities=FORMS)
        async with client.post(ASK) as response:
            events = events_of(response)
            begun = await anext(events)
            question = await question_in(events)
        again = {"method": "initialize", "params": {**INITIALIZE, "capabilities": FORMS}}
        async with client.post(again) as response:
            assert [event async for event in events_of(response)]
        async with client.get() as listening:
            assert await question_in(events_of(listening)) == question
            await answer(client, question, begun)
