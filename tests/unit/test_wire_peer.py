import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw

from emceepee_stdio.wire.codec import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Malformed,
    Notification,
    Request,
    RequestId,
    RpcError,
    encode_request,
    to_json,
)
from emceepee_stdio.wire.peer import (
    Closed,
    OnProgress,
    Outcome,
    OutgoingRequest,
    Overdue,
    Peer,
    TooLarge,
    method_not_found,
)

NEVER = 1e9


@dataclass
class Heard:
    """A handler that keeps everything, in order; `given_up` apart, because nobody said it."""

    everything: list[Any] = field(default_factory=list[Any])
    given_up: list[tuple[RequestId, str, str]] = field(
        default_factory=list[tuple[RequestId, str, str]]
    )
    origins: list[RequestId | None] = field(default_factory=list["RequestId | None"])
    then: Callable[[Any], None] = lambda _: None

    def on_request(self, request: Request, origin: RequestId | None) -> None:
        self.origins.append(origin)
        self._keep(request)

    def on_failed(self, request: Request, error: Exception) -> None:
        self.everything.append(("failed", request.id, type(error)))

    def on_notification(self, notification: Notification) -> None:
        self._keep(notification)

    def on_cancelled(self, request_id: RequestId) -> None:
        self._keep(("cancelled", request_id))

    def on_malformed(self, message: Malformed) -> None:
        self._keep(message)

    def on_noise(self, text: str) -> None:
        self._keep(("noise", text))

    def on_stray(self, request_id: str) -> None:
        self._keep(("stray", request_id))

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        self.given_up.append((request_id, method, reason))

    def _keep(self, what: Any) -> None:
        self.everything.append(what)
        self.then(what)


class Side:
    """One peer, what it received, and what it wrote."""

    def __init__(self, **options: Any) -> None:
        self.received = Heard()
        self.lines: list[bytes] = []
        self.peer = Peer(handler=self.received, write=self.lines.append, **options)

    def expect(
        self,
        on_done: Callable[[Outcome], None],
        method: str = "m",
        *,
        deadline: float = NEVER,
        on_progress: OnProgress | None = None,
        call: object = None,
    ) -> RequestId | None:
        request = OutgoingRequest(
            method=method, deadline=deadline, on_progress=on_progress, call=call
        )
        return self.peer.expect(request, on_done)

    def ask(self, method: str = "m", **options: Any) -> list[Outcome]:
        done: list[Outcome] = []
        self.expect(done.append, method, **options)
        return done

    def hear(self, *messages: Any) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.peer.feed(line + b"\n")

    def written(self) -> list[Any]:
        assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in self.lines)
        messages = [json.loads(line) for line in self.lines]
        self.lines.clear()
        return messages

    def told(self) -> list[Any]:
        told, self.received.everything = self.received.everything, []
        return told

    def given_up(self) -> list[tuple[RequestId, str, str]]:
        given_up, self.received.given_up = self.received.given_up, []
        return given_up


@pytest.fixture
def side() -> Side:
    return Side()


def answered(message_id: Any, result: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "result": result}


def asked(message_id: Any, method: str = "m") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "method": method}


