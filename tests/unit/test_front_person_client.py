"""Asking the person behind the client, in both eras, on a clock of our own."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.app import environment_of
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Config
from emceepee_stdio.front.carried_questions import CallLine
from emceepee_stdio.front.client_requests import ClientRequests, RequestStates
from emceepee_stdio.front.person_client import PersonClient
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.person import Choice, ClientRequest, Decision, InputRequired
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.codec import Malformed, Notification, Request, RequestId
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.peer import Peer

WITHIN = 600.0
LEGACY = "2025-11-25"
WAIT_S = 45.0
FAST, READ = 0.2, 1.0  # seconds in which nobody answers, and in which somebody may
ALWAYS, ONCE = "Yes, and do not ask again", "Yes, this time"


def yes(decision: str = ALWAYS) -> dict[str, Any]:
    return {"action": "accept", "content": {"decision": decision}}


def question(digest: str = "d", *lines: str, request: ClientRequest | None = None) -> Choice:
    lines, request = lines or ("run", "Beware."), request or ClientRequest()
    return Choice(title="May it?", lines=lines, digest=digest, within=WAIT_S, request=request)


def person_behind(
    peer: Peer,
    clock: Clock,
    tasks: anyio.abc.TaskGroup,
    *,
    version: str | None = LEGACY,
    environ: dict[str, str] | None = None,
) -> PersonClient:
    config, protocol = Config(), Protocol()
    protocol.version = version
    protocol.modes = frozenset({"form"})
    runtime = Runtime(
        config,
        clock=clock,
        ids=Ids(clock),
        journal=Journal.silent(clock),
        environment=environment_of(config.settings, environ or {}),
    )
    line = CallLine(calls={}, bind=lambda *_: None, ask_back=lambda *_: None)
    client, states = ClientRequests(peer), RequestStates(clock)
    return PersonClient(runtime, protocol, client, line, states, tasks=tasks)


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
    """The person behind a client that is this test."""

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        clock = Clock(monotonic=trio.current_time, wall=lambda: 1e9 + trio.current_time())
        self.clock = clock
        self.lines: list[bytes] = []
        self.late: list[Decision] = []
        self.troubled = 0
        self.deaf = Deaf()
        self.peer = Peer(handler=self.deaf, write=self.lines.append)
        self.person = person_behind(self.peer, clock, tasks)
        self.decisions: list[Decision] = []

    async def confirm(self, digest: str = "d", *lines: str) -> Decision:
        async def on_late(decision: Decision) -> None:
            self.late.append(decision)

        def on_ask() -> None:
            self.troubled += 1

        asked = question(digest, *lines)
        decision = await self.person.confirm(asked, on_ask=on_ask, on_late=on_late)
        self.decisions.append(decision)
        return decision

    def asked(self) -> list[Any]:
        return [json.loads(line) for line in self.lines if b"elicitation/create" in line]

    async def read(self) -> None:
        """As long as somebody takes to read the question."""
        await settle()
        await anyio.sleep(READ)

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


def test_the_question_is_one_choice_below_all_of_its_lines():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm, "d", "run it", "Beware.", "Server s")
        await settle()
        (asked,) = wire.asked()
        assert asked["params"]["mode"] == "form"
        assert asked["params"]["message"] == "run it\nBeware.\nServer s"
        assert asked["params"]["requestedSchema"] == {
            "type": "object",
            "properties": {
                "decision": {
                    "type": "string",
                    "title": "May it?",
                    "oneOf": [{"const": v, "title": v} for v in ("No", ONCE, ALWAYS)],
                    "default": "No",
                }
            },
            "required": ["decision"],
        }

    virtually(main)


@pytest.mark.parametrize(
    "lines",
    [
        ("x" * 110, "Beware."),
        ("run", "x" * 110),
        ("run", "Beware.", "x" * 110),
        ("漢" * 55, "Beware."),
        ("run", "Beware.", "Server s", "one too many"),
    ],
    ids=["first", "second", "third", "wide letters", "four lines"],
)
def test_what_a_host_does_not_show_whole_is_not_asked(lines: tuple[str, ...]):
    async def main(wire: Wire, _: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm("d", *lines) is Decision.TOO_LONG
        assert wire.asked() == []
        assert wire.troubled == 0

    virtually(main)


def test_what_just_fits_is_asked():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm, "d", "x" * 109, "漢" * 54, "y" * 109)
        await settle()
        assert len(wire.asked()) == 1

    virtually(main)


@pytest.mark.parametrize(
    ("result", "decision"),
    [
        (yes(ALWAYS), Decision.AGREED),
        (yes(ONCE), Decision.AGREED_ONCE),
        (yes("No"), Decision.REFUSED),
        (yes(""), Decision.REFUSED),
        (yes("yes, this time"), Decision.REFUSED),
        ({"action": "accept"}, Decision.REFUSED),
        ({"action": "accept", "content": None}, Decision.REFUSED),
        ({"action": "accept", "content": {}}, Decision.REFUSED),
        ({"action": "accept", "content": {"decision": True}}, Decision.REFUSED),
        ({"action": "accept", "content": {"decision": [ALWAYS]}}, Decision.REFUSED),
        ({"action": "accept", "content": {"remember": True}}, Decision.REFUSED),
        ({"action": "accept", "content": ALWAYS}, Decision.REFUSED),
        ({"action": "decline"}, Decision.REFUSED),
        ({"action": "decline", "content": {"decision": ALWAYS}}, Decision.REFUSED),
        ({"action": "cancel"}, Decision.REFUSED),
        ({"action": "ACCEPT", "content": {"decision": ALWAYS}}, Decision.REFUSED),
        ({"action": True, "content": {"decision": ALWAYS}}, Decision.REFUSED),
        ({"action": ["accept"]}, Decision.REFUSED),
        ({"content": {"decision": ALWAYS}}, Decision.REFUSED),
        ({}, Decision.REFUSED),
        (None, Decision.REFUSED),
        ("accept", Decision.REFUSED),
        (["accept"], Decision.REFUSED),
        (5, Decision.REFUSED),
    ],
    ids=str,
)
def test_only_the_two_yes_are_an_agreement(result: object, decision: Decision):
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        await wire.read()
        wire.say(wire.asked()[0]["id"], result=result)
        await settle()
        assert wire.decisions == [decision]
        assert wire.late == []

    virtually(main)


@pytest.mark.parametrize(
    "answer",
    [
        {"result": yes(ALWAYS)},
        {"result": yes("No")},
        {"result": {"action": "decline"}},
        {"result": {"action": "cancel"}},
        {"result": {}},
        {"error": {"code": -32601, "message": "never received of it"}},
    ],
    ids=str,
)
def test_whatever_is_answered_faster_than_anybody_reads_was_answered_by_nobody(answer: Any):
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        await settle()
        await anyio.sleep(FAST)
        wire.say(wire.asked()[0]["id"], **answer)
        await settle()
        assert wire.decisions == [Decision.AUTOMATIC]

    virtually(main)


def test_a_host_that_refuses_by_itself_is_asked_twice_and_no_more():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        for number in range(2):
            tasks.start_soon(wire.confirm, f"d{number}")
            await settle()
            wire.answer(number, action="decline")
            await settle()
        assert await wire.confirm("d2") is Decision.AUTOMATIC
        assert len(wire.asked()) == wire.troubled == 2

    virtually(main)


def test_a_client_that_answers_with_an_error_or_hangs_up_cannot_ask():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm, "one")
        tasks.start_soon(wire.confirm, "two")
        await wire.read()
        wire.say(wire.asked()[0]["id"], error={"code": -32601, "message": "never received of it"})
        await settle()
        assert wire.decisions == [Decision.CANNOT_ASK]
        wire.peer.close("hung up")
        await settle()
        assert wire.decisions == [Decision.CANNOT_ASK] * 2

    virtually(main)


def test_the_same_proposal_at_the_same_time_is_asked_once_and_answers_both():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        tasks.start_soon(wire.confirm)
        await settle()
        assert len(wire.asked()) == wire.troubled == 1
        await wire.read()
        wire.answer(**yes())
        await settle()
        assert wire.decisions == [Decision.AGREED] * 2

    virtually(main)


def test_other_proposals_are_asked_each_for_itself():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm, "one")
        tasks.start_soon(wire.confirm, "two")
        await settle()
        assert len(wire.asked()) == wire.troubled == 2
        await wire.read()
        wire.answer(1, **yes())
        await settle()
        assert wire.decisions == [Decision.AGREED]
        wire.answer(0, action="decline")
        await settle()
        assert wire.decisions == [Decision.AGREED, Decision.REFUSED]

    virtually(main)


def test_a_person_who_is_slower_than_the_client_is_still_asked_and_heard_late():
    async def main(wire: Wire, _: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        assert trio.current_time() == WAIT_S
        assert wire.late == []
        wire.answer(**yes(ONCE))
        await settle()
        assert wire.late == [Decision.AGREED_ONCE]

    virtually(main)


def test_who_asks_again_meanwhile_waits_for_the_same_answer():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        tasks.start_soon(wire.confirm)
        await settle()
        assert len(wire.asked()) == 1
        wire.answer(**yes())
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
        await wire.read()
        wire.answer(**yes())
        await settle()
        assert wire.late == [Decision.AGREED]

    async def settle_and(then: Callable[[], None]) -> None:
        await settle()
        then()

    virtually(main)


def test_a_second_answer_counts_for_nothing():
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        tasks.start_soon(wire.confirm)
        await wire.read()
        wire.answer(action="decline")
        wire.answer(**yes())
        await settle()
        assert wire.decisions == [Decision.REFUSED]
        assert wire.late == []
        assert len(wire.deaf.strays) == 1

    virtually(main)


def test_a_question_that_nobody_ever_answers_ends_and_is_taken_back():
    async def main(wire: Wire, _: anyio.abc.TaskGroup) -> None:
        assert await wire.confirm() is Decision.OPEN
        await anyio.sleep(WITHIN - WAIT_S - 1)
        assert wire.deaf.given_up == []
        await anyio.sleep(1)
        await settle()
        (question,) = wire.asked()
        assert wire.deaf.given_up == [(question["id"], "elicitation/create", "cancelled")]
        wire.answer(**yes())
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


class Modern:
    """A modern client, which makes its call again with what it was given."""

    def __init__(self, later: Later | None = None, *, waits: float = READ) -> None:
        self.later = later or Later()
        self.waits = waits
        peer = Peer(handler=Deaf(), write=lambda _: None)
        tasks = cast("anyio.abc.TaskGroup", None)  # nothing is sent
        self.person = person_behind(peer, self.later.clock, tasks, version=None)

    async def confirm(
        self, digest: str, *, state: str | None = None, answer: object = None
    ) -> Decision | InputRequired:
        async def never(_decision: Decision) -> None:
            raise AssertionError

        if state is not None:
            self.later.now += self.waits
        answers = {} if answer is None else {"approval": Raw(json.dumps(answer).encode())}
        request = ClientRequest(
            id=1,
            tool="t",
            arguments=None,
            modes=frozenset({"form"}),
            state=state,
            answers=answers,
        )
        asked = question(digest, request=request)
        try:
            return await self.person.confirm(asked, on_ask=lambda: None, on_late=never)
        except InputRequired as required:
            return required


YES = yes()


async def test_the_question_is_the_answer_and_the_next_call_brings_the_decision():
    client = Modern()
    question = await client.confirm("d")
    assert isinstance(question, InputRequired)
    asked: Any = question.requests["approval"]
    assert asked["method"] == "elicitation/create"
    assert asked["params"]["message"] == "run\nBeware."
    assert await client.confirm("d", state=question.state, answer=YES) is Decision.AGREED


@pytest.mark.parametrize("answer", [YES, yes("No"), {"action": "decline"}, {}], ids=str)
async def test_a_call_that_is_made_again_at_once_brings_nobodys_answer(answer: Any):
    client = Modern(waits=FAST)
    required = await client.confirm("d")
    assert isinstance(required, InputRequired)
    decision = await client.confirm("d", state=required.state, answer=answer)
    assert decision is Decision.AUTOMATIC


async def test_a_modern_host_that_refuses_by_itself_is_asked_twice_and_no_more():
    client = Modern(waits=0.0)
    for digest in ("one", "two"):
        required = await client.confirm(digest)
        assert isinstance(required, InputRequired)
        no = {"action": "cancel"}
        decision = await client.confirm(digest, state=required.state, answer=no)
        assert decision is Decision.AUTOMATIC
    assert await client.confirm("three") is Decision.AUTOMATIC


async def test_a_state_counts_once():
    client = Modern()
    question = await client.confirm("d")
    assert isinstance(question, InputRequired)
    assert await client.confirm("d", state=question.state, answer=YES) is Decision.AGREED
    again = await client.confirm("d", state=question.state, answer=YES)
    assert isinstance(again, InputRequired)
    assert again.state != question.state


async def test_a_state_counts_for_what_it_was_made_for():
    client = Modern()
    question = await client.confirm("harmless")
    assert isinstance(question, InputRequired)
    swapped = await client.confirm("harmful", state=question.state, answer=YES)
    assert isinstance(swapped, InputRequired)
    assert await client.confirm("harmless", state=question.state, answer=YES) is Decision.AGREED


async def test_a_state_expires():
    later = Later()
    client = Modern(later)
    first, second = await client.confirm("d"), await client.confirm("d")
    assert isinstance(first, InputRequired)
    assert isinstance(second, InputRequired)
    later.now += 598.0
    assert await client.confirm("d", state=first.state, answer=YES) is Decision.AGREED
    later.now += 2.0
    assert isinstance(await client.confirm("d", state=second.state, answer=YES), InputRequired)


async def test_a_state_of_another_run_counts_for_nothing():
    question = await Modern().confirm("d")
    assert isinstance(question, InputRequired)
    other = await Modern().confirm("d", state=question.state, answer=YES)
    assert isinstance(other, InputRequired)


async def test_no_letter_of_a_state_can_be_changed():
    later = Later()
    states = RequestStates(later.clock)
    state = states.keep("approval", "d")
    for i, letter in enumerate(state):
        other = "A" if letter != "A" else "B"
        assert states.spend(state[:i] + other + state[i + 1 :], "d") is None
    expires, _, rest = state.partition(":")
    assert states.spend(f"{float(expires) + 600}:{rest}", "d") is None
    later.now += 5.0
    assert states.spend(state, "d") == 5.0


@pytest.mark.parametrize("state", ["", ":", "::", "nan:x:y", "1e999:x:y", "x" * 10_000, "é:ü:ß"])
async def test_a_state_that_was_never_ours_is_no_state(state: str):
    client = Modern()
    assert RequestStates(Later().clock).spend(state, "d") is None
    assert isinstance(await client.confirm("d", state=state, answer=YES), InputRequired)


async def test_an_answer_without_a_state_and_a_state_without_an_answer_are_nothing():
    client = Modern()
    assert isinstance(await client.confirm("d", answer=YES), InputRequired)
    question = await client.confirm("d")
    assert isinstance(question, InputRequired)
    assert isinstance(await client.confirm("d", state=question.state), InputRequired)
    assert await client.confirm("d", state=question.state, answer=YES) is Decision.AGREED


async def test_nothing_is_kept_of_a_state_that_is_spent_or_has_expired():
    later = Later()
    states = RequestStates(later.clock)
    for _ in range(100):
        assert states.spend(states.keep("approval", "d"), "d") == 0.0
        states.keep("approval", "d")
    later.now += 601.0
    states.keep("roots", "roots")
    assert repr(states) == "<RequestStates 1 kept>"


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18"])
@pytest.mark.parametrize("behind_http", [False, True])
def test_where_no_yes_may_stand_none_is_offered_and_none_is_taken(
    version: str, *, behind_http: bool
) -> None:
    async def main(wire: Wire, tasks: anyio.abc.TaskGroup) -> None:
        environ = {BEHIND_HTTP: "1"} if behind_http else {}
        wire.person = person_behind(wire.peer, wire.clock, tasks, version=version, environ=environ)
        tasks.start_soon(wire.confirm)
        await wire.read()
        offered = json.dumps(wire.asked()[0])
        assert ONCE in offered
        assert (ALWAYS in offered) is not behind_http
        wire.answer(**yes(ALWAYS))
        await settle()
        assert wire.decisions == [Decision.AGREED_ONCE if behind_http else Decision.AGREED]

    virtually(main)
