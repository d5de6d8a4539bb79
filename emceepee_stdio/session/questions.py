"""Questions of servers: admitted within bounds, routed to the person or tools, answered once.

A pending question lives in `state/pending_requests`, and nowhere else; kept with it is the question
of the backend, through which the answer goes back.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast
from urllib.parse import SplitResult, urlsplit

from emceepee_stdio.backends.backend_events import Question
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import FixedValues
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.server_output import fields_of, is_too_deep
from emceepee_stdio.state import (
    EventType,
    PendingRequest,
    Recipient,
    RequestKind,
    Requests,
    RequestStatus,
)
from emceepee_stdio.state.pending_requests import TooManyRequests
from emceepee_stdio.trust.targets import Area, named_area
from emceepee_stdio.wire.codec import INVALID_REQUEST, RpcError, to_json

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

_KINDS = {
    "elicitation/create": RequestKind.ELICITATION,
    "sampling/createMessage": RequestKind.SAMPLING,
}


def _size(asked: PendingRequest) -> int:
    params = question_of(asked).params
    return 0 if params is None else len(memoryview(params))


def question_of(asked: PendingRequest) -> Question:
    return cast("Question", asked.source)


def _form_problem(params: Mapping[str, object]) -> str | None:
    """Fields of a form are flat: no host shows others."""
    schema = mapping(params.get("requestedSchema"))
    for name, about in mapping(schema.get("properties")).items():
        field = mapping(about)
        kinds = (field.get("type"), mapping(field.get("items")).get("type"))
        if "object" in kinds or kinds[1] == "array" or "properties" in field:
            return f"The field {name[:_SHOWN_NAME_CHARS]!r} is nested: a form has flat fields only."
    return None


def _problem(question: Question) -> str | None:
    """Why nobody is asked this, whoever could be."""
    params = fields_of(question.params)
    if params.get("mode") == "url" or "url" in params:
        why = url_problem(params.get("url"))
        return why and f"The url of a question {why}."
    return _form_problem(params)


class Questions:
    """Lets questions in and sees them out."""

    def __init__(self, requests: Requests, fixed: FixedValues, *, memory_bytes: int) -> None:
        self._requests = requests
        self._fixed = fixed
        self._memory_bytes = memory_bytes

    def admit(self, server: str, question: Question, *, now: float) -> PendingRequest | None:
        """The question as the client sees it; None when the server was told no."""
        kind = _KINDS[question.method]
        refusal = self._too_much(server, kind, question)
        if refusal is None:
            question.params = question.params and question.params.copy()
            params = fields_of(question.params)
            try:
                return self._requests.add(
                    kind, server=server, params=params, now=now, source=question
                )
            except TooManyRequests as full:
                refusal = str(full)
        question.respond(RpcError(INVALID_REQUEST, refusal))
        return None

    def answer(self, asked: PendingRequest, result: bytes) -> bool:
        """Hand the client's answer to the server; False when that no longer listens."""
        return question_of(asked).respond(result)

    def refuse(self, asked: PendingRequest, reason: str) -> bool:
        """There will be no answer; False when the server no longer listens."""
        return question_of(asked).respond(RpcError(INVALID_REQUEST, reason))

    def withdraw(self, key: object, *, now: float) -> PendingRequest | None:
        """The server takes it back; None when it was closed before."""
        for asked in self._requests.open.values():
            if question_of(asked).key == key:
                return self._requests.withdraw(asked.id, now=now)
        return None

    def end_call(self, call: object, *, now: float) -> list[PendingRequest]:
        """What a call has asked and nobody has answered is asked no more."""
        ended = [a for a in self._requests.open.values() if question_of(a).call is call]
        for asked in ended:
            self.refuse(asked, "The call that asked this has ended.")
        return [
            closed for a in ended if (closed := self._requests.withdraw(a.id, now=now)) is not None
        ]

    def _too_much(self, server: str, kind: RequestKind, question: Question) -> str | None:
        """Every answer shows every question: one server must not fill them all."""
        fixed = self._fixed
        pending = self._requests.pending(server=server)
        size = 0 if question.params is None else len(memoryview(question.params))
        if any(question_of(asked).key == question.key for asked in pending):
            return "The id of this question is already in use."
        if question.params is not None and is_too_deep(question.params):
            return "A question that is nested so deeply is not passed on."
        if kind is RequestKind.ELICITATION and size > fixed.question_bytes:
            return f"A question of {size} bytes is too large; {fixed.question_bytes} are allowed."
        if kind is RequestKind.ELICITATION and (problem := _problem(question)):
            return problem
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
        if pending and size + sum(map(_size, self._requests.open.values())) > limit:
            return f"Questions of all servers take {limit} bytes already."
        return None


