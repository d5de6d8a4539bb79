"""Asking the person behind the client, in both eras, on a clock of our own."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.front.client_requests import ClientRequests
from emceepee_stdio.front.consent import (
    ConsentRequests,
    ElicitedConsent,
    InputRequiredConsent,
    StateSigner,
)
from emceepee_stdio.session.client_calls import Decision, InputRequired
from emceepee_stdio.wire.codec import Malformed, Notification, Request, RequestId
from emceepee_stdio.wire.peer import Peer

WITHIN = 600.0
PATIENCE = 45.0


class Deaf:
    """Hears only what becomes of our own questions."""

    def __init__(self) -> None:
        self.strays: list[str] = []
        self.given_up: list[tuple[RequestId, str, str]] = []

    def on_request(self, request: Request, origin: RequestId | None) -> None: ...
    def on_failed(self, request: Request, error: Exception) -> None: ...
    def on_notification(self, notification: Notification) -> None: ...
    def on_cancelled(self, request_id: RequestId) -> None: ...
    def on_malformed(self, message: Malformed) -> None: ...
    def on_noise(self, text: str) -> None: ...
    def on_stray(self, request_id: str) -> None:
        self.strays.append(request_id)

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        self.given_up.append((request_id, method, reason))


class Wire:
    """ConsentRequests to a client that is this test."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        clock = Clock(monotonic=trio.current_time, wall=lambda: 1e9 + trio.current_time())
        self.lines: list[bytes] = []
        self.late: list[bool] = []
        self.troubled = 0
        self.deaf = Deaf()
        self.peer = Peer(handler=self.deaf, write=self.lines.append)
        questions = ConsentRequests(ClientRequests(self.peer, clock), clock, tasks, within=WITHIN)
        self.person = ElicitedConsent(questions, within=PATIENCE)
        self.decisions: list[Decision] = []

    async def confirm(self, digest: str = "d", text: str = "Server: s") -> Decision:
        async def on_late(kept: bool) -> None:  # noqa: FBT001 - the way of a callback
            self.late.append(kept)

        def on_ask() -> None:
            self.troubled += 1

        decision = await self.person.confirm(text, digest, on_ask=on_ask, on_late=on_late)
        self.decisions.append(decision)
        return decision

    def asked(self) -> list[Any]:
        return [json.loads(line) for line in self.lines if b"elicitation/create" in line]

    def say(self, request_id: object, **answer: Any) -> None:
        message = {"jsonrpc": "2.0", "id": request_id, **answer}
        self.peer.feed(json.dumps(message).encode() + b"\n")

    def answer(self, index: int = 0, **result: Any) -> None:
        self.say(self.asked()[index]["id"], result=result)


async def settle() -> None:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


def virtually(main: Callable[[Wire, anyio.abc.TaskGroup], Awaitable[None]]) -> None:
    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            await main(Wire(tasks), tasks)
            tasks.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_question_is_a_form_with_the_whole_text():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        text = "Server: s\nCommand: " + "x" * 15_000
        tasks.start_soon(wire.confirm, "d", text)
        await settle()
        (question,) = wire.asked()
        assert question["params"]["mode"] == "form"
        assert question["params"]["message"].endswith(f"\n\n{text}")
        assert "emceepee" in question["params"]["message"].split("\n")[0]
        assert question["params"]["requestedSchema"]["properties"].keys() == {"remember"}

    virtually(main)


@pytest.mark.parametrize(
    ("result", "decision"),
    [
        ({"action": "accept"}, Decision.AGREED),
        ({"action": "accept", "content": {"remember": True}}, Decision.AGREED),
        ({"action": "accept", "content": {}}, Decision.AGREED),
        ({"action": "accept", "content": {"remember": False}}, Decision.AGREED_ONCE),
        ({"action": "decline"}, Decision.REFUSED),
        ({"action": "cancel"}, Decision.REFUSED),
        ({"action": "ACCEPT"}, Decision.REFUSED),
        ({"action": True}, Decision.REFUSED),
        ({"action": ["accept"]}, Decision.REFUSED),
        ({"content": {"remember": True}}, Decision.REFUSED),
        ({}, Decision.REFUSED),
        (None, Decision.REFUSED),
        ("accept", Decision.REFUSED),
        (["accept"], Decision.REFUSED),
        (5, Decision.REFUSED),
    ],
    ids=str,
)
def test_only_a_plain_accept_is_an_agreement(result: object, decision: Decision):
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        await settle()
        wire.say(wire.asked()[0]["id"], result=result)
        await settle()
        assert wire.decisions == [decision]
        assert wire.late == []

    virtually(main)


