"""Questions of servers, put to the person through the client's elicitation.

A client of the handshake era is sent a request for each; calls of a modern one carry them
(`CarriedQuestions`). The question waits in the session all the while, with the person as its
recipient, and ends by the first of: the answer, which goes to the server; an automatic refusal,
after which the tools have it; its time, its server's end or word, or the end of its call, upon
which the client is told to take its dialogue away. Whatever the client says later is nobody's
answer. A question is sent once, and no part of an answer is kept here.
"""

import math
import secrets
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments, ProxyError, RequestNotFound
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.front.client_profile import is_plain_form, profile_of
from emceepee_stdio.front.consent import ClientRequests
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call, ClientRequest, InputRequired, Work
from emceepee_stdio.session.questions import host_of, question_of, url_warning
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.session import Session
from emceepee_stdio.state import ClosedBy, PendingRequest, Recipient
from emceepee_stdio.tools.question_tools import form_problems, with_defaults
from emceepee_stdio.tools.registry import Result
from emceepee_stdio.visible_text import readable
from emceepee_stdio.wire.codec import RequestId
from emceepee_stdio.wire.peer import OutgoingRequest

if TYPE_CHECKING:
    from emceepee_stdio.backends.base import Cancel


# What a person reads of a server's question: our own line first, and then the server's words.
#
# Line 1 is ours and names the server, with the tool or the host of a page; a warning may follow.
# Every line of the server begins with `> `, so that none of them can pass for one of ours. What we
# ask ourselves has lines of ours alone. Nothing that cannot be seen is left in what is shown. Names
# and values that come back in the answer stay as they are: where something in them cannot be seen,
# a label of ours shows it.


_NAME_CHARS = 40  # of a server or a tool
_LINE_CHARS = 110  # what every host shows of one line
_LABELS = frozenset({"title", "description", "enumNames"})  # of a schema: shown, and nothing else
_OF_A_FORM = ("type", "properties", "required")  # a heading of its own could pass for our line
_TITLED_SINCE = "2025-11-25"  # before that a choice has its names beside its values
_QUOTE = "> "
_EMPTY_FORM: dict[str, object] = {"type": "object", "properties": {}}


def mode_of(asked: PendingRequest) -> str:
    return "url" if asked.params.get("mode") == "url" or "url" in asked.params else "form"


def native_params(
    asked: PendingRequest, *, mask: Callable[[str], str], chars: int, version: str | None = None
) -> dict[str, object]:
    """The params of the elicitation that the client is to show.

    `version` is what a client of the handshake era speaks, None for a modern one.
    """
    mode = mode_of(asked)
    text = mask(str(asked.params.get("message", "")))
    text = text[:chars] + (" …" if len(text) > chars else "")
    is_ours = question_of(asked).is_ours
    ours = text.splitlines() if is_ours else [_first_line(asked, mode)]
    if mode == "form":
        schema = mapping(asked.params.get("requestedSchema"))
        fields = _EMPTY_FORM | {key: schema[key] for key in _OF_A_FORM if key in schema}
        fields["properties"] = {
            name: _field(name, mapping(about))
            for name, about in mapping(fields["properties"]).items()
        }
        if version is not None and version < _TITLED_SINCE:
            fields["properties"] = _untitled(mapping(fields["properties"]))
        rest: dict[str, object] = {"requestedSchema": fields}
    else:
        url = str(asked.params.get("url"))
        if warning := url_warning(url):
            ours.append(warning)
        rest = {"url": url, "elicitationId": asked.id}
    theirs = [] if is_ours else text.splitlines()
    lines = [*ours, *(_QUOTE + readable(line) for line in theirs)]
    return {"mode": mode, "message": "\n".join(lines), **rest}


def _first_line(asked: PendingRequest, mode: str) -> str:
    line = f"emceepee: the server {_quoted(asked.server)} "
    line += "asks" if mode == "form" else f"wants you to open {host_of(str(asked.params['url']))}"
    call = question_of(asked).call
    if isinstance(call, Call) and call.tool:
        with_tool = f"{line}, in a call of {_quoted(call.tool)}"
        line = with_tool if len(with_tool) < _LINE_CHARS else line
    return f"{line}:"