def told(method: str, params: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def cancelled(message_id: Any) -> dict[str, Any]:
    return told("notifications/cancelled", {"requestId": message_id, "reason": "r"})


# Asking


def test_a_request_gets_the_number_that_could_be_read_before(side: Side):
    for number in (1, 2, 3):
        assert side.peer.next_id == number
        assert side.expect(lambda _: None) == number
        assert side.peer.waits_for(number)
    assert side.peer.statistics().sent == 3
    assert side.written() == [], "who asks writes it"


def test_answers_find_their_requests_in_any_order(side: Side):
    first, second, third = side.ask(), side.ask(), side.ask()
    side.hear(answered(3, "c"), {"id": 1, "error": {"code": -1, "message": "no"}}, answered(2))
    assert (first, second, third) == ([RpcError(-1, "no")], [Raw(b"null")], [Raw(b'"c"')])
    assert side.told() == []
    assert side.peer.next_deadline() is None
    assert side.peer.statistics().sent == 0


def test_an_answer_with_the_number_as_a_string_is_forgiven(side: Side):
    done = side.ask()
    side.hear(answered("1", 5))
    assert done == [Raw(b"5")]


def test_results_arrive_as_the_bytes_that_they_were(side: Side):
    done = side.ask()
    side.hear(b'{"id":1,"result": {"a" : [1,  2.50, "\\u00e9"]} }')
    assert done == [Raw(b'{"a" : [1,  2.50, "\\u00e9"]}')]


@pytest.mark.parametrize(
    "message_id", [2, 0, -1, "x", "", "01x", "9" * 5000, "²", 10**40, "9" * 18]
)
def test_an_answer_that_nobody_waits_for_is_a_stray(side: Side, message_id: Any):
    done = side.ask()
    side.hear(answered(message_id))
    ((kind, shown),) = side.told()
    assert (kind, done) == ("stray", [])
    assert len(shown) <= 200
    assert repr(message_id).startswith(shown)


def test_a_second_answer_is_a_stray_and_changes_nothing(side: Side):
    done = side.ask()
    side.hear(answered(1, "first"), answered(1, "second"))
    assert done == [Raw(b'"first"')]
    assert side.told() == [("stray", "1")]


def test_a_broken_answer_ends_its_call(side: Side):
    done = side.ask()
    side.hear(b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"te')
    (outcome,) = done
    assert isinstance(outcome, RpcError)
    assert outcome.code == PARSE_ERROR
    assert side.told() == []


def test_a_batch_of_answers_ends_each_call(side: Side):
    first, second = side.ask(), side.ask()
    side.hear([answered(2, "b"), answered(1, "a"), answered(1, "again")])
    assert (first, second) == ([Raw(b'"a"')], [Raw(b'"b"')])
    assert len(side.told()) == 1


def test_a_callback_may_ask_again(side: Side):
    second: list[Outcome] = []

    def ask_again(_: Outcome) -> None:
        side.expect(second.append)

    side.expect(ask_again)
    side.hear(answered(1), answered(2, "x"))
    assert second == [Raw(b'"x"')]


# Giving up


def test_a_cancelled_request_is_given_up_and_its_late_answer_is_quiet(side: Side):
    done = side.ask("a")
    assert side.peer.cancel(1, "no longer needed")
    assert side.given_up() == [(1, "a", "no longer needed")]
    assert not side.peer.waits_for(1)
    side.hear(answered(1), answered("1"), {"id": 1, "error": {"code": 1, "message": "x"}})
    assert (done, side.told(), side.given_up()) == ([], [], [])
    assert side.peer.next_deadline() is None


def test_cancelling_what_has_ended_says_so_and_tells_nobody(side: Side):
    side.ask()
    side.hear(answered(1))
    assert not side.peer.cancel(1, "late")
    assert not side.peer.cancel(99, "never was")
    assert side.given_up() == []
    side.ask()
    assert side.peer.cancel(2)
    assert not side.peer.cancel(2, "twice")
    assert side.given_up() == [(2, "m", "cancelled")]


def test_an_overdue_request_ends_once_and_is_given_up(side: Side):
    late, patient = side.ask("a", deadline=10.0), side.ask("b", deadline=20.0)
    assert side.peer.next_deadline() == 10.0
    side.peer.expire(9.999)
    assert (late, side.given_up()) == ([], [])
    side.peer.expire(10.0)
    side.peer.expire(10.0)
    assert (late, patient) == ([Overdue()], [])
    assert side.given_up() == [(1, "a", "timeout")]
    side.hear(answered(1, "late"), answered(2, "in time"))
    assert (late, patient, side.told()) == ([Overdue()], [Raw(b'"in time"')], [])
    assert side.peer.next_deadline() is None


def test_overdue_requests_end_in_the_order_of_their_deadlines(side: Side):
    order: list[int] = []
    for number, deadline in enumerate([3.0, 1.0, 2.0, 1.0]):
        side.expect(lambda _, n=number: order.append(n), deadline=deadline)
    side.peer.expire(3.0)
    assert order == [1, 3, 2, 0]
    assert [request_id for request_id, _, _ in side.given_up()] == [2, 4, 3, 1]


def test_a_request_without_a_deadline_is_never_due(side: Side):
    done = side.ask(deadline=math.inf)
    assert side.peer.next_deadline() is None
    side.peer.expire(NEVER)
    assert (done, side.given_up()) == ([], [])
    assert side.peer.cancel(1, "enough")
    side.ask(deadline=math.inf)
    side.hear(answered(2))
    assert side.peer.statistics().sent == 0


def test_what_the_channel_gives_up_ends_with_its_reason_and_is_told_to_nobody(side: Side):
    done, other = side.ask(), side.ask(deadline=5.0)
    side.peer.give_up(2, TooLarge(7))
    side.peer.give_up(2, TooLarge(8))
    side.peer.give_up(99, TooLarge(9))
    assert (done, other, side.given_up()) == ([], [TooLarge(7)], [])
    assert side.peer.next_deadline() == NEVER


def test_a_callback_that_closes_in_the_middle_of_expiry_ends_everything_once(side: Side):
    ends: Counter[int] = Counter()

    def on_done(number: int) -> None:
        ends[number] += 1
        side.peer.close("enough")

    for number in range(3):
        side.expect(lambda _, n=number: on_done(n), deadline=1.0)
    side.peer.expire(1.0)
    assert ends == {0: 1, 1: 1, 2: 1}


def test_no_more_than_a_thousand_given_up_ids_are_remembered(side: Side):
    for _ in range(1_500):
        side.ask(deadline=1.0)
    side.peer.expire(1.0)
    side.hear(answered(1_500), answered(501), answered(500))
    assert side.told() == [("stray", "500")]


# Being asked


def test_questions_and_notices_are_dispatched_in_the_order_of_the_wire(side: Side):
    side.hear(asked(1, "a"), told("n1"), b"noise", asked("1", "b"), told("n2"), told("n1", [1]))
    assert side.told() == [
        Request(1, "a"),
        Notification("n1"),
        ("noise", "noise"),
        Request("1", "b"),
        Notification("n2"),
        Notification("n1", Raw(b"[1]")),
    ]


def test_an_answer_carries_the_id_of_its_request(side: Side):
    side.hear(asked("q"), asked(0), asked(""))
    assert side.peer.answer("q", b'{"a":1}')
    assert side.peer.answer(0, RpcError(-5, "no"))
    assert side.peer.answer("", Raw(b"[]"))
    assert side.written() == [
        answered("q", {"a": 1}),
        {"jsonrpc": "2.0", "id": 0, "error": {"code": -5, "message": "no"}},
        answered("", []),
    ]


def test_every_request_is_handed_on_also_one_whose_id_is_open(side: Side):
    side.hear(asked(1, "a"), asked(1, "b"))
    assert side.told() == [Request(1, "a"), Request(1, "b")]
    assert side.written() == [], "whoever knows what is open refuses it"


def test_a_request_comes_with_the_request_of_ours_that_it_belongs_to(side: Side):
    call = object()
    side.ask(call=call)
    side.ask()
    for origin in (None, 1, 2, 99):
        side.peer.take(json.dumps(asked("q")).encode(), origin)
    assert side.received.origins == [None, 1, 2, 99]
    assert [side.peer.call_of(origin) for origin in side.received.origins] == [
        None,
        call,
        None,
        None,
    ]
    side.hear(answered(1))
    assert side.peer.call_of(1) is None


def test_what_comes_in_bytes_belongs_to_no_request(side: Side):
    side.ask()
    side.hear(asked("q"))
    assert side.received.origins == [None]


def test_a_request_that_cannot_be_handled_is_told_and_the_next_are_read(side: Side):
    def fail(what: Any) -> None:
        if what in (Request(1, "m"), Notification("n")):
            raise ZeroDivisionError

    side.received.then = fail
    side.peer.feed(
        b"".join(json.dumps(m).encode() + b"\n" for m in (asked(1), told("n"), asked(2)))
    )
    first, failed, second, noise, third = side.told()
    assert (first, second, third) == (Request(1, "m"), Notification("n"), Request(2, "m"))
    assert failed == ("failed", 1, ZeroDivisionError)
    assert noise == ("noise", "a message that cannot be handled: ZeroDivisionError")


def test_the_ids_of_both_directions_are_apart(side: Side):
    done = side.ask()
    side.hear(asked(1))
    side.peer.answer(1, b'"ours"')
    assert done == []
    side.hear(answered(1, "theirs"))
    assert done == [Raw(b'"theirs"')]


def test_a_request_that_is_taken_back_is_told_by_its_id(side: Side):
    side.hear(asked(1), asked("x"), cancelled(1), cancelled("1"))
    assert side.told() == [
        Request(1, "m"),
        Request("x", "m"),
        ("cancelled", 1),
        ("cancelled", "1"),
    ]
    assert side.written() == []


@pytest.mark.parametrize("params", [{}, [], 5, {"requestId": None}, {"requestId": {"a": 1}}])
def test_a_cancellation_that_names_nothing_is_dropped(side: Side, params: Any):
    side.hear(asked(1), told("notifications/cancelled", params))
    assert side.told() == [Request(1, "m")]


def test_malformed_messages_are_handed_on_and_can_be_complained_about(side: Side):
    side.hear(b'{"id":7,"method":5}', b'{"id":null,"method":"m"}')
    messages = side.told()
    assert [message.id for message in messages] == [7, None]
    for message in messages:
        side.peer.complain(message)
    first, second = side.written()
    assert (first["id"], first["error"]["code"]) == (7, INVALID_REQUEST)
    assert "id" not in second


def test_strictness_is_passed_on():
    strict, lenient = Side(strict=True), Side()
    for side in (strict, lenient):
        side.hear(b'{"id":1,"method":"m"}')
    assert [type(what) for what in strict.told() + lenient.told()] == [Malformed, Request]


def test_an_unknown_method_has_a_polite_refusal():
    assert method_not_found("x/y") == RpcError(METHOD_NOT_FOUND, "Method not found: x/y")


# Progress


def progress(token: Any) -> dict[str, Any]:
    return told("notifications/progress", {"progressToken": token, "progress": 1})


def test_progress_reaches_the_request_that_it_belongs_to(side: Side):
    seen: list[tuple[str, Raw]] = []
    side.ask(on_progress=lambda raw: seen.append(("a", raw)))
    side.ask(on_progress=lambda raw: seen.append(("b", raw)))
    side.hear(progress(2), progress(1), progress(2))
    assert [who for who, _ in seen] == ["b", "a", "b"]
    assert json.loads(bytes(seen[0][1])) == {"progressToken": 2, "progress": 1}
    assert side.told() == []


def test_progress_that_comes_late_or_unasked_is_quiet(side: Side):
    seen: list[Raw] = []
    side.ask(on_progress=seen.append)
    side.ask()
    side.hear(answered(1), progress(1), progress(2))
    assert (seen, side.told()) == ([], [])


@pytest.mark.parametrize("token", ["1", "abc", 2, 0, -1, 10**30])
def test_progress_with_a_token_that_is_not_ours_is_a_notification(side: Side, token: Any):
    side.ask(on_progress=lambda _: pytest.fail("not for this request"))
    side.hear(progress(token))
    (notification,) = side.told()
    assert notification.method == "notifications/progress"


@pytest.mark.parametrize("params", [None, {}, [], {"progressToken": None}, "x"])
def test_progress_without_a_token_is_a_notification(side: Side, params: Any):
    side.hear(told("notifications/progress", params))
    (notification,) = side.told()
    assert notification.method == "notifications/progress"


# The end


def test_closing_ends_everything_once_and_for_all(side: Side):
    first, second = side.ask(), side.ask(deadline=1.0)
    side.hear(asked("q"))
    side.told()
    side.written()
    side.peer.close("gone")
    side.peer.close("again")
    assert (first, second) == ([Closed("gone")], [Closed("gone")])
    assert side.peer.next_deadline() is None
    side.peer.expire(NEVER)
    side.hear(answered(1), answered(2), asked(3), told("n"), b"noise", cancelled("q"))
    side.peer.end()
    assert not side.peer.answer("q", b"{}")
    assert not side.peer.answer("q", RpcError(1, "x"))
    assert not side.peer.cancel(1, "late")
    side.peer.notify("n")
    side.peer.complain(Malformed(1, INVALID_REQUEST, "x"))
    assert (first, second) == ([Closed("gone")], [Closed("gone")])
    assert (side.told(), side.written(), side.given_up()) == ([], [], [])
    assert side.peer.statistics().closed


def test_a_request_after_the_end_ends_at_once(side: Side):
    side.peer.close("gone")
    done: list[Outcome] = []
    assert side.expect(done.append) is None
    assert done == [Closed("gone")]
    assert side.peer.next_deadline() is None
    assert side.peer.statistics().sent == 0


def test_a_callback_of_the_end_may_ask_again_and_is_told_at_once(side: Side):
    outcomes: list[Outcome] = []

    def ask_again(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if len(outcomes) < 3:
            side.expect(ask_again)

    side.expect(ask_again)
    side.peer.close("gone")
    assert outcomes == [Closed("gone")] * 3


def test_what_follows_a_close_in_the_same_bytes_is_not_dispatched(side: Side):
    side.received.then = lambda _: side.peer.close("enough")
    lines = [asked(1), told("n"), answered(5), asked(2)]
    side.peer.feed(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert side.told() == [Request(1, "m")]
    side = Side()
    side.received.then = lambda _: side.peer.close("enough")
    side.hear([asked(1), asked(2)])
    assert side.told() == [Request(1, "m")]


def test_the_last_line_counts_even_without_its_newline(side: Side):
    done = side.ask()
    side.peer.feed(b'{"id":1,"result":')
    side.peer.feed(b"5}")
    assert done == []
    side.peer.end()
    assert done == [Raw(b"5")]


def test_the_repr_shows_what_is_under_way(side: Side):
    side.ask()
    side.hear(asked(1))
    assert repr(side.peer) == "<Peer open sent=1>"
    side.peer.close("x")
    assert repr(side.peer) == "<Peer closed sent=0>"


def test_the_repr_of_a_request_shows_its_method_and_its_time():
    request = OutgoingRequest(method="tools/call", within=1.5)
    assert repr(request) == "<OutgoingRequest tools/call within=1.5>"


# Lines over the bound


@pytest.mark.parametrize(
    "shape",
    [
        b'{"jsonrpc":"2.0","id":1,"result":"%b"}',
        b'{"jsonrpc":"2.0","id":"1","result":"%b"}',
        b'{"result":{"text":"%b"},"jsonrpc":"2.0","id":1}',
    ],
    ids=["id first", "id as a string", "id last"],
)
def test_an_answer_over_the_bound_ends_its_call_with_its_size(shape: bytes):
    side = Side(max_line=100_000)
    done, other = side.ask(), side.ask()
    line = shape % (b"x" * 200_000)
    side.hear(line, answered(2, "small"))
    assert (done, other) == ([TooLarge(len(line))], [Raw(b'"small"')])
    assert side.told() == []


def test_a_question_over_the_bound_is_refused_and_told():
    side = Side(max_line=1_000)
    side.hear(b'{"id":"q","method":"m","params":{"x":"%b"}}' % (b"x" * 2_000))
    (refusal,) = side.written()
    assert (refusal["id"], refusal["error"]["code"]) == ("q", INVALID_REQUEST)
    ((kind, text),) = side.told()
    assert kind == "noise"
    assert "2041 bytes" in text


def test_a_line_over_the_bound_that_says_nothing_is_noise():
    side = Side(max_line=1_000)
    done = side.ask()
    side.hear(b"x" * 2_000, b'{"id":9,"result":"%b"}' % (b"x" * 2_000))
    assert (done, side.written()) == ([], [])
    assert [kind for kind, _ in side.told()] == ["noise", "noise"]


def test_after_the_end_a_line_over_the_bound_is_nothing():
    side = Side(max_line=1_000)
    side.peer.close("gone")
    side.hear(b'{"id":"q","method":"m","params":{"x":"%b"}}' % (b"x" * 2_000))
    assert (side.told(), side.written()) == ([], [])


# Two peers and a wire between them


MOST_OPEN = 5


class End(Side):
    """A peer and its owner at one end: what they write waits on the wire until it is carried over.

    The owner does what every owner must: it knows which requests are open, refuses those that are
    too many or come twice, and tells the other side what it gave up.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.peer = Peer(handler=self.received, write=self._put, max_line=2_000, strict=True)
        self.received.then = self._on_received
        self.wire = bytearray()
        self.clock = clock
        self.ends: dict[RequestId, list[Outcome]] = {}
        self.methods: dict[RequestId, str] = {}
        self.deadlines: dict[RequestId, float] = {}
        self.cancelled: set[RequestId] = set()
        self.open: list[RequestId] = []
        self.answers: dict[RequestId, Any] = {}
        self.was_damaged = False

    def _put(self, data: bytes) -> None:
        self.wire += data

    def _on_received(self, what: Any) -> None:
        if isinstance(what, Request):
            if what.id in self.open or len(self.open) >= MOST_OPEN:
                self.peer.answer(what.id, RpcError(INVALID_REQUEST, "in use, or too many"))
            else:
                self.open.append(what.id)
        elif isinstance(what, tuple) and what[0] == "cancelled" and what[1] in self.open:
            self.open.remove(what[1])

    def start(self, method: str, deadline: float) -> None:
        done: list[Outcome] = []
        line = encode_request(self.peer.next_id, method, {"n": self.peer.next_id})
        request_id = self.expect(done.append, method, deadline=deadline)
        if request_id is None:
            assert done == [Closed("over")]
            return
        self.ends[request_id] = done
        self.methods[request_id] = method
        self.deadlines[request_id] = deadline
        self.peer.write(line)

    def tell_given_up(self) -> None:
        """As Connection does: the opening is not cancelled on the wire."""
        for request_id, method, reason in self.given_up():
            assert self.methods[request_id] == method
            ended = self.ends[request_id]
            assert ended == ([Overdue()] if reason == "timeout" else [])
            if method != "initialize":
                params = to_json({"requestId": request_id, "reason": reason})
                self.peer.notify("notifications/cancelled", params)


ends = st.sampled_from([0, 1])


class TwoPeers(RuleBasedStateMachine):
    """Every request ends once, and rightly, whatever becomes of the bytes on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ends = [End(lambda: self.now), End(lambda: self.now)]

    @rule(
        who=ends,
        method=st.sampled_from(["m", "initialize"]),
        within=st.floats(0.5, 50.0),
    )
    def ask(self, who: int, method: str, within: float) -> None:
        self.ends[who].start(method, self.now + within)

    @rule(who=ends, size=st.integers(1, 400))
    def carry_some(self, who: int, size: int) -> None:
        source, target = self.ends[who], self.ends[1 - who]
        data = bytes(source.wire[:size])
        del source.wire[:size]
        target.peer.feed(data)

    @rule(
        who=ends,
        pick=st.integers(0, 100),
        how=st.sampled_from(["result", "error", "large", "odd"]),
    )
    def answer(self, who: int, pick: int, how: str) -> None:
        end = self.ends[who]
        if not end.open:
            return
        request_id = end.open.pop(pick % len(end.open))
        if how == "error":
            ok = end.peer.answer(request_id, RpcError(-1, "no"))
        else:
            filler = "x" * 3_000 if how == "large" else "{é}" if how == "odd" else ""
            ok = end.peer.answer(
                request_id, json.dumps({"for": request_id, "filler": filler}).encode()
            )
        assert ok == (not end.peer.statistics().closed)
        end.answers[request_id] = how

    @rule(who=ends, pick=st.integers(0, 100))
    def cancel(self, who: int, pick: int) -> None:
        end = self.ends[who]
        if not end.ends:
            return
        request_id = list(end.ends)[pick % len(end.ends)]
        waiting = not end.ends[request_id] and request_id not in end.cancelled
        assert end.peer.cancel(request_id, "r") == waiting
        assert len(end.received.given_up) == waiting
        end.tell_given_up()
        if waiting:
            end.cancelled.add(request_id)

    @rule(seconds=st.floats(0.1, 30.0))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        for end in self.ends:
            end.peer.expire(self.now)
            end.tell_given_up()
            deadline = end.peer.next_deadline()
            assert deadline is None or deadline > self.now

    @rule(who=ends, noise=st.sampled_from([b"banner", b"{", b"[1]", b'{"id":"x","result":1}']))
    def print_noise(self, who: int, noise: bytes) -> None:
        end = self.ends[who]
        if not end.wire or end.wire.endswith(b"\n"):
            end.wire += noise + b"\n"

    @rule(who=ends)
    def tell(self, who: int) -> None:
        self.ends[who].peer.notify("n", b"{}")

    @rule(who=ends)
    def close(self, who: int) -> None:
        end = self.ends[who]
        end.peer.close("over")
        assert not end.peer.statistics().sent
        end.open.clear()

    @invariant()
    def every_request_ends_at_most_once_and_rightly(self) -> None:
        for end, other in zip(self.ends, reversed(self.ends), strict=True):
            for request_id, done in end.ends.items():
                assert len(done) <= 1
                assert not (done and request_id in end.cancelled)
                for outcome in done:
                    self.check(end, other, request_id, outcome)

    def check(self, end: End, other: End, request_id: RequestId, outcome: Outcome) -> None:
        damaged = end.was_damaged or other.was_damaged
        match outcome:
            case Raw():
                if not damaged:
                    assert json.loads(bytes(outcome))["for"] == request_id
                    assert other.answers[request_id] in ("result", "odd")
            case TooLarge():
                assert damaged or other.answers[request_id] == "large"
            case Overdue():
                assert end.deadlines[request_id] <= self.now
            case Closed():
                assert end.peer.statistics().closed
            case RpcError():
                refused = outcome.code == INVALID_REQUEST
                assert damaged or refused or other.answers[request_id] == "error"

    def teardown(self) -> None:
        for end in self.ends:
            # What is still on its way is cut off: a line of which half arrived is damaged.
            end.was_damaged = end.was_damaged or bool(end.wire)
        for end in self.ends:
            end.peer.end()
            end.peer.expire(self.now + 1_000)
            for request_id, done in end.ends.items():
                assert len(done) == (request_id not in end.cancelled)
            assert end.peer.next_deadline() is None
            assert not end.peer.statistics().sent
        self.now += 1_000
        self.every_request_ends_at_most_once_and_rightly()


class DamagedWire(TwoPeers):
    """The same, when bytes change on their way."""

    @precondition(lambda self: any(end.wire for end in self.ends))
    @rule(who=ends, where=st.integers(0, 10_000), byte=st.integers(0, 255))
    def damage(self, who: int, where: int, byte: int) -> None:
        end = self.ends[who]
        if end.wire:
            end.wire[where % len(end.wire)] = byte
            end.was_damaged = True


TestTwoPeers = TwoPeers.TestCase
TestTwoPeers.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestDamagedWire = DamagedWire.TestCase
TestDamagedWire.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


def test_the_other_side_may_end_a_stream_of_ours_by_name_but_no_other_request(side: Side):
    stream, call = side.ask("subscriptions/listen"), side.ask("tools/call")
    side.hear(cancelled(1), cancelled(2))
    (ended,) = stream
    assert isinstance(ended, RpcError)
    assert call == []
