import math
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.exchange import ExchangeContext, MultiRoundTrip, required_urls
from emceepee_stdio.backends.interface import (
    BackendEvent,
    Era,
    Hello,
    Loss,
    Question,
    RemoteError,
    ServerNotification,
    Withdrawn,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CallTimeout, ProxyError, ServerDisconnected
from emceepee_stdio.wire.codec import (
    Notification,
    RequestId,
    RpcError,
    encode_error,
    encode_result,
    to_json,
)
from emceepee_stdio.wire.peer import OutgoingRequest

FORM = {"method": "elicitation/create", "params": {"message": "who?"}}
DONE = {"resultType": "complete", "content": []}
YES = b'{"action":"accept"}'


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def asks(*keys: str, state: object = None) -> dict[str, object]:
    asked: dict[str, object] = {"resultType": "input_required"}
    if keys:
        asked["inputRequests"] = dict.fromkeys(keys, FORM)
    return asked if state is None else {**asked, "requestState": state}


def url_required(*urls: str) -> RemoteError:
    data = {"elicitations": [{"mode": "url", "url": u, "elicitationId": u} for u in urls]}
    return RemoteError("server", RpcError(-32042, "URL elicitation required", Raw(to_json(data))))


class ScriptedConnection(Connection):
    """A connection to a server that answers from a script, at once."""

    def __init__(self, era: Era, clock: Clock, script: list[Any]) -> None:
        super().__init__("server", emit=self._fail, clock=clock, proxy_id="c", max_line=1000)
        self.era = era
        self.hello = Hello(era=era, protocol_version="x")
        self.script = script
        self.sent: list[dict[str, Any]] = []

    def _fail(self, event: BackendEvent) -> None:
        assert isinstance(event, ServerNotification), event

    def break_off(self, fact: str) -> None:
        self.lose(Loss(fact=fact))

    def _transmit(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        message = msgspec.json.decode(line)
        assert message["method"] == "tools/call"
        assert ("_meta" in message["params"]) is self.is_modern
        message["params"].pop("_meta", None)
        self.sent.append(message["params"])
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(answer, RemoteError):
            self._peer.take(encode_error(request_id, answer.error))
        else:
            self._peer.take(encode_result(request_id, to_json(answer)))

    def _write(self, data: bytes) -> None:
        raise AssertionError(data)


class Table:
    """A call and its rounds, with a server that answers from a script."""

    def __init__(
        self,
        *script: Any,
        era: Era = Era.MODERN,
        deadline: float = math.inf,
        limit: int = 10,
    ) -> None:
        self.asked: list[Question] = []
        self.taken_back: list[object] = []
        self.began = trio.current_time()
        self.answers: Any = lambda _: None
        clock = Clock(monotonic=trio.current_time, wall=lambda: 0.0)
        self.connection = ScriptedConnection(era, clock, list(script))
        self.request = OutgoingRequest(
            method="tools/call", params={"name": "t"}, deadline=deadline, call="the call"
        )
        unused: Any = None
        context = ExchangeContext(
            server="server",
            supervisor=unused,
            emit=self.take,
            clock=clock,
            max_rounds=limit,
            list_tools=unused,
            refusal=unused,
        )
        self.round_trips = MultiRoundTrip(context, self.connection, self.request)

    @property
    def sent(self) -> list[dict[str, Any]]:
        return self.connection.sent

    @property
    def keys(self) -> list[object]:
        return [question.key for question in self.asked]

    def take(self, event: BackendEvent) -> None:
        match event:
            case Question():
                self.asked.append(event)
                self.answers(event)
            case Withdrawn(key):
                self.taken_back.append(key)
            case _:
                raise AssertionError(event)

    async def run(self) -> Raw:
        """Make the call, and see it through."""
        return await self.round_trips.run(await self.connection.request(self.request))

    async def failure(self) -> ProxyError:
        with pytest.raises(ProxyError) as caught:
            await self.run()
        return caught.value


async def test_a_result_is_handed_on_as_the_bytes_that_it_was() -> None:
    for said in (
        b'{ "resultType":"complete" }',
        b'{"content":[]}',
        b"[1]",
        b"7",
        b'{"resultType":null}',
    ):
        assert bytes(await Table(Raw(said)).run()) == said


async def test_the_call_is_repeated_with_the_answers_of_this_round_and_the_newest_state() -> None:
    table = Table(asks("a", "b", state="s1"), asks("c", state={"odd": [1]}), asks("d"), DONE)
    table.answers = lambda question: question.respond(YES)
    await table.run()
    yes = {"action": "accept"}
    assert table.sent == [
        {"name": "t"},
        {"name": "t", "inputResponses": {"a": yes, "b": yes}, "requestState": "s1"},
        {"name": "t", "inputResponses": {"c": yes}, "requestState": {"odd": [1]}},
        {"name": "t", "inputResponses": {"d": yes}},
    ]
    assert {question.call for question in table.asked} == {"the call"}
    assert table.taken_back == []


async def test_rounds_without_a_question_wait_longer_and_longer_and_have_no_limit() -> None:
    table = Table(*[asks(state=str(n)) for n in range(20)], DONE, limit=2)
    began = trio.current_time()
    await table.run()
    assert len(table.sent) == 21
    assert trio.current_time() - began == pytest.approx(0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 15)


async def test_a_round_without_a_question_does_not_wait_past_the_deadline() -> None:
    began = trio.current_time()
    table = Table(asks(state="s"), deadline=began + 0.2)
    assert isinstance(await table.failure(), CallTimeout)
    assert trio.current_time() - began == pytest.approx(0.2)
    assert len(table.sent) == 3


async def test_more_rounds_than_allowed_end_the_call_before_the_next_question() -> None:
    table = Table(asks("a"), limit=3)
    table.answers = lambda question: question.respond(YES)
    assert "asked 4 times in a row" in str(await table.failure())
    assert len(table.asked) == 3


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"resultType": "input_required"}, "not for what"),
        ({"resultType": "input_required", "requestState": None}, "not for what"),
        ({"resultType": "input_required", "inputRequests": {}}, "not for what"),
        ({"resultType": "input_required", "inputRequests": 7}, "cannot be read"),
        ({"resultType": "input_required", "inputRequests": {"a": {}}}, "cannot be read"),
        ({"resultType": "input_required", "inputRequests": {"a": {"method": "x/y"}}}, "x/y"),
    ],
)
async def test_a_round_that_makes_no_sense_is_an_error(said: object, words: str) -> None:
    table = Table(said)
    failure = await table.failure()
    assert isinstance(failure, CallFailed)
    assert words in str(failure)
    assert table.asked == []