def _quoted(name: str) -> str:
    shown = readable(name).replace('"', "'")
    return f'"{shown[:_NAME_CHARS]}{"…" if len(shown) > _NAME_CHARS else ""}"'


def _field(name: str, about: Mapping[str, object]) -> dict[str, object]:
    """One field of the form, with labels for what cannot be seen in its name and its choices."""
    shown = _visible(about)
    if readable(name) != name:
        shown.setdefault("title", readable(name))
    if _hides(values := shown.get("enum")):
        shown.setdefault("enumNames", _labels(values))
    items = mapping(shown.get("items"))
    if _hides(values := items.get("enum")):
        choices = zip(cast("list[object]", values), _labels(values), strict=True)
        shown["items"] = {"anyOf": [{"const": value, "title": label} for value, label in choices]}
    return shown


def _hides(values: object) -> bool:
    return isinstance(values, list) and _labels(cast("object", values)) != values


def _labels(values: object) -> list[object]:
    listed = cast("list[object]", values)
    return [readable(value) if isinstance(value, str) else value for value in listed]


def _visible(schema: Mapping[str, object]) -> dict[str, object]:
    return {key: _shown(value, key) for key, value in schema.items()}


def _shown(value: object, key: str) -> object:
    if isinstance(value, dict):
        return _visible(cast("dict[str, object]", value))
    if isinstance(value, list):
        return [_shown(item, key) for item in cast("list[object]", value)]
    return readable(value) if isinstance(value, str) and key in _LABELS else value


def _untitled(fields: Mapping[str, object]) -> dict[str, object]:
    """Choices as an older client knows them; the values, and so the answers, are the same."""
    shown = dict(fields)
    for name, declared in fields.items():
        about = dict(mapping(declared))
        if about.get("type") == "string" and isinstance(about.get("oneOf"), list):
            choices = [mapping(one) for one in cast("list[object]", about.pop("oneOf"))]
            values = [one.get("const") for one in choices]
            names = [one.get("title", one.get("const")) for one in choices]
            shown[name] = about | {"enum": values, "enumNames": names}
    return shown


# Questions of servers, carried to the person by the calls of a modern client.
#
# Such a client is sent no requests: a call is answered with the questions (`input_required`), and
# the client makes it again with the answers. Theory of operation:
#
# - A question is carried by a call that can wait for it: the one that is known to have asked, else
#   one that waits on the same server, else one that only waits (`get_task_result`,
#   `await_activity`). With none of these in flight it is held for the next call, whatever that is.
# - A call that waits on a server is *parked*: its work goes on and its time stands still; what it
#   comes to meanwhile is kept. Made again, it is bound to the new request and waits on. Nothing is
#   sent to its server a second time.
# - A call that only waits, or has not begun, is begun when it is made again.
# - The state that the client carries is a random name for what is kept here. It counts once, and
#   only with the same tool and the same arguments. A call that is not made again before its
#   questions expire is stopped, at its server, too.
#
# Several questions that come at once are carried together; those that come later wait for the next
# round. What the client brings no answer to is asked again.


_MARK = "question:"  # tells our states from those of a consent
_NAME_BYTES = 24  # nobody guesses one
_WAITS = frozenset({"await_activity", "get_task_result"})  # these have nothing to lose


class Settle(typing.Protocol):
    """Ends a question with what the client said."""

    def __call__(self, asked: PendingRequest, said: Raw | None, /, *, took: float) -> None: ...


@dataclass(eq=False, slots=True, kw_only=True)
class _Parked:
    """A call that was answered with questions. `call` is None where it has to be begun."""

    request: ClientRequest
    questions: Sequence[str]
    asked_at: float
    call: Call | None = None
    within: float = math.inf
    reply: Reply | None = None
    resumed: anyio.Event = field(default_factory=anyio.Event)

    def keep(self, reply: Reply) -> None:
        self.reply = reply


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """The client's end: its open calls by request, and how they are answered.

    `bind` has a call answer another request; `ask_back` answers a request with questions.
    """

    calls: Mapping[RequestId, Call]
    bind: Callable[[ClientRequest, Call], None]
    ask_back: Callable[[RequestId, InputRequired], None]


