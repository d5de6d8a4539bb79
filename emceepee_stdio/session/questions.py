"""Questions of servers: admitted within bounds, routed to the person or tools, answered once.

A pending question lives in `state/pending_requests`, and nowhere else; kept with it is the question
of the backend, through which the answer goes back. A choice of ours that no call can carry alone
waits there as well.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from emceepee_stdio.backends.interface import Question
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_link import ClientLink
from emceepee_stdio.session.person import AGREEMENTS, Choice, Decision, OwnQuestion
from emceepee_stdio.session.server_output import fields_of, is_too_much
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.pending_requests import (
    PendingRequest,
    Recipient,
    RequestKind,
    Requests,
    RequestStatus,
    TooManyRequests,
)
from emceepee_stdio.trust.targets import Area, named_area
from emceepee_stdio.visible_text import cut
from emceepee_stdio.wire.codec import INVALID_PARAMS, INVALID_REQUEST, RpcError, to_json

# Addresses that a server wants a person to open: which are refused, and what is said of others.
#
# A browser goes where the address says, whatever a person reads in it. So what can be read in two
# ways is refused: credentials before the host, a backslash, letters of two scripts in one name. A
# host in other letters than ours is shown as the browser asks for it.


_SHOWN_HOST_CHARS = 45  # the end of a name says whose it is
_PUNYCODE = "xn--"
_HOST = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._:")
_AMBIGUOUS = frozenset("ßς\\%")  # browsers and we may read these differently in a host
_NO_SCRIPT = frozenset({"DIGIT", "HYPHEN-MINUS", "LOW"})  # as their Unicode names begin
# Scripts that one name has together without any intent to deceive.
_COMPANIONS = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL"})


def url_problem(url: object) -> str | None:
    """Why nobody is sent there; None when one may be."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return "must be a text without spaces and without what cannot be seen"
    try:
        parts = urlsplit(url)
        host = _ascii(parts)
        letters = _letters(host)
    except ValueError:
        return "must name a host that exists in one way only"
    if parts.scheme not in ("http", "https") or not host:
        return "must begin with http:// or https:// and name a host"
    if "@" in parts.netloc:
        return "must not have a name or a password before its host"
    if any(map(_is_mixed, letters.split("."))):
        return "must not mix letters of several scripts in its host"
    return None


def url_warning(url: str) -> str | None:
    """What a person should know before they open it."""
    host = _ascii(urlsplit(url))
    if _PUNYCODE in host:
        return f"Warning: the host is written in other letters than A to Z: {_letters(host)}"
    if urlsplit(url).scheme == "http" and named_area(url) is not Area.LOOPBACK:
        return "Warning: the page is not encrypted (http): others can read what you enter there."
    return None


def host_of(url: str) -> str:
    """As the browser asks for it; of a long one the end, which says whose it is."""
    host = _ascii(urlsplit(url))
    return host if len(host) <= _SHOWN_HOST_CHARS else f"…{host[-_SHOWN_HOST_CHARS:]}"


def _ascii(parts: SplitResult) -> str:
    """The host as it is looked up; ValueError where it cannot be."""
    host = parts.hostname or ""
    _ = parts.port  # a port that is none is found here
    if _AMBIGUOUS.intersection(host):
        raise ValueError(host)
    host = host if host.isascii() else host.encode("idna").decode().lower()
    if not _HOST.issuperset(host):
        raise ValueError(host)
    return host


def _letters(host: str) -> str:
    """The host as it is written in its own letters."""
    return ".".join(
        label.removeprefix(_PUNYCODE).encode().decode("punycode")
        if label.startswith(_PUNYCODE)
        else label
        for label in host.split(".")
    )


def _is_mixed(label: str) -> bool:
    """Whether letters in it look like those of another script on purpose."""
    if label.isascii():
        return False
    scripts = {unicodedata.name(char, "").split(" ")[0] for char in label} - _NO_SCRIPT
    return len(scripts) > 1 and not scripts <= _COMPANIONS


_SHOWN_NAME_CHARS = 100  # of a field that is named in a refusal
_SHARE_DIVISOR = 4  # of the bytes for one server: three that ask too much leave room for others

_MODES = ("form", "url")
_SHOWN_MODE_CHARS = 40  # in a refusal
_KINDS = {
    "elicitation/create": RequestKind.ELICITATION,
    "sampling/createMessage": RequestKind.SAMPLING,
}


def _size(asked: PendingRequest) -> int:
    params = question_of(asked).params
    return 0 if params is None else len(memoryview(params))


def question_of(asked: PendingRequest) -> Question | OwnQuestion:
    return cast("Question | OwnQuestion", asked.source)


def choice_of(asked: PendingRequest) -> Choice | None:
    """What we ask ourselves; None of a question of a server."""
    return asked.source.choice if isinstance(asked.source, OwnQuestion) else None


