"""Questions to the person that are carried by the calls of a modern client.

Such a client is sent no requests: a call is answered with the questions (`input_required`), and
the client makes it again with the answers. Theory of operation:

- A question is carried by a call that can wait for it: the one that is known to have asked, else
  one that waits on the same server, else one that only waits (`get_task_result`,
  `await_activity`). With none of these in flight it is held for the next call, whatever that is.
- A call that waits on a server is *parked*: its work goes on and its time stands still; what it
  comes to meanwhile is kept. Made again, it is bound to the new request and waits on. Nothing is
  sent to its server a second time.
- A call that only waits, or has not begun, is begun when it is made again.
- The roots of the client are asked for in the same way, by a call that is in flight.
- The state that the client carries counts once, and only with the same tool and arguments. A
  call that is not made again before its questions expire is stopped, at its server, too.

Several questions that come at once are carried together; those that come later wait for the next
round. What the client brings no answer to is asked again.
"""

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.errors import InvalidArguments, RequestNotFound
from emceepee_stdio.front.client_requests import (
    ROOTS_KEY,
    ROOTS_REQUEST,
    RequestStates,
    TakeRoots,
)
from emceepee_stdio.session.client_calls import Call, Work
from emceepee_stdio.session.person import ClientRequest, InputRequired
from emceepee_stdio.session.questions import question_of
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.pending_requests import ClosedBy, PendingRequest, Recipient
from emceepee_stdio.tools.registry import Result
from emceepee_stdio.wire.codec import RequestId

_KIND = "question"  # tells the states of these calls from others
_MAX_STOPPED = 100  # calls whose answer may still come; a person answers a few at a time
_WAITS = frozenset({"await_activity", "get_task_result"})  # these have nothing to lose
_READS = _WAITS | {"list_tools", "list_resources", "list_resource_templates", "list_prompts"}


class Settle(typing.Protocol):
    """Ends a question with what the client said."""

    def __call__(self, asked: PendingRequest, said: Raw | None, /, *, took: float) -> None: ...


def mode_of(asked: PendingRequest) -> str:
    return "url" if asked.params.get("mode") == "url" or "url" in asked.params else "form"


@dataclass(eq=False, slots=True, kw_only=True)
class _Parked:
    """A call that was answered with questions. `call` is None where it has to be begun."""

    request: ClientRequest
    questions: Sequence[str]
    began: float  # when the client first made the call
    took: float = 0.0  # from its question until it was made again
    call: Call | None = None
    within: float = math.inf
    take_roots: TakeRoots | None = None  # where it asks for the roots of the client
    resumed: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """The client's end: its open calls by request, and how they are answered.

    `bind` has a call answer another request; `ask_back` answers a request with questions.
    """

    calls: Mapping[RequestId, Call]
    bind: Callable[[ClientRequest, Call], None]
    ask_back: Callable[[RequestId, InputRequired], None]