def test_a_client_that_answers_with_an_error_or_hangs_up_cannot_ask():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm, "one")
        tasks.start_soon(wire.confirm, "two")
        await settle()
        wire.say(wire.asked()[0]["id"], error={"code": -32601, "message": "never heard of it"})
        await settle()
        assert wire.decisions == [Decision.CANNOT_ASK]
        wire.peer.close("hung up")
        await settle()
        assert wire.decisions == [Decision.CANNOT_ASK] * 2

    virtually(main)


def test_the_same_wish_at_the_same_time_is_asked_once_and_answers_both():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        tasks.start_soon(wire.confirm)
        await settle()
        assert len(wire.asked()) == wire.troubled == 1
        wire.answer(action="accept")
        await settle()
        assert wire.decisions == [Decision.AGREED] * 2

    virtually(main)


def test_other_wishes_are_asked_each_for_itself():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm, "one")
        tasks.start_soon(wire.confirm, "two")
        await settle()
        assert len(wire.asked()) == wire.troubled == 2
        wire.answer(1, action="accept")
        await settle()
        assert wire.decisions == [Decision.AGREED]
        wire.answer(0, action="decline")
        await settle()
        assert wire.decisions == [Decision.AGREED, Decision.REFUSED]

    virtually(main)


def test_a_person_who_is_slower_than_the_client_is_still_asked_and_heard_late():
    async def main(wire: Wire, _: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        assert trio.current_time() == PATIENCE
        assert wire.late == []
        wire.answer(action="accept", content={"remember": False})
        await settle()
        assert wire.late == [False]

    virtually(main)


def test_who_asks_again_meanwhile_waits_for_the_same_answer():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        tasks.start_soon(wire.confirm)
        await settle()
        assert len(wire.asked()) == 1
        wire.answer(action="accept")
        await settle()
        assert wire.decisions == [Decision.OPEN, Decision.AGREED]
        assert wire.late == [], "it was not late for everybody"

    virtually(main)


def test_a_late_refusal_is_no_agreement():
    async def main(wire: Wire, _: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        wire.answer(action="decline")
        await settle()
        assert wire.late == []

    virtually(main)


def test_a_call_that_is_cancelled_leaves_its_question_open():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        with anyio.CancelScope() as scope:
            tasks.start_soon(settle_and, scope.cancel)
            await wire.confirm()
        assert scope.cancelled_caught
        assert wire.decisions == []
        wire.answer(action="accept")
        await settle()
        assert wire.late == [True]

    async def settle_and(then: Callable[[], None]) -> None:
        await settle()
        then()

    virtually(main)


def test_a_second_answer_counts_for_nothing():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        await settle()
        wire.answer(action="decline")
        wire.answer(action="accept")
        await settle()
        assert wire.decisions == [Decision.REFUSED]
        assert wire.late == []
        assert len(wire.deaf.strays) == 1

    virtually(main)


def test_a_question_that_nobody_ever_answers_ends_and_is_taken_back():
    async def main(wire: Wire, _: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        await anyio.sleep(WITHIN - PATIENCE - 1)
        assert wire.deaf.given_up == []
        await anyio.sleep(1)
        await settle()
        (question,) = wire.asked()
        assert wire.deaf.given_up == [(question["id"], "elicitation/create", "timeout")]
        wire.answer(action="accept")
        await settle()
        assert wire.late == [], "it came after the question was taken back"
        assert wire.deaf.strays == [], "and its answer is no surprise"

    virtually(main)


def test_so_many_questions_are_open_at_a_time_and_no_more():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        for i in range(10):
            tasks.start_soon(wire.confirm, f"d{i}")
        await settle()
        assert await wire.confirm("one more") is Decision.CANNOT_ASK
        tasks.start_soon(wire.confirm, "d0")
        await settle()
        assert len(wire.asked()) == wire.troubled == 10
        wire.answer(action="decline")
        await settle()
        tasks.start_soon(wire.confirm, "one more")
        await settle()
        assert len(wire.asked()) == 11

    virtually(main)


# The modern era


class Later:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now)


async def confirm(
    seals: StateSigner, digest: str, *, state: str | None = None, answer: object = None
) -> Decision | InputRequired:
    async def never(_: bool) -> None:  # noqa: FBT001 - the way of a callback
        raise AssertionError

    responses = None if answer is None else {"approval": Raw(json.dumps(answer).encode())}
    person = InputRequiredConsent(seals, state=state, responses=responses)
    try:
        return await person.confirm("Server: s", digest, on_ask=lambda: None, on_late=never)
    except InputRequired as question:
        return question


YES = {"action": "accept"}


async def test_the_question_is_the_answer_and_the_next_call_brings_the_decision():
    seals = StateSigner(Later().clock)
    question = await confirm(seals, "d")
    assert isinstance(question, InputRequired)
    asked: Any = question.requests["approval"]
    assert asked["method"] == "elicitation/create"
    assert asked["params"]["message"].endswith("\n\nServer: s")
    assert await confirm(seals, "d", state=question.state, answer=YES) is Decision.AGREED


async def test_a_state_counts_once():
    seals = StateSigner(Later().clock)
    question = await confirm(seals, "d")
    assert isinstance(question, InputRequired)
    assert await confirm(seals, "d", state=question.state, answer=YES) is Decision.AGREED
    again = await confirm(seals, "d", state=question.state, answer=YES)
    assert isinstance(again, InputRequired)
    assert again.state != question.state


async def test_a_state_counts_for_what_it_was_made_for():
    seals = StateSigner(Later().clock)
    question = await confirm(seals, "harmless")
    assert isinstance(question, InputRequired)
    swapped = await confirm(seals, "harmful", state=question.state, answer=YES)
    assert isinstance(swapped, InputRequired)
    assert await confirm(seals, "harmless", state=question.state, answer=YES) is Decision.AGREED


async def test_a_state_expires():
    later = Later()
    seals = StateSigner(later.clock)
    first, second = await confirm(seals, "d"), await confirm(seals, "d")
    assert isinstance(first, InputRequired)
    assert isinstance(second, InputRequired)
    later.now += 599.0
    assert await confirm(seals, "d", state=first.state, answer=YES) is Decision.AGREED
    later.now += 2.0
    assert isinstance(await confirm(seals, "d", state=second.state, answer=YES), InputRequired)


async def test_a_state_of_another_run_counts_for_nothing():
    question = await confirm(StateSigner(Later().clock), "d")
    assert isinstance(question, InputRequired)
    other = await confirm(StateSigner(Later().clock), "d", state=question.state, answer=YES)
    assert isinstance(other, InputRequired)


async def test_no_letter_of_a_state_can_be_changed():
    later = Later()
    seals = StateSigner(later.clock)
    state = seals.seal("d")
    for i, letter in enumerate(state):
        other = "A" if letter != "A" else "B"
        assert not seals.opens(state[:i] + other + state[i + 1 :], "d")
    expires, _, rest = state.partition(":")
    assert not seals.opens(f"{float(expires) + 600}:{rest}", "d")
    assert seals.opens(state, "d")


@pytest.mark.parametrize("state", ["", ":", "::", "nan:x:y", "1e999:x:y", "x" * 10_000, "é:ü:ß"])
async def test_a_state_that_was_never_ours_is_no_state(state: str):
    seals = StateSigner(Later().clock)
    assert not seals.opens(state, "d")
    assert isinstance(await confirm(seals, "d", state=state, answer=YES), InputRequired)


async def test_an_answer_without_a_state_and_a_state_without_an_answer_are_nothing():
    seals = StateSigner(Later().clock)
    assert isinstance(await confirm(seals, "d", answer=YES), InputRequired)
    question = await confirm(seals, "d")
    assert isinstance(question, InputRequired)
    assert isinstance(await confirm(seals, "d", state=question.state), InputRequired)
    assert await confirm(seals, "d", state=question.state, answer=YES) is Decision.AGREED


async def test_so_many_spent_states_are_remembered_and_no_more():
    later = Later()
    seals = StateSigner(later.clock)
    for _ in range(10_005):
        assert seals.opens(seals.seal("d"), "d")
    assert repr(seals) == "<StateSigner 10000 spent>"