def _form_problem(params: Mapping[str, object]) -> str | None:
    """Fields of a form are flat: no host shows others."""
    schema = mapping(params.get("requestedSchema"))
    for name, about in mapping(schema.get("properties")).items():
        field = mapping(about)
        kinds = (field.get("type"), mapping(field.get("items")).get("type"))
        if "object" in kinds or kinds[1] == "array" or "properties" in field:
            return f"The field {name[:_SHOWN_NAME_CHARS]!r} is nested: a form has flat fields only."
    return None


def _problem(params: Mapping[str, object]) -> str | None:
    """Why nobody is asked this, whoever could be."""
    if params.get("mode") == "url" or "url" in params:
        why = url_problem(params.get("url"))
        return why and f"The url of a question {why}."
    return _form_problem(params)


# Whom a question goes to, and how it ends: each is with one recipient, and ends once.
#
# An elicitation goes to the person where the client can ask them. While it is there, the model
# learns nothing of it: no event, no call that becomes a task because of it, no answer by a tool.
# What the person cannot be asked, or what a client refused without showing it, goes to the tools;
# a question of ours never does. What the person did not answer in time is not asked again.


_ASKED = {
    RequestKind.ELICITATION: EventType.ELICITATION_REQUEST,
    RequestKind.SAMPLING: EventType.SAMPLING_REQUEST,
}
_CLOSED = {
    RequestKind.ELICITATION: EventType.ELICITATION_EXPIRED,
    RequestKind.SAMPLING: EventType.SAMPLING_EXPIRED,
}
_ANSWERS = {
    "accept": RequestStatus.ACCEPTED,
    "decline": RequestStatus.DECLINED,
    "cancel": RequestStatus.CANCELLED,
}


class Tell(Protocol):
    """An event for the client."""

    def __call__(
        self, kind: EventType, /, *, server: str | None, data: Mapping[str, object]
    ) -> str: ...


