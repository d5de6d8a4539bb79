"""The person behind the client: asked by its elicitation, in the way of the client's era.

A client of the handshake era is sent a request; calls of a modern one carry the question. A choice
of ours (`confirm`) is awaited by a call: in the handshake era it may be answered long after that
call; a modern client makes its call again with the answer. What a host does not show whole is not
asked there, and an answer that came faster than a person reads is not theirs.

A pending question (`show`) waits in the session all the while, with the person as its recipient,
and ends by the first of: the answer, which goes to the server; an automatic refusal, after which
the tools have it; its time, its server's end or word, or the end of its call, upon which the client
is told to take its dialogue away. A question is sent once, and no part of an answer is kept here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, cast
from unicodedata import east_asian_width

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.errors import ProxyError
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.front.carried_questions import CallLine, CarriedQuestions, mode_of
from emceepee_stdio.front.client_profile import ClientProfile, person_limit_s, profile_of
from emceepee_stdio.front.client_requests import ClientRequests, NoReader, RequestStates
from emceepee_stdio.front.plain_forms import KNOWN_KINDS, PLAIN_KINDS, as_text, is_plain, read_back
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.person import (
    AGREEMENTS,
    Asked,
    Choice,
    Decision,
    InputRequired,
    OnLate,
    OwnQuestion,
)
from emceepee_stdio.session.questions import choice_of, host_of, question_of, url_warning
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.pending_requests import PendingRequest, Recipient
from emceepee_stdio.visible_text import readable
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.peer import OutgoingRequest

if TYPE_CHECKING:
    from emceepee_stdio.backends.interface import Cancel

_TITLED_SINCE = "2025-11-25"  # before that a choice has its names beside its values

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
_QUOTE = "> "
_EMPTY_FORM: dict[str, object] = {"type": "object", "properties": {}}


def native_params(
    asked: PendingRequest,
    *,
    mask: Callable[[str], str],
    chars: int,
    version: str | None = None,
    kinds: frozenset[str] = KNOWN_KINDS,
    problem: str = "",
) -> dict[str, object]:
    """The params of the elicitation that the client is to show.

    `version` is what a client of the handshake era speaks, None for a modern one; `kinds` are the
    fields that it shows, and `problem` is what was wrong with an answer before.
    """
    mode = mode_of(asked)
    text = mask(str(asked.params.get("message", "")))
    text = text[:chars] + (" …" if len(text) > chars else "")
    ours = [_first_line(asked, mode, again=bool(problem))]
    if mode == "form":
        schema = as_text(mapping(asked.params.get("requestedSchema")), kinds)
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
    theirs = text.splitlines()
    if problem:  # it names fields in the server's words
        theirs.insert(0, problem)
    lines = [*ours, *(_QUOTE + readable(line) for line in theirs)]
    return {"mode": mode, "message": "\n".join(lines), **rest}


def _first_line(asked: PendingRequest, mode: str, *, again: bool) -> str:
    line = f"emceepee: the server {_quoted(asked.server)} "
    asks = "asks again, as the answer did not fit" if again else "asks"
    line += asks if mode == "form" else f"wants you to open {host_of(str(asked.params['url']))}"
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


# A choice of ours that a call waits for.


_KEY = "approval"
_MAX_REMEMBERED = 10_000  # each is one answer of a person; bounds the memory
_MAX_OPEN = 10  # more at a time would only be clicked away


def _width(line: str) -> int:
    """In columns: some letters take two."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in line)


_MAX_TRIES = 3  # to answer a form that was rebuilt; then it counts as not decided


@dataclass(slots=True)
class _Rebuilt:
    """How a form is shown: with text in place of what this host cannot show."""

    kinds: frozenset[str]  # of fields that are shown as they are
    tries: int = 0
    problem: str = ""


_VISITED = "notifications/elicitation/complete"
_REMEMBERED_PAGES = 100  # whose end the client may still be told; a person visits few at a time


class _Answer(msgspec.Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, object] | None = None