async def test_a_question_may_have_no_params_or_null() -> None:
    requests = {"a": {"method": "roots/list"}, "b": {"method": "roots/list", "params": None}}
    table = Table({"resultType": "input_required", "inputRequests": requests}, DONE)
    table.answers = lambda question: question.respond(b'{"roots":[]}')
    await table.run()
    assert [question.params for question in table.asked] == [None, None]


async def test_a_refusal_ends_the_call_and_takes_the_others_back() -> None:
    table = Table(asks("a", "b", "c"))

    async def refuse() -> None:
        while len(table.asked) < 3:
            await anyio.lowlevel.checkpoint()
        assert table.asked[0].respond(YES)
        assert table.asked[1].respond(RpcError(-1, "not today"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(refuse)
        failure = await table.failure()
    assert isinstance(failure, CallFailed)
    assert "not today" in str(failure)
    assert table.taken_back == [table.asked[2].key]
    assert not table.asked[2].respond(YES)


async def test_a_refusal_while_the_questions_are_still_being_put() -> None:
    table = Table(asks("a", "b"))
    table.answers = lambda question: question.respond(RpcError(-1, "too many"))
    assert "too many" in str(await table.failure())
    assert table.taken_back == []


async def test_each_question_has_a_key_of_its_own_however_the_server_names_it() -> None:
    tables = [Table(asks("a", "b"), asks("a"), DONE) for _ in range(2)]
    for table in tables:
        table.answers = lambda question: question.respond(YES)
        await table.run()
    keys = [key for table in tables for key in table.keys]
    assert len(set(keys)) == len(keys) == 6


async def test_a_refusal_to_a_url_ends_the_call_with_its_reason() -> None:
    table = Table(DONE, era=Era.LEGACY)
    table.answers = lambda question: question.respond(RpcError(-1, "not today"))
    with pytest.raises(CallFailed, match="not today"):
        await table.round_trips.consent(url_required("https://a"))
    assert table.sent == []


async def test_an_error_of_the_repeated_call_is_the_error_of_the_call() -> None:
    refusal = RemoteError("server", RpcError(-32000, "too late"))
    table = Table(asks("a"), refusal)
    table.answers = lambda question: question.respond(YES)
    failure = await table.failure()
    assert isinstance(failure, RemoteError)
    assert failure.error.message == "too late"


async def test_a_question_is_answered_once() -> None:
    table = Table(asks("a"), DONE)
    told: list[bool] = []

    def answer(question: Question) -> None:
        told.extend([question.respond(YES), question.respond(b"{}")])
        told.append(question.respond(RpcError(-1, "late")))

    table.answers = answer
    await table.run()
    assert told == [True, False, False]
    assert repr(table.asked[0]).startswith("<Question elicitation/create ")
    assert repr(table.asked[0]).endswith(" closed>")


async def test_a_deadline_that_passes_takes_the_questions_back() -> None:
    began = trio.current_time()
    table = Table(asks("a", "b"), deadline=began + 30)
    failure = await table.failure()
    assert isinstance(failure, CallTimeout)
    assert trio.current_time() - began == pytest.approx(30)
    assert table.taken_back == table.keys
    assert not table.asked[0].respond(YES)
    assert repr(table.asked[0]).endswith(" closed>")


async def test_a_caller_who_gives_up_takes_the_questions_back() -> None:
    table = Table(asks("a"))
    with anyio.move_on_after(5):
        await table.run()
    assert table.taken_back == table.keys
    assert not table.asked[0].respond(YES)


async def test_a_lost_connection_ends_the_call_without_another_word() -> None:
    table = Table(asks("a"))

    async def lose() -> None:
        await anyio.sleep(1)
        table.connection.break_off("it exited with code 9.")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        failure = await table.failure()
    assert isinstance(failure, ServerDisconnected)
    assert "exited with code 9" in str(failure)
    assert len(table.sent) == 1
    assert table.taken_back == []
    assert not table.asked[0].respond(YES)


async def test_nothing_is_asked_once_the_connection_is_lost() -> None:
    table = Table(DONE)
    table.connection.break_off("it exited with code 9.")
    with pytest.raises(ServerDisconnected, match="exited with code 9"):
        await table.round_trips.run(Raw(to_json(asks("a"))))
    with pytest.raises(ServerDisconnected, match="exited with code 9"):
        await table.round_trips.consent(url_required("https://a"))
    assert table.asked == []


async def test_an_answer_in_the_moment_of_the_loss_is_not_sent_anywhere() -> None:
    table = Table(asks("a"))

    def answer(question: Question) -> None:
        question.respond(YES)
        table.connection.close()

    table.answers = answer
    failure = await table.failure()
    assert isinstance(failure, ServerDisconnected)
    assert len(table.sent) == 1


async def test_urls_that_are_agreed_to_let_the_call_be_made_again() -> None:
    table = Table(url_required("https://b"), DONE, era=Era.LEGACY)
    table.answers = lambda question: question.respond(YES)
    result = await table.round_trips.consent(url_required("https://a", "https://c"))
    assert msgspec.json.decode(result) == DONE
    urls = [msgspec.json.decode(question.params or b"")["url"] for question in table.asked]
    assert urls == ["https://a", "https://c", "https://b"]
    assert {question.method for question in table.asked} == {"elicitation/create"}
    assert {question.call for question in table.asked} == {"the call"}
    assert table.sent == [{"name": "t"}] * 2


@pytest.mark.parametrize("said", [b'{"action":"decline"}', b'{"action":"cancel"}', b"[]", b"oops"])
async def test_a_url_that_is_not_agreed_to_leaves_the_error_as_it_was(said: bytes) -> None:
    table = Table(DONE, era=Era.LEGACY)
    table.answers = lambda question: question.respond(said)
    refusal = url_required("https://a")
    with pytest.raises(RemoteError) as caught:
        await table.round_trips.consent(refusal)
    assert caught.value is refusal
    assert table.sent == []


@pytest.mark.parametrize(("limit", "calls"), [(2, 2), (10, 3)])
async def test_urls_without_end_are_stopped(limit: int, calls: int) -> None:
    table = Table(url_required("https://a"), limit=limit, era=Era.LEGACY)
    table.answers = lambda question: question.respond(YES)
    with pytest.raises(CallFailed, match=f"asked {calls + 1} times in a row"):
        await table.round_trips.consent(url_required("https://a"))
    assert len(table.asked) == len(table.sent) == calls


def visited(elicitation: str) -> Notification:
    params = Raw(to_json({"elicitationId": elicitation}))
    return Notification("notifications/elicitation/complete", params)


async def test_a_call_is_made_again_when_the_server_says_that_every_url_was_visited() -> None:
    table = Table(DONE, era=Era.LEGACY)
    table.answers = lambda question: question.respond(YES)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(table.round_trips.consent, url_required("a", "b"))
        for told in ("b", "c", "a"):
            await anyio.sleep(1)
            assert table.sent == []
            table.connection.on_notification(visited(told))
    assert table.sent == [{"name": "t"}]
    assert anyio.current_time() - table.began == pytest.approx(3)


async def test_a_visit_that_is_told_before_the_person_agreed_counts_once() -> None:
    table = Table(url_required("a"), DONE, era=Era.LEGACY)

    def visit_and_agree(question: Question) -> None:
        if len(table.asked) == 1:
            table.connection.on_notification(visited("a"))
        question.respond(YES)

    table.answers = visit_and_agree
    await table.round_trips.consent(url_required("a"))
    assert anyio.current_time() - table.began == pytest.approx(60), "the second was not told"


async def test_without_a_word_the_call_is_made_again_after_a_minute_or_at_its_own_end() -> None:
    for deadline, expected in ((math.inf, 60), (7.0, 7)):
        table = Table(DONE, era=Era.LEGACY, deadline=trio.current_time() + deadline)
        table.answers = lambda question: question.respond(YES)
        with suppress(CallTimeout):
            await table.round_trips.consent(url_required("a"))
        assert anyio.current_time() - table.began == pytest.approx(expected)


async def test_a_loss_during_the_visit_ends_the_call() -> None:
    table = Table(DONE, era=Era.LEGACY)

    def agree_and_break(question: Question) -> None:
        question.respond(YES)
        trio.lowlevel.current_trio_token().run_sync_soon(
            table.connection.break_off, "it exited with code 9."
        )

    table.answers = agree_and_break
    with pytest.raises(ServerDisconnected, match="exited with code 9"):
        await table.round_trips.consent(url_required("a"))
    assert anyio.current_time() - table.began == pytest.approx(0)


@pytest.mark.parametrize(
    "data",
    [
        *(None, b"7", b"{}", b'{"elicitations":7}', b"[[["),
        *(b'{"elicitations":[7]}', b'{"elicitations":[{"message":"Your password?"}]}'),
    ],
)
def test_only_a_list_of_urls_is_one(data: bytes | None) -> None:
    raw = None if data is None else Raw(data)
    assert required_urls(RemoteError("server", RpcError(-32042, "x", raw))) is None
    assert required_urls(RemoteError("server", RpcError(-32000, "x", Raw(b"{}")))) is None