# Whom a question of a server goes to, and how it ends: each is with one recipient, and ends once.
#
# An elicitation goes to the person where the client has a dialogue of its own for that. While it is
# there, nobody else is told of it: no event, no call that becomes a task because of it, and no
# answer by a tool. What the person cannot be asked, or was refused on their behalf by a client that
# showed nothing, goes to the tools. What the person did not answer in time goes to nobody.


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


class Dialogue(Protocol):
    """How the client itself asks its person."""

    def ask(self, asked: PendingRequest) -> bool:
        """Put it to the person, who is its recipient from now on; False where nobody is asked."""
        ...

    def withdraw(self, asked: PendingRequest) -> None:
        """It has ended without an answer of the person."""
        ...

    def visited(self, server: str, elicitation_id: str) -> None:
        """The person is done at a page that they were sent to."""
        ...


class Tell(Protocol):
    """An event for the client."""

    def __call__(
        self, kind: EventType, /, *, server: str | None, data: Mapping[str, object]
    ) -> str: ...


class QuestionRouting:
    """`dialogue` is the client's, once there is a client; `make_way` lets its calls go."""

    def __init__(
        self,
        requests: Requests,
        questions: Questions,
        *,
        clock: Clock,
        journal: Journal,
        tell: Tell,
        make_way: Callable[[PendingRequest, object], None],
    ) -> None:
        self._requests = requests
        self._questions = questions
        self._clock = clock
        self._journal = journal
        self._tell = tell
        self._make_way = make_way
        self.dialogue: Dialogue | None = None

    def put(self, asked: PendingRequest) -> None:
        """A new question, to whoever is to answer it."""
        is_form = asked.kind is RequestKind.ELICITATION
        if not is_form or self.dialogue is None or not self.dialogue.ask(asked):
            self.put_to_tools(asked)

    def put_to_tools(self, asked: PendingRequest) -> None:
        if question_of(asked).is_ours:
            self.refuse(asked, "Nobody but the person may answer this.")
        elif self._requests.hand_to(asked.id, Recipient.TOOLS):
            self._tell(_ASKED[asked.kind], server=asked.server, data={"request_id": asked.id})
            self._make_way(asked, question_of(asked).call)

    def answer(
        self, asked: PendingRequest, action: str, content: Mapping[str, object] | None = None
    ) -> bool:
        """What the user decided, for the server; False when that no longer listens."""
        self.close(asked, _ANSWERS[action])
        answer = {"action": action} | ({} if content is None else {"content": content})
        return self._questions.answer(asked, to_json(answer))

    def refuse(self, asked: PendingRequest, reason: str) -> None:
        """Nobody can be asked: the server is told so."""
        self._requests.withdraw(asked.id, now=self._clock.now())
        self._questions.refuse(asked, reason)

    def close(self, asked: PendingRequest, status: RequestStatus) -> None:
        """It has an answer: this is noted, but not what it says."""
        now = self._clock.now()
        closed = self._requests.respond(asked.id, status, kind=asked.kind, now=now)
        self._journal.record(
            JournalEvent.ELICITATION_RESPONDED,
            server=asked.server,
            request_id=asked.id,
            status=status.value,
            duration_ms=round((now - closed.created_at) * 1000),
        )

    def visited(self, server: str, elicitation_id: object) -> None:
        """The server says that the person is done at its page: a question of it is answered."""
        if not isinstance(elicitation_id, str):
            return
        for asked in self._requests.pending(kind=RequestKind.ELICITATION, server=server):
            if asked.params.get("elicitationId") == elicitation_id:
                if asked.recipient is Recipient.PERSON and self.dialogue is not None:
                    self.dialogue.withdraw(asked)
                self.answer(asked, "accept")
        if self.dialogue is not None:
            self.dialogue.visited(server, elicitation_id)

    def end_call(self, call: object) -> None:
        """What a call has asked and nobody has answered is asked no more."""
        for asked in self._questions.end_call(call, now=self._clock.now()):
            self.closed(asked)

    def expire(self, now: float) -> None:
        """What nobody answered in time goes to nobody else."""
        for asked in self._requests.expire(now=now):
            self.closed(asked)  # this may stop its call, of which the server hears first then
            self._questions.refuse(asked, "The client did not answer in time.")
            self._journal.record(
                JournalEvent.ELICITATION_TIMEOUT, server=asked.server, request_id=asked.id
            )

    def closed(self, asked: PendingRequest) -> None:
        """It has ended without an answer: tell whoever it was with, and why."""
        if asked.recipient is Recipient.PERSON and self.dialogue is not None:
            self.dialogue.withdraw(asked)
            return
        reason = asked.closed_by.value if asked.closed_by else asked.status.value
        data = {"request_id": asked.id, "reason": reason}
        self._tell(_CLOSED[asked.kind], server=asked.server, data=data)
