from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emceepee_stdio.errors import RequestNotFound
from emceepee_stdio.state.machine import IllegalMove, Machine
from emceepee_stdio.state.pending_requests import (
    ELICITATION_STATES,
    SAMPLING_STATES,
    ClosedBy,
    PendingRequest,
    RequestKind,
    Requests,
    RequestStatus,
    TooManyRequests,
)

ELICITATION, SAMPLING = RequestKind
PENDING = RequestStatus.PENDING
ANSWERS = {
    ELICITATION: (RequestStatus.ACCEPTED, RequestStatus.DECLINED, RequestStatus.CANCELLED),
    SAMPLING: (RequestStatus.COMPLETED, RequestStatus.DECLINED),
}
TABLES = {ELICITATION: ELICITATION_STATES, SAMPLING: SAMPLING_STATES}


def make_requests(*, timeout: float = 600.0, limit: int = 100) -> Requests:
    numbers = count(1)
    return Requests(new_id=lambda: f"q{next(numbers)}", timeout=timeout, limit=limit)


def ask(
    requests: Requests, kind: RequestKind = ELICITATION, *, server: str = "s", now: float = 0.0
) -> PendingRequest:
    return requests.add(kind, server=server, params={"message": "?"}, now=now)


@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize("source", RequestStatus)
@pytest.mark.parametrize("target", RequestStatus)
def test_a_question_moves_from_pending_to_one_of_its_ends(
    kind: RequestKind, source: RequestStatus, target: RequestStatus
):
    table: Machine[RequestStatus] = TABLES[kind]
    ends = (*ANSWERS[kind], RequestStatus.EXPIRED, RequestStatus.REJECTED)
    assert table.allows(source, target) == (source is PENDING and target in ends)


def test_a_question_is_pending_until_its_timeout():
    requests = make_requests()
    asked = requests.add(
        SAMPLING, server="s", params={"messages": []}, now=3.0, source="a question"
    )
    assert (asked.status, asked.kind, asked.server) == (PENDING, SAMPLING, "s")
    assert (asked.created_at, asked.expires_at) == (3.0, 603.0)
    assert (asked.params, asked.source) == ({"messages": []}, "a question")
    assert asked.closed_by is None
    assert requests.get(asked.id, kind=SAMPLING, now=3.0) == asked
    assert requests.open == {asked.id: asked}
    assert len(requests) == 1


@pytest.mark.parametrize(("kind", "status"), [(k, s) for k in RequestKind for s in ANSWERS[k]])
def test_the_client_answers_once(kind: RequestKind, status: RequestStatus):
    requests = make_requests()
    asked = ask(requests, kind)
    answered = requests.respond(asked.id, status, kind=kind, now=4.0)
    assert (answered.id, answered.status) == (asked.id, status)
    assert answered.closed_by is None
    assert requests.pending() == []
    assert requests.next_deadline() is None
    with pytest.raises(RequestNotFound, match=rf"any more: {status.value}, 2\.0 s ago"):
        requests.respond(asked.id, status, kind=kind, now=6.0)


@pytest.mark.parametrize(
    ("kind", "status"),
    [(k, s) for k in RequestKind for s in RequestStatus if s not in ANSWERS[k]],
)
def test_what_is_no_answer_of_this_kind_is_refused_and_the_question_stays(
    kind: RequestKind, status: RequestStatus
):
    requests = make_requests()
    asked = ask(requests, kind)
    with pytest.raises(IllegalMove):
        requests.respond(asked.id, status, kind=kind, now=1.0)
    assert requests.pending() == [asked]
    assert requests.next_deadline() == asked.expires_at


def test_an_answer_of_the_other_kind_is_refused_and_the_question_stays():
    requests = make_requests()
    asked = ask(requests, SAMPLING)
    with pytest.raises(RequestNotFound, match="another kind: sampling"):
        requests.respond(asked.id, RequestStatus.DECLINED, kind=ELICITATION, now=1.0)
    assert requests.pending() == [asked]


def test_an_unknown_question_is_not_found():
    with pytest.raises(RequestNotFound, match="no pending elicitation request 'q9'"):
        make_requests().get("q9", kind=ELICITATION, now=0.0)


def test_a_question_that_nobody_answers_expires_and_says_so():
    requests = make_requests(timeout=10.0)
    late, early = ask(requests, now=5.0), ask(requests, now=1.0)
    assert requests.next_deadline() == 11.0
    assert requests.expire(now=10.9) == []
    (expired,) = requests.expire(now=11.0)
    assert (expired.id, expired.status) == (early.id, RequestStatus.EXPIRED)
    assert expired.closed_by is ClosedBy.TIMEOUT
    assert requests.next_deadline() == 15.0
    assert [a.id for a in requests.expire(now=99.0)] == [late.id]
    assert requests.expire(now=99.0) == []
    with pytest.raises(RequestNotFound, match=r"expired \(timeout\), 2 min ago"):
        requests.get(early.id, kind=ELICITATION, now=131.0)


@pytest.mark.parametrize("reason", [ClosedBy.DISCONNECTED, ClosedBy.REMOVED])
def test_a_lost_server_has_each_of_its_questions_rejected_once(reason: ClosedBy):
    requests = make_requests()
    mine = [ask(requests, kind, server="lost") for kind in RequestKind]
    other = ask(requests, server="other")
    rejected = requests.reject_server("lost", reason, now=2.0)
    assert [a.id for a in rejected] == [a.id for a in mine]
    assert {(a.status, a.closed_by) for a in rejected} == {(RequestStatus.REJECTED, reason)}
    assert requests.reject_server("lost", reason, now=2.0) == []
    assert requests.pending() == [other]
    with pytest.raises(RequestNotFound, match=rf"rejected \({reason.value}\)"):
        requests.get(mine[0].id, kind=ELICITATION, now=2.0)