class Questions(Struct, eq=False, dict=True):
    """Admits questions, puts each to its recipient, and sees it end.

    `make_way` answers the calls that a client could be waiting in instead of answering; `look`
    sets the time at which something may expire. `person` is there once there is a client.
    """

    requests: Requests
    settings: Settings
    clock: Clock
    journal: Journal
    client: ClientLink
    tell: Tell
    make_way: Callable[[PendingRequest, object], None]
    look: Callable[[float], None]

    def __post_init__(self) -> None:
        self._fixed = self.settings.fixed
        self._memory_bytes = self.settings.limits.memory_bytes

    def admit(self, server: str, question: Question) -> PendingRequest | None:
        """The question as the client sees it; None when the server was told no."""
        kind = _KINDS[question.method]
        refusal = self._too_much(server, kind, question)
        params = fields_of(question.params) if refusal is None else {}
        if kind is RequestKind.ELICITATION and refusal is None:
            mode = params.get("mode", "form")
            if mode not in _MODES:
                shown = cut(str(mode), _SHOWN_MODE_CHARS)
                unknown = f"The mode of a question is form or url, not {shown}."
                question.respond(RpcError(INVALID_PARAMS, unknown))
                return None
            refusal = _problem(params)
        if refusal is None:
            question.params = question.params and question.params.copy()
            try:
                asked = self.requests.add(
                    kind, server=server, params=params, now=self.clock.now(), source=question
                )
            except TooManyRequests as full:
                refusal = str(full)
            else:
                self.look(asked.expires_at)
                return asked
        question.respond(RpcError(INVALID_REQUEST, refusal))
        return None

    def put(self, asked: PendingRequest) -> None:
        """A new question, to the recipient who is to answer it."""
        is_form = asked.kind is RequestKind.ELICITATION
        if not is_form or self.client.person is None or not self.client.person.show(asked):
            self.put_to_tools(asked)

    def put_to_tools(self, asked: PendingRequest) -> None:
        if choice_of(asked):
            self.refuse(asked, "Only the person may answer this.")
        elif self.requests.hand_to(asked.id, Recipient.TOOLS):
            self.tell(_ASKED[asked.kind], server=asked.server, data={"request_id": asked.id})
            self.make_way(asked, question_of(asked).call)

    async def confirm(self, choice: Choice) -> Decision:
        """Ask the person for a yes that several calls may wait for; any of them may carry it."""
        own, person = OwnQuestion(choice), self.client.person
        if person is None:
            return Decision.CANNOT_ASK
        try:
            asked = self.requests.add(
                RequestKind.ELICITATION,
                server=choice.server,
                params=choice.params(),
                now=self.clock.now(),
                source=own,
            )
        except TooManyRequests:
            return Decision.CANNOT_ASK
        self.look(asked.expires_at)
        self.requests.hand_to(asked.id, Recipient.PERSON)
        try:
            # One that is over at once was refused: this client has no way to ask it.
            if not person.show(asked) or own.over.is_set():
                return Decision.CANNOT_ASK
            return await own.wait(choice.within)
        finally:
            self._withdraw(asked)

    def decide(self, asked: PendingRequest, own: OwnQuestion, decision: Decision) -> None:
        """What the person said to a question of ours."""
        own.decision = decision
        agreed = decision in AGREEMENTS
        self.respond(asked, RequestStatus.ACCEPTED if agreed else RequestStatus.DECLINED, b"")

    def answer(
        self, asked: PendingRequest, action: str, content: Mapping[str, object] | None = None
    ) -> bool:
        """What the user decided, for the server; False when that no longer listens."""
        answer = {"action": action} | ({} if content is None else {"content": content})
        return self.respond(asked, _ANSWERS[action], to_json(answer))

    def respond(
        self, asked: PendingRequest, status: RequestStatus, outcome: bytes | RpcError
    ) -> bool:
        """End it with an answer, which the journal does not get; False when it comes too late."""
        now = self.clock.now()
        closed = self.requests.respond(asked.id, status, kind=asked.kind, now=now)
        self.journal.record(
            JournalEvent.ELICITATION_RESPONDED,
            server=asked.server,
            request_id=asked.id,
            status=status.value,
            duration_ms=round((now - closed.created_at) * 1000),
        )
        return question_of(asked).respond(outcome)

    def refuse(self, asked: PendingRequest, reason: str) -> bool:
        """There will be no answer; False when the server no longer listens."""
        self.requests.withdraw(asked.id, now=self.clock.now())
        return question_of(asked).respond(RpcError(INVALID_REQUEST, reason))

    def visited(self, server: str, elicitation_id: object) -> None:
        """The server says that the person is done at its page: a question of it is answered."""
        if not isinstance(elicitation_id, str):
            return
        for asked in self.requests.pending(kind=RequestKind.ELICITATION, server=server):
            if asked.params.get("elicitationId") == elicitation_id:
                if asked.recipient is Recipient.PERSON and self.client.person is not None:
                    self.client.person.withdraw(asked)
                self.answer(asked, "accept")
        if self.client.person is not None:
            self.client.person.visited(server, elicitation_id)

    def withdraw(self, key: object) -> None:
        """The one who asked takes it back."""
        for asked in list(self.requests.open.values()):
            if question_of(asked).key == key:
                self._withdraw(asked)

    def end_call(self, call: object) -> None:
        """What a call has asked is asked no more."""
        for asked in list(self.requests.open.values()):
            if question_of(asked).call is call:
                self._withdraw(asked, "The call that asked this has ended.")

    def expire(self, now: float) -> None:
        """What was not answered in time is not asked again."""
        for asked in self.requests.expire(now=now):
            self.closed(asked)  # this may stop its call, of which the server hears first then
            question_of(asked).respond(
                RpcError(INVALID_REQUEST, "The client did not answer in time.")
            )
            self.journal.record(
                JournalEvent.ELICITATION_TIMEOUT, server=asked.server, request_id=asked.id
            )

    def closed(self, asked: PendingRequest) -> None:
        """It has ended without an answer: tell the recipient, and why."""
        if asked.recipient is Recipient.PERSON and self.client.person is not None:
            self.client.person.withdraw(asked)
            return
        reason = asked.closed_by.value if asked.closed_by else asked.status.value
        data = {"request_id": asked.id, "reason": reason}
        self.tell(_CLOSED[asked.kind], server=asked.server, data=data)

    def _withdraw(self, asked: PendingRequest, reason: str | None = None) -> None:
        if reason is not None:
            question_of(asked).respond(RpcError(INVALID_REQUEST, reason))
        closed = self.requests.withdraw(asked.id, now=self.clock.now())
        if closed is not None:
            self.closed(closed)

    def _too_much(self, server: str, kind: RequestKind, question: Question) -> str | None:
        """Every answer shows every question: one server must not fill them all."""
        fixed = self._fixed
        pending = self.requests.pending(server=server)
        size = 0 if question.params is None else len(memoryview(question.params))
        if any(question_of(asked).key == question.key for asked in pending):
            return "The id of this question is already in use."
        if question.params is not None and is_too_much(question.params):
            return "A question that is nested so deeply, or of so many values, is not passed on."
        if kind is RequestKind.ELICITATION and size > fixed.question_bytes:
            return f"A question of {size} bytes is too large; {fixed.question_bytes} are allowed."
        if len(pending) >= fixed.server_questions:
            return f"{fixed.server_questions} questions of this server wait already."
        return self._too_many_bytes(pending, size)

    def _too_many_bytes(self, pending: Sequence[PendingRequest], size: int) -> str | None:
        """`pending` are those of the same server; its first question needs only its share."""
        limit = self._memory_bytes
        share = limit // _SHARE_DIVISOR
        if size + sum(map(_size, pending)) > share:
            return (
                f"With {size} bytes more, questions of this server would take over {share} bytes."
            )
        if pending and size + sum(map(_size, self.requests.open.values())) > limit:
            return f"Questions of all servers take {limit} bytes already."
        return None