class CarriedQuestions:
    """`params` is what the person is to be shown; `settle` takes what they said."""

    def __init__(
        self,
        session: Session,
        line: CallLine,
        *,
        tasks: TaskGroup,
        params: Callable[[PendingRequest], Mapping[str, object]],
        settle: Settle,
    ) -> None:
        self._session = session
        self._line = line
        self._tasks = tasks
        self._params = params
        self._settle = settle
        self._modes: frozenset[str] = frozenset()  # of the newest call
        self._held: dict[str, None] = {}
        self._rounds: dict[Call, list[str]] = {}
        self._parked: dict[str, _Parked] = {}

    def __repr__(self) -> str:
        return f"<CarriedQuestions {len(self._held)} held, {len(self._parked)} calls parked>"

    # What servers ask

    def carry(self, asked: PendingRequest) -> bool:
        """Have it carried to the person; False where no call of this client can."""
        call = self._carrier(asked)
        if call is None and mode_of(asked) not in self._modes:
            return False
        self._session.state.requests.hand_to(asked.id, Recipient.PERSON)
        if call is None:
            self._held[asked.id] = None
        else:
            self._add_to_round(call, [asked.id])
        return True

    def _carrier(self, asked: PendingRequest) -> Call | None:
        mode = mode_of(asked)
        able = [
            call
            for call in self._line.calls.values()
            if call.request is not None and mode in call.request.modes and not call.answered
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
            self._tasks.start_soon(self._end_round, call)
        self._rounds.setdefault(call, []).extend(questions)

    async def _end_round(self, call: Call) -> None:
        """What came in one go is asked in one go."""
        questions = self._still_open(self._rounds.pop(call))
        if not questions:
            return
        if (
            call.answered
            or call.request is None
            or self._line.calls.get(call.request.id) is not call
        ):
            for asked in questions:  # it has ended meanwhile
                self._session.routing.put(asked)
        else:
            self._park(call, call.request, questions)

    def _still_open(self, questions: Sequence[str]) -> list[PendingRequest]:
        found = self._session.state.requests.open
        return [
            found[name]
            for name in questions
            if name in found and found[name].recipient is Recipient.PERSON
        ]

    # Calls that are answered with questions

    def _park(self, call: Call, request: ClientRequest, questions: list[PendingRequest]) -> None:
        only_waits = call.server is None
        question = self._required(request, questions)
        parked = self._parked[question.state]
        self._line.ask_back(request.id, question)
        if only_waits:
            self._session.abandon(call)
            call.cancel()
        else:
            parked.call = call
            parked.within = self._session.pause(call)
            call.answer, call.token = parked.keep, None

    def _required(self, request: ClientRequest, questions: list[PendingRequest]) -> InputRequired:
        """The answer of a call that carries these questions; it is known when it is made again."""
        state = _MARK + secrets.token_urlsafe(_NAME_BYTES)
        parked = self._parked[state] = _Parked(
            request=request,
            questions=[asked.id for asked in questions],
            asked_at=self._session.clock.now(),
        )
        for name in parked.questions:
            self._held.pop(name, None)
        until = max(asked.expires_at for asked in questions)
        self._tasks.start_soon(self._expire, state, parked, until)
        requests = {
            asked.id: {"method": "elicitation/create", "params": self._params(asked)}
            for asked in questions
        }
        return InputRequired(requests, state)

    async def _expire(self, state: str, parked: _Parked, until: float) -> None:
        """A client that does not come back with the answers keeps nothing open for ever."""
        with anyio.move_on_after(until - self._session.clock.now()):
            await parked.resumed.wait()
        self._stop(state)

    def _stop(self, state: str) -> None:
        """Its client has not made the call again in time; a task goes on without it."""
        parked = self._parked.pop(state, None)
        if parked is not None and parked.call is not None and not parked.call.answered:
            self._session.abandon(parked.call)
            parked.call.cancel()

    # Calls that come in

    def around(
        self,
        work: Work,
        request: ClientRequest,
        state: str | None,
        answers: Mapping[str, Raw] | None,
    ) -> Work:
        """The work of a call, after what it carries: questions, or the answers to some."""
        self._modes = request.modes
        if not request.modes and self._held:  # this client cannot ask any more
            held, self._held = self._held, {}
            for asked in self._still_open(list(held)):
                self._session.routing.put(asked)
        if state is not None or self._held:
            return partial(self._begin, work, request, state, answers or {})
        return work

    def _begin(
        self, work: Work, request: ClientRequest, state: str | None, answers: Mapping[str, Raw]
    ) -> Result:
        if state is None and (held := self._held_for(request)):
            raise self._required(request, held)
        if state is None or not state.startswith(_MARK):
            return work()
        parked = self._opened(state, request)
        if parked.call is not None:
            self._resume(parked, parked.call, request, answers)
            return None
        if missing := self._take(parked, answers):
            raise self._required(request, missing)
        return work()

    def _held_for(self, request: ClientRequest) -> list[PendingRequest]:
        return [a for a in self._still_open(list(self._held)) if mode_of(a) in request.modes]

    def _opened(self, state: str, request: ClientRequest) -> _Parked:
        parked = self._parked.get(state)
        if parked is None:
            raise RequestNotFound(
                "The question that this call brings an answer to is not open: it was answered"
                " before, or not in time, and then its call was stopped.",
                hint="Call the tool again, without requestState, if its result is still wanted.",
            )
        if parked.request.content() != request.content():
            raise InvalidArguments(
                "The requestState belongs to another call: the tool or its arguments differ.",
                hint="Make the call again exactly as it was, or without requestState.",
            )
        del self._parked[state]
        parked.resumed.set()
        return parked

    def _resume(
        self, parked: _Parked, call: Call, request: ClientRequest, answers: Mapping[str, Raw]
    ) -> None:
        call.request = request
        self._line.bind(request, call)
        self._session.resume(call, within=parked.within)
        missing = self._take(parked, answers)
        if parked.reply is not None:  # it came to its end while nobody waited
            self._held.update(dict.fromkeys(asked.id for asked in missing))
            call.answer(parked.reply)
            return
        if further := missing + self._held_for(request):
            self._add_to_round(call, [asked.id for asked in further])

    def _take(self, parked: _Parked, answers: Mapping[str, Raw]) -> list[PendingRequest]:
        """End the questions that have an answer; those that have none."""
        took = self._session.clock.now() - parked.asked_at
        missing: list[PendingRequest] = []
        for asked in self._still_open(parked.questions):
            if asked.id in answers:
                self._settle(asked, answers[asked.id], took=took)
            else:
                missing.append(asked)
        return missing


_VISITED = "notifications/elicitation/complete"
_REMEMBERED_PAGES = 100  # whose end the client may still be told; a person visits few at a time


class _Answer(msgspec.Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, object] | None = None


class QuestionDialogue:
    """The questions that are with the person; `carried` has those that calls bring there."""

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        client: ClientRequests,
        line: CallLine,
        *,
        tasks: TaskGroup,
    ) -> None:
        self.carried = CarriedQuestions(
            runtime.session, line, tasks=tasks, params=self.params, settle=self.settle
        )
        self._runtime = runtime
        self._session = runtime.session
        self._protocol = protocol
        self._client = client
        self._sent: dict[str, Cancel] = {}
        self._pages: dict[tuple[str, object], str] = {}  # that the person was sent to

    def __repr__(self) -> str:
        return f"<QuestionDialogue {len(self._sent)} open, {self.carried!r}>"

    def ask(self, asked: PendingRequest) -> bool:
        wanted = self._runtime.configured.config.settings.questions
        if wanted == "tools" or (wanted == "auto" and not self._is_worth_asking(asked)):
            return False
        by_request = mode_of(asked) in self._protocol.modes
        call = question_of(asked).call
        if by_request and not (isinstance(call, Call) and call.request):
            self._send(asked)
            return True
        if self.carried.carry(asked):
            return True
        if wanted == "client":
            self._session.routing.refuse(asked, "The client has no way to ask a person this.")
        return wanted == "client"

    def withdraw(self, asked: PendingRequest) -> None:
        self.carried.withdraw(asked)
        if cancel := self._sent.pop(asked.id, None):
            cancel()

    def visited(self, server: str, elicitation_id: str) -> None:
        if shown := self._pages.pop((server, elicitation_id), None):
            self._client.notify(_VISITED, {"elicitationId": shown})

    def _is_worth_asking(self, asked: PendingRequest) -> bool:
        """Whether a person would see it, as far as is known of this host."""
        if self._runtime.automatic_answers.expected:
            return False
        profile = profile_of(self._protocol.client_name, self._protocol.client_version)
        schema = mapping(asked.params.get("requestedSchema"))
        return mode_of(asked) == "url" or profile.shows_form(schema)

    def _send(self, asked: PendingRequest) -> None:
        session = self._session
        session.state.requests.hand_to(asked.id, Recipient.PERSON)
        params = self.params(asked, self._protocol.version)
        if "url" in params:
            self._pages[asked.server, asked.params.get("elicitationId")] = asked.id
            if len(self._pages) > _REMEMBERED_PAGES:
                del self._pages[next(iter(self._pages))]
        # Most servers do not say for which call they ask: then it is for the latest.
        waiting = session.waiting_on(asked.server)
        call = question_of(asked).call or next(reversed(waiting), None)
        request = OutgoingRequest(method="elicitation/create", params=params, call=call)
        self._sent[asked.id] = lambda: None
        cancel = self._client.send(request, partial(self._answered, asked, session.clock.now()))
        if asked.id in self._sent:
            self._sent[asked.id] = cancel

    def params(self, asked: PendingRequest, version: str | None = None) -> dict[str, object]:
        session = self._session
        chars = session.settings.fixed.question_chars
        return native_params(asked, mask=session.secrets.mask, chars=chars, version=version)

    def _answered(self, asked: PendingRequest, sent_at: float, outcome: Raw | ProxyError) -> None:
        del self._sent[asked.id]
        answer = outcome if isinstance(outcome, Raw) else None
        self.settle(asked, answer, took=self._session.clock.now() - sent_at)

    def settle(self, asked: PendingRequest, said: Raw | None, *, took: float) -> None:
        """End the question with what the client said; None for an error."""
        answer = self._read(asked, said)
        action = None if answer is None else answer.action
        is_automatic = self._runtime.automatic_answers.is_automatic(
            action, took=took, server=asked.server, plain=is_plain_form(asked.params)
        )
        routing = self._session.routing
        if is_automatic and self._runtime.configured.config.settings.questions != "client":
            routing.put_to_tools(asked)
        elif answer is None:  # nobody has decided anything
            routing.answer(asked, "cancel")
        else:
            routing.answer(asked, answer.action, answer.content)

    def _read(self, asked: PendingRequest, said: Raw | None) -> _Answer | None:
        """The answer with the defaults of the form; None where it is none that fits."""
        if said is None:
            return None
        answer = decoded(said, _Answer)
        if answer is None:
            return self._unfit(asked)
        if answer.action != "accept" or mode_of(asked) == "url":
            return _Answer(answer.action)
        schema = mapping(asked.params.get("requestedSchema"))
        content = with_defaults(answer.content or {}, schema)
        if form_problems(content, schema):
            return self._unfit(asked)
        return _Answer("accept", content)

    def _unfit(self, asked: PendingRequest) -> None:
        """Noted without a word of the answer."""
        text = f"an answer that does not fit the question {asked.id} of {asked.server}"
        self._runtime.journal.record(JournalEvent.CLIENT_NOISE, text=text)