def test_a_server_withdraws_its_question_once():
    requests = make_requests()
    asked = ask(requests)
    withdrawn = requests.withdraw(asked.id, now=1.0)
    assert withdrawn is not None
    assert (withdrawn.status, withdrawn.closed_by) == (RequestStatus.REJECTED, ClosedBy.WITHDRAWN)
    assert requests.withdraw(asked.id, now=2.0) is None
    assert requests.withdraw("q9", now=2.0) is None
    assert requests.next_deadline() is None


def test_more_questions_than_anybody_could_answer_are_refused():
    requests = make_requests(limit=2)
    first = ask(requests)
    ask(requests, SAMPLING)
    with pytest.raises(TooManyRequests, match="2 questions"):
        ask(requests)
    requests.withdraw(first.id, now=0.0)
    ask(requests)
    assert len(requests) == 2


def test_one_question_of_every_server_has_a_place_however_many_others_wait():
    requests = make_requests(limit=2)
    ask(requests)
    ask(requests)
    assert ask(requests, server="o").server == "o"
    with pytest.raises(TooManyRequests):
        ask(requests, server="o")


def test_a_question_is_news_until_it_was_shown():
    requests = make_requests()
    first = ask(requests)
    assert requests.has_news(server="s")
    assert not requests.has_news(server="o")
    requests.shown.add(first.id)
    assert not requests.has_news(server="s")
    second = ask(requests)
    assert requests.has_news(server="s")
    requests.withdraw(second.id, now=0.0)
    requests.withdraw(first.id, now=0.0)
    assert requests.shown == set()


def test_what_is_pending_is_listed_by_kind_and_server():
    requests = make_requests()
    a, b, c = ask(requests), ask(requests, SAMPLING), ask(requests, server="o")
    assert requests.pending() == [a, b, c]
    assert requests.pending(kind=ELICITATION) == [a, c]
    assert requests.pending(server="s") == [a, b]
    assert requests.pending(kind=ELICITATION, server="o") == [c]


def test_the_reprs_show_id_kind_and_state():
    requests = make_requests(limit=9)
    asked = ask(requests)
    assert repr(asked) == "<PendingRequest q1 elicitation pending s>"
    assert repr(requests) == "<Requests pending=1 limit=9>"
    declined = requests.respond(asked.id, RequestStatus.DECLINED, kind=ELICITATION, now=1.0)
    assert repr(declined) == "<PendingRequest q1 elicitation declined s>"


class RequestMachine(RuleBasedStateMachine):
    """Each question is closed once, whoever comes first; the deadlines are those of the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.requests = make_requests(timeout=5.0, limit=4)
        self.open: dict[str, PendingRequest] = {}
        self.closed: dict[str, RequestStatus] = {}

    def close(self, asked: PendingRequest) -> None:
        assert asked.status is not PENDING
        assert asked.id not in self.closed
        del self.open[asked.id]
        self.closed[asked.id] = asked.status

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(kind=st.sampled_from(RequestKind), server=st.sampled_from("ab"))
    def ask(self, kind: RequestKind, server: str) -> None:
        own = not any(asked.server == server for asked in self.open.values())
        if len(self.open) < 4 or own:
            asked = ask(self.requests, kind, server=server, now=self.now)
            self.open[asked.id] = asked
        else:
            with pytest.raises(TooManyRequests):
                ask(self.requests, kind, server=server, now=self.now)

    @precondition(lambda self: self.open or self.closed)
    @rule(
        pick=st.integers(0, 50),
        kind=st.sampled_from(RequestKind),
        status=st.sampled_from(RequestStatus),
    )
    def respond(self, pick: int, kind: RequestKind, status: RequestStatus) -> None:
        known = [*self.open, *self.closed]
        request_id = known[pick % len(known)]
        asked = self.open.get(request_id)
        if asked is None or asked.kind is not kind:
            with pytest.raises(RequestNotFound):
                self.requests.respond(request_id, status, kind=kind, now=self.now)
        elif status not in ANSWERS[kind]:
            with pytest.raises(IllegalMove):
                self.requests.respond(request_id, status, kind=kind, now=self.now)
        else:
            self.close(self.requests.respond(request_id, status, kind=kind, now=self.now))

    @precondition(lambda self: self.open or self.closed)
    @rule(pick=st.integers(0, 50))
    def withdraw(self, pick: int) -> None:
        known = [*self.open, *self.closed]
        request_id = known[pick % len(known)]
        withdrawn = self.requests.withdraw(request_id, now=self.now)
        assert (withdrawn is not None) == (request_id in self.open)
        if withdrawn is not None:
            self.close(withdrawn)

    @rule(server=st.sampled_from("ab"))
    def lose_server(self, server: str) -> None:
        expected = [i for i, a in self.open.items() if a.server == server]
        rejected = self.requests.reject_server(server, ClosedBy.DISCONNECTED, now=self.now)
        assert [a.id for a in rejected] == expected
        for asked in rejected:
            self.close(asked)

    @rule()
    def tick(self) -> None:
        expected = [i for i, a in self.open.items() if a.expires_at <= self.now]
        expired = self.requests.expire(now=self.now)
        assert [a.id for a in expired] == expected
        for asked in expired:
            self.close(asked)

    @invariant()
    def everything_agrees(self) -> None:
        assert self.requests.pending() == list(self.open.values())
        deadline = min((a.expires_at for a in self.open.values()), default=None)
        assert self.requests.next_deadline() == deadline


TestRequestMachine = RequestMachine.TestCase
TestRequestMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
