"""The one way to ask a person: what they are asked, who shows it, and what comes of it.

A question of ours is one choice, and No is its default: a host that shows a boolean as True and
False takes both for an accept. Whoever can reach the person implements `Person`: the client, in
either era, a page in their browser, or a terminal. What a model says never counts as consent.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Protocol

import anyio
import msgspec
from msgspec import Raw

from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.json_values import mapping
from emceepee_stdio.state.pending_requests import PendingRequest
from emceepee_stdio.trust.store import Pending
from emceepee_stdio.wire.codec import RequestId


class Decision(Enum):
    """What came of asking a person; with the last three, no person was asked."""

    AGREED = auto()
    AGREED_ONCE = auto()
    REFUSED = auto()
    OPEN = auto()
    ON_PAGE = auto()  # as OPEN, in their browser
    CANNOT_ASK = auto()
    TOO_LONG = auto()
    AUTOMATIC = auto()


WHY_NOT_ASKED: Mapping[Decision, str] = {
    Decision.CANNOT_ASK: "this client cannot ask",
    Decision.TOO_LONG: "it is longer than this client shows of a question",
    Decision.AUTOMATIC: "this client answers by itself, without showing the question",
}

OnLate = Callable[[Decision], Awaitable[None]]

NO = "No"
CONSENT: Mapping[str, Decision] = {
    "Yes, this time": Decision.AGREED_ONCE,
    "Yes, and do not ask again": Decision.AGREED,
}
AGREEMENTS = (Decision.AGREED, Decision.AGREED_ONCE)
_FIELD = "decision"


_NOTHING: Mapping[str, Raw] = MappingProxyType({})


class ClientRequest(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A call as it came in. A modern one may be answered with questions, and is made again then."""

    id: RequestId = 0
    tool: str = ""  # as the client named it
    arguments: Raw | None = None
    native: bool = False  # of an exposed tool: answered as its server gave it
    whole: bool = False  # of an exposed tool whose page reads all of the result
    token: int | str | None = None  # for its progress
    meta: Mapping[str, Raw] = _NOTHING  # for the server
    modes: frozenset[str] | None = None  # kinds of questions that a modern client can ask
    state: str | None = None  # what a modern client brings back if it makes it again
    answers: Mapping[str, Raw] = _NOTHING  # the same

    def takes(self, mode: str) -> bool:
        """Whether such a question may be its answer."""
        return self.modes is not None and mode in self.modes

    def content(self) -> tuple[str, object]:
        """What is asked for, however it is written; as it is written where it cannot be read."""
        arguments = self.arguments or b"{}"
        found = decoded(arguments, object)
        return self.tool, bytes(arguments) if found is None else found


_NO_REQUEST = ClientRequest()


class InputRequired(Exception):
    """The answer to this call is a question: the client asks, and makes the call again."""

    def __init__(self, requests: Mapping[str, object], state: str) -> None:
        super().__init__("input required")
        self.requests = requests
        self.state = state


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A question of ours. It is shown whole, or the person is not asked."""

    title: str  # the question
    lines: tuple[str, ...]  # what it is about: the first names it, the second warns or says more
    digest: str  # stands for exactly this
    server: str = ""
    answers: Mapping[str, Decision] = field(default_factory=lambda: CONSENT)  # besides No
    url: str | None = None  # the page that the client is to send them to, in place of a form
    pending: Pending | None = None  # all of it, as it waits for a person elsewhere
    call: object = None  # that waits for the answer
    within: float = math.inf  # seconds that its client waits
    request: ClientRequest = _NO_REQUEST  # what a modern client makes again

    def params(self, *, titled: bool = True, keeps: bool = True) -> dict[str, object]:
        """The elicitation that shows it; `titled` as clients know forms since 2025-11-25.

        Unless an answer `keeps`, one for good is not offered.
        """
        message = "\n".join(self.lines)
        if self.url is not None:
            return {
                "mode": "url",
                "message": message,
                "url": self.url,
                "elicitationId": self.digest,
            }
        values = [
            NO,
            *(a for a, means in self.answers.items() if keeps or means is not Decision.AGREED),
        ]
        choices: dict[str, object] = {"enum": values, "enumNames": values}
        if titled:
            choices = {"oneOf": [{"const": value, "title": value} for value in values]}
        form = {"type": "string", "title": self.title, **choices, "default": NO}
        schema = {"type": "object", "properties": {_FIELD: form}, "required": [_FIELD]}
        return {"mode": "form", "message": message, "requestedSchema": schema}

    def decision(self, answer: Mapping[str, object]) -> Decision:
        """What the person chose; No unless they accepted."""
        if answer.get("action") != "accept":
            return Decision.REFUSED
        if self.url is not None:
            return Decision.AGREED_ONCE
        chosen = mapping(answer.get("content")).get(_FIELD)
        return self.answers.get(str(chosen), Decision.REFUSED)


class Asked:
    """A choice that was put to the person, until it is over. Several calls may wait for it."""

    def __init__(self, decision: Decision = Decision.OPEN) -> None:
        self.decision = decision
        self.over = anyio.Event()
        self.waiting = 0

    async def wait(self, within: float) -> Decision:
        """What they decided in so many seconds."""
        self.waiting += 1
        try:
            with anyio.move_on_after(within):
                await self.over.wait()
        finally:
            self.waiting -= 1
        return self.decision


class OwnQuestion(Asked):
    """A choice that waits for the person among the questions of servers. No tool answers it."""

    params: Raw | None = None
    key: object = None

    def __init__(self, choice: Choice) -> None:
        super().__init__(Decision.REFUSED)
        self.choice = choice
        self.call = choice.call

    def respond(self, _outcome: object) -> bool:
        """It has ended, by an answer or without one."""
        self.over.set()
        return True


class Person(Protocol):
    """A way to the person, for one client or one terminal."""

    async def confirm(
        self, choice: Choice, *, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        """Ask for a yes that a call waits for.

        `on_ask` is called before the person is disturbed, and may refuse it: not for an answer that
        is there already, nor for one that is awaited. `on_late` is called when they decide after
        the call has ended.
        """
        ...


class Dialogue(Person, Protocol):
    """A way that also shows questions which no call waits for, servers' questions among them."""

    def show(self, asked: PendingRequest) -> bool:
        """Put a pending question to the person, its recipient from now on; False if it cannot."""
        ...

    def withdraw(self, asked: PendingRequest) -> None:
        """It has ended without an answer of the person."""
        ...

    def visited(self, server: str, elicitation_id: str) -> None:
        """The person is done at a page that they were sent to."""
        ...