class PersonClient(Struct, eq=False, dict=True):
    """The person behind one client; `carried` has the questions that calls bring to them."""

    runtime: Runtime
    protocol: Protocol
    client: ClientRequests
    line: CallLine
    states: RequestStates
    tasks: TaskGroup

    def __post_init__(self) -> None:
        self.carried = CarriedQuestions(
            self.runtime.session,
            self.line,
            self.states,
            tasks=self.tasks,
            params=self.params,
            settle=self.settle,
            limit_s=lambda: person_limit_s(self._profile, self.runtime.environment.environ),
        )
        self._session = self.runtime.session
        self._answers = self.runtime.automatic_answers
        # Over HTTP a yes counts for one call: only the owner of this machine gives a standing one.
        self._keeps = BEHIND_HTTP not in self.runtime.environment.environ
        self._open: dict[str, Asked] = {}  # choices that the client was sent, by digest
        self._agreed: dict[str, Decision] = {}
        self._sent: dict[str, Cancel] = {}
        self._rebuilt: dict[str, _Rebuilt] = {}  # while their questions are with the person
        self._pages: dict[tuple[str, object], str] = {}  # that the person was sent to

    def __repr__(self) -> str:
        return f"<PersonClient {len(self._open) + len(self._sent)} open, {self.carried!r}>"

    # Choices of ours

    async def confirm(
        self, choice: Choice, *, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        request = choice.request
        if "form" not in (self.protocol.modes if request.modes is None else request.modes):
            return Decision.CANNOT_ASK
        if request.modes is None:
            return await self._confirm_by_request(choice, on_ask, on_late)
        # Bound to what the person reads as well: the name of a server is no part of the request.
        about = choice.digest, choice.lines
        answer = request.answers.get(_KEY)
        if answer is not None and request.state:
            took = self.states.spend(request.state, about)
            if took is not None:
                return self._decision(choice, answer, took=took)
        if obstacle := self._obstacle(choice):
            return obstacle
        on_ask()
        asked = {"method": "elicitation/create", "params": self._elicitation(choice, None)}
        raise InputRequired({_KEY: asked}, self.states.keep(_KEY, about))

    async def _confirm_by_request(
        self, choice: Choice, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        """Ask, or wait for the answer to what was asked before."""
        digest = choice.digest
        if known := self._agreed.get(digest):  # answered in the very moment before
            return known
        found = self._open.get(digest)
        if found is None:
            if obstacle := self._obstacle(choice):
                return obstacle
            if len(self._open) >= _MAX_OPEN:
                return Decision.CANNOT_ASK
            on_ask()
            found = self._open[digest] = Asked()
            self.tasks.start_soon(self._request, found, choice, on_late)
        try:
            return await found.wait(choice.within)
        finally:
            if not found.waiting:  # the caller keeps the answer from here on
                self._agreed.pop(digest, None)

    async def _request(self, asked: Asked, choice: Choice, on_late: OnLate) -> None:
        params = self._elicitation(choice, self.protocol.version)
        request = OutgoingRequest(method="elicitation/create", params=params, call=choice.call)
        within = self._session.settings.timeouts.client_request_ms / 1000
        asked_at = self._session.clock.now()
        try:
            answer = await self.client.ask(request, within=within)
            took = self._session.clock.now() - asked_at
            asked.decision = self._decision(choice, answer, took=took)
            if asked.decision in AGREEMENTS and len(self._agreed) < _MAX_REMEMBERED:
                self._agreed[choice.digest] = asked.decision
        finally:
            del self._open[choice.digest]
            asked.over.set()
        if not asked.waiting and asked.decision in AGREEMENTS:
            await on_late(asked.decision)
            self._agreed.pop(choice.digest, None)

    def _obstacle(self, choice: Choice) -> Decision | None:
        """Why the person cannot be asked this."""
        if self._answers.expected:
            return Decision.AUTOMATIC
        profile = self._profile
        limit = min(_LINE_CHARS, profile.message_chars)
        fits = len(choice.lines) <= profile.message_lines and all(
            _width(line) < limit for line in choice.lines
        )
        return None if fits else Decision.TOO_LONG

    def _elicitation(self, choice: Choice, version: str | None) -> dict[str, object]:
        """For a client of the handshake era that speaks `version`, or for a modern one."""
        titled = version is None or version >= _TITLED_SINCE
        return choice.params(titled=titled, keeps=self._keeps)

    def _decision(self, choice: Choice, answer: Raw | None, *, took: float) -> Decision:
        """What an answer says that took so long; None for an error."""
        fields = mapping(None if answer is None else decoded(answer, object))
        action = fields.get("action")
        said = None if answer is None else action if isinstance(action, str) else ""
        if self._answers.is_automatic(said, took=took, server=None, plain=choice.url is None):
            return Decision.AUTOMATIC
        if answer is None:
            return Decision.CANNOT_ASK
        if self._answers.is_fast(took=took):
            return Decision.AUTOMATIC
        decision = choice.decision(fields)
        is_standing = decision is Decision.AGREED
        return Decision.AGREED_ONCE if is_standing and not self._keeps else decision

    # Pending questions

    def show(self, asked: PendingRequest) -> bool:
        wanted = self.runtime.configured.config.settings.questions
        if self._ask_in_client(asked, wanted) or self._ask_on_page(asked, wanted):
            return True
        if wanted == "client":
            self._session.questions.refuse(asked, "The client has no way to ask a person this.")
        return wanted == "client"

    def _ask_in_client(self, asked: PendingRequest, wanted: str) -> bool:
        if wanted == "tools" or (wanted != "client" and self._answers.expected):
            return False
        kinds = KNOWN_KINDS - self._profile.unshown
        schema = mapping(asked.params.get("requestedSchema"))
        if mode_of(asked) == "form" and as_text(schema, kinds) is not schema:
            self._rebuilt[asked.id] = _Rebuilt(kinds)
        by_request = mode_of(asked) in self.protocol.modes
        call = question_of(asked).call
        if by_request and not (isinstance(call, Call) and call.request.modes is not None):
            self._send(asked)
            return True
        if self.carried.carry(asked):
            return True
        self._rebuilt.pop(asked.id, None)
        return False

    def _ask_on_page(self, asked: PendingRequest, wanted: str) -> bool:
        """A question of ours, or by the configuration any, where the client has no forms."""
        call = question_of(asked).call
        carried = call.request.modes if isinstance(call, Call) else None
        modes = self.protocol.modes if carried is None else carried
        is_meant = wanted == "page" or choice_of(asked) is not None
        page = self.runtime.page
        if "form" in modes or not is_meant or not page.is_there:
            return False
        self._session.state.requests.hand_to(asked.id, Recipient.PERSON)
        params = self.params(asked)
        asked_at = self._session.clock.now()

        def answered(answer: Raw | None) -> None:
            if answer is None:  # the page could not be shown: no person saw it
                self._session.questions.put_to_tools(asked)
            else:
                self.settle(asked, answer, took=self._session.clock.now() - asked_at)

        question = {
            "id": asked.id,
            "server": asked.server,
            "title": asked.server,
            "text": params["message"],
            "schema": params.get("requestedSchema"),
            "url": params.get("url"),
        }
        page.show(question, answered)
        return True

    def withdraw(self, asked: PendingRequest) -> None:
        self.carried.withdraw(asked)
        self._rebuilt.pop(asked.id, None)
        self.runtime.page.withdraw(asked.id)
        if cancel := self._sent.pop(asked.id, None):
            cancel()

    def visited(self, server: str, elicitation_id: str) -> None:
        if shown := self._pages.pop((server, elicitation_id), None):
            self.client.notify(_VISITED, {"elicitationId": shown})

    @property
    def _profile(self) -> ClientProfile:
        return profile_of(self.protocol.client_name, self.protocol.client_version)

    def _send(self, asked: PendingRequest) -> None:
        session = self._session
        session.state.requests.hand_to(asked.id, Recipient.PERSON)
        params = self.params(asked, self.protocol.version)
        if "url" in params:
            shown = str(params["elicitationId"])
            self._pages[asked.server, asked.params.get("elicitationId")] = shown
            if len(self._pages) > _REMEMBERED_PAGES:
                del self._pages[next(iter(self._pages))]
        # Most servers do not say for which call they ask: then it is for the latest.
        waiting = session.waiting_on(asked.server)
        call = question_of(asked).call or next(reversed(waiting), None)
        request = OutgoingRequest(method="elicitation/create", params=params, call=call)
        self._sent[asked.id] = lambda: None
        if isinstance(call, Call) and not call.answered:
            session.wait_for_person(call)
        on_done = partial(self._answered, asked, session.clock.now(), call)
        cancel = self.client.send(request, on_done)
        if asked.id in self._sent:
            self._sent[asked.id] = cancel

    def params(self, asked: PendingRequest, version: str | None = None) -> dict[str, object]:
        if choice := choice_of(asked):
            return self._elicitation(choice, version)
        session = self._session
        chars = session.settings.fixed.question_chars
        form = self._rebuilt.get(asked.id, _Rebuilt(KNOWN_KINDS))
        return native_params(
            asked,
            mask=session.secrets.mask,
            chars=chars,
            version=version,
            kinds=form.kinds,
            problem=form.problem,
        )

    def _answered(
        self, asked: PendingRequest, sent_at: float, call: object, outcome: Raw | ProxyError
    ) -> None:
        del self._sent[asked.id]
        wanted = self.runtime.configured.config.settings.questions
        if isinstance(outcome, NoReader) and wanted != "client":
            self._rebuilt.pop(asked.id, None)
            self._session.questions.put_to_tools(asked)
            return
        answer = outcome if isinstance(outcome, Raw) else None
        self.settle(asked, answer, took=self._session.clock.now() - sent_at)
        still = self._session.state.requests.open.get(asked.id)
        if still is not None and still.recipient is Recipient.PERSON:
            self._send(asked)
        elif still is None and isinstance(call, Call) and call.answered and call.task is None:
            note = "The call had ended before, and its answer did not wait for this one."
            data = {"tool": call.tool, "delivered": True, "note": note}
            self._session.tell(EventType.LATE_ANSWER, server=asked.server, data=data)

    def settle(self, asked: PendingRequest, said: Raw | None, *, took: float) -> None:
        """End the question with what the client said, None for an error.

        It stays open, to be asked again, if the form has to be rebuilt or its answer did not fit.
        """
        questions = self._session.questions
        if isinstance(own := question_of(asked), OwnQuestion):
            questions.decide(asked, own, self._decision(own.choice, said, took=took))
            return
        form = self._rebuilt.pop(asked.id, _Rebuilt(KNOWN_KINDS))
        schema = mapping(asked.params.get("requestedSchema"))
        is_url = mode_of(asked) == "url"
        shows_plain = not is_url and is_plain(as_text(schema, form.kinds))
        answer = self._read(asked, said, form)
        action = None if answer is None else answer.action
        is_automatic = self._answers.is_automatic(
            action, took=took, server=asked.server, plain=shows_plain
        )
        if is_url and action == "accept" and self._answers.is_fast(took=took):
            answer, is_automatic = None, True  # there was no time to read where the page is
        if self.runtime.configured.config.settings.questions == "client":
            is_automatic = False  # the answer of the host counts, whoever gave it
        if is_automatic and not (is_url or shows_plain):
            self._rebuilt[asked.id] = _Rebuilt(PLAIN_KINDS)
        elif is_automatic:
            questions.put_to_tools(asked)
        elif answer is None and form.problem and form.tries < _MAX_TRIES:
            self._rebuilt[asked.id] = form
        elif answer is None:  # no person has decided anything
            questions.answer(asked, "cancel")
        else:
            questions.answer(asked, answer.action, answer.content)

    def _read(self, asked: PendingRequest, said: Raw | None, form: _Rebuilt) -> _Answer | None:
        """The answer with the defaults of the form; None where it is none that fits."""
        form.problem = ""
        if said is None:
            return None
        answer = decoded(said, _Answer)
        if answer is None:
            return self._unfit(asked)
        if answer.action != "accept" or mode_of(asked) == "url":
            return _Answer(answer.action)
        schema = mapping(asked.params.get("requestedSchema"))
        content, problems = read_back(answer.content or {}, schema, form.kinds)
        if problems:
            if as_text(schema, form.kinds) is not schema:
                form.tries, form.problem = form.tries + 1, problems[0]
            return self._unfit(asked)
        return _Answer("accept", content)

    def _unfit(self, asked: PendingRequest) -> None:
        """Noted without a word of the answer."""
        text = f"an answer that does not fit the question {asked.id} of {asked.server}"
        self.runtime.journal.record(JournalEvent.CLIENT_NOISE, text=text)