class CarriedQuestions(Struct, eq=False, dict=True):
    """`params` is what the person is to be shown; `settle` takes what they said."""

    session: Session
    line: CallLine
    states: RequestStates
    tasks: TaskGroup
    params: Callable[[PendingRequest], Mapping[str, object]]
    settle: Settle
    limit_s: Callable[[], float]

    def __post_init__(self) -> None:
        self._modes: frozenset[str] = frozenset()  # of the newest call
        self._held: dict[str, None] = {}
        self._rounds: dict[Call, list[str]] = {}
        self._parked: dict[str, _Parked] = {}
        self._stopped: dict[str, _Parked] = {}  # of which the client may not know yet

    def __repr__(self) -> str:
        return f"<CarriedQuestions {len(self._held)} held, {len(self._parked)} calls parked>"

    # What servers ask

    def carry(self, asked: PendingRequest) -> bool:
        """Have it carried to the person; False where no call of this client can."""
        call = self._carrier(asked)
        if call is None and mode_of(asked) not in self._modes:
            return False
        self.session.state.requests.hand_to(asked.id, Recipient.PERSON)
        if call is None:
            self._held[asked.id] = None
        else:
            self._add_to_round(call, [asked.id])
        return True

    def carry_roots(self, take: TakeRoots) -> bool:
        """Have a call in flight ask for the roots of the client; False where there is none."""
        for call in self.line.calls.values():
            is_idle = call.run is not None or call.tool in _READS or call.wants_roots
            if call.request.modes is not None and not call.answered and is_idle:
                self._park(call, [], take_roots=take)
                return True
        return False

    def _carrier(self, asked: PendingRequest) -> Call | None:
        mode = mode_of(asked)
        able = [
            call
            for call in self.line.calls.values()
            if call.request.takes(mode) and not call.answered
        ]
        raised = [call for call in able if call is question_of(asked).call]
        of_server = [call for call in able if call.server == asked.server]
        waits = [call for call in able if call.server is None and call.tool in _WAITS]
        return next(iter(raised + of_server + waits), None)

    def withdraw(self, asked: PendingRequest) -> None:
        """A call that carries it already brings an answer that is nobody's, or comes too late."""
        self._held.pop(asked.id, None)
        if asked.closed_by is ClosedBy.TIMEOUT:
            for state, parked in list(self._parked.items()):
                if asked.id in parked.questions and not self._still_open(parked.questions):
                    self._stop(state)

    def _add_to_round(self, call: Call, questions: Sequence[str]) -> None:
        for name in questions:
            self._held.pop(name, None)
        if call not in self._rounds:
            self.tasks.start_soon(self._end_round, call)
        self._rounds.setdefault(call, []).extend(questions)

    async def _end_round(self, call: Call) -> None:
        """What came in one go is asked in one go."""
        questions = self._still_open(self._rounds.pop(call))
        if not questions:
            return
        if call.answered or self.line.calls.get(call.request.id) is not call:
            for asked in questions:  # it has ended meanwhile
                self.session.questions.put(asked)
        else:
            self._park(call, questions)

    def _still_open(self, questions: Sequence[str]) -> list[PendingRequest]:
        found = self.session.state.requests.open
        return [
            found[name]
            for name in questions
            if name in found and found[name].recipient is Recipient.PERSON
        ]

    # Calls that are answered with questions

    def _park(
        self, call: Call, questions: list[PendingRequest], *, take_roots: TakeRoots | None = None
    ) -> None:
        question = self._required(call.request, questions, began=call.began_at or None)
        parked = self._parked[question.state]
        if take_roots is not None:
            parked.take_roots = take_roots
            question.requests = {ROOTS_KEY: ROOTS_REQUEST}
        self.line.ask_back(call.request.id, question)
        if call.run is None:  # it only waits
            self.session.cancel(call)
        else:
            parked.call = call
            parked.within = self.session.pause(call)

    def _required(
        self, request: ClientRequest, questions: list[PendingRequest], *, began: float | None = None
    ) -> InputRequired:
        """The answer of a call that carries these questions; it is known when it is made again."""
        began = self.session.clock.now() if began is None else began
        parked = _Parked(request=request, questions=[asked.id for asked in questions], began=began)
        state = self.states.keep(_KIND, request.content(), within=math.inf)  # see `_expire`
        self._parked[state] = parked
        for name in parked.questions:
            self._held.pop(name, None)
        until = began + self.limit_s()
        until = min([until, max((asked.expires_at for asked in questions), default=until)])
        self.tasks.start_soon(self._expire, state, parked, until)
        requests = {
            asked.id: {"method": "elicitation/create", "params": self.params(asked)}
            for asked in questions
        }
        return InputRequired(requests, state)

    async def _expire(self, state: str, parked: _Parked, until: float) -> None:
        """A client that does not come back with the answers keeps nothing open for ever."""
        with anyio.move_on_after(until - self.session.clock.now()):
            await parked.resumed.wait()
        self._stop(state)

    def _stop(self, state: str) -> None:
        """Its client has not made the call again in time; a task goes on without it."""
        parked = self._parked.pop(state, None)
        self.states.forget(state)
        if parked is None:
            return
        self._stopped[state] = parked
        if len(self._stopped) > _MAX_STOPPED:
            del self._stopped[next(iter(self._stopped))]
        if parked.call is not None and not parked.call.answered:
            self.session.cancel(parked.call)

    # Calls that come in

    def begin(self, work: Work, request: ClientRequest) -> Result:
        """The work of a call, after what it carries: questions, or the answers to some."""
        self._modes = request.modes or frozenset()
        if not request.modes and self._held:  # this client cannot ask any more
            held, self._held = self._held, {}
            for asked in self._still_open(list(held)):
                self.session.questions.put(asked)
        if request.state is None and (held := self._held_for(request)):
            raise self._required(request, held)
        if request.state is None or _KIND not in request.state.split(":"):
            return work()
        parked = self._opened(request.state, request)
        if parked.call is not None:
            self._resume(parked, parked.call, request)
            return None
        if missing := self._take(parked, request):
            raise self._required(request, missing, began=parked.began)
        return work()

    def _held_for(self, request: ClientRequest) -> list[PendingRequest]:
        return [a for a in self._still_open(list(self._held)) if request.takes(mode_of(a))]

    def _opened(self, state: str, request: ClientRequest) -> _Parked:
        parked = self._parked.get(state)
        if parked is None:
            self.tasks.start_soon(self._tell_late, state, request)
            raise RequestNotFound(
                "The question that this call brings an answer to is not open: it was answered"
                " before, or not in time, and then its call was stopped.",
                hint="Call the tool again, without requestState, if its result is still wanted.",
            )
        took = self.states.spend(state, request.content())
        if took is None:
            raise InvalidArguments(
                "The requestState belongs to another call: the tool or its arguments differ.",
                hint="Make the call again exactly as it was, or without requestState.",
            )
        del self._parked[state]
        parked.took = took
        parked.resumed.set()
        if parked.take_roots is not None:
            parked.take_roots(request.answers.get(ROOTS_KEY))
        return parked

    async def _tell_late(self, state: str, request: ClientRequest) -> None:
        """In the next answer: the client may have given up the one that it gets now."""
        stopped = self._stopped.pop(state, None)
        call = None if stopped is None else stopped.call
        if call is not None and request.answers:
            note = "The answer came too late: the call had been stopped. It may have had effects."
            data = {"tool": call.tool, "delivered": False, "note": note}
            self.session.tell(EventType.LATE_ANSWER, server=call.server, data=data)

    def _resume(self, parked: _Parked, call: Call, request: ClientRequest) -> None:
        self.line.bind(request, call)
        self.session.resume(call, request, within=parked.within)
        missing = self._take(parked, request)
        if call.kept is not None:  # it ended while its client asked the person
            self._held.update(dict.fromkeys(asked.id for asked in missing))
            call.client.end.answer(call, call.kept)
            return
        if further := missing + self._held_for(request):
            self._add_to_round(call, [asked.id for asked in further])

    def _take(self, parked: _Parked, request: ClientRequest) -> list[PendingRequest]:
        """End the questions that have an answer; those that are to be asked again."""
        for asked in self._still_open(parked.questions):
            if asked.id in request.answers:
                self.settle(asked, request.answers[asked.id], took=parked.took)
        return self._still_open(parked.questions)
