"""The one flow by which a person allows a server that a model adds, or a call.

They are asked through the client where that can ask, else what waits is put aside for `emceepee
approve`, with what is secret in it sealed. What a model says never counts as consent.
"""

from dataclasses import dataclass

import anyio.to_thread

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import NeedsApproval, PolicyDenied
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.client_calls import (
    WHY_NOT_ASKED,
    Call,
    ConsentQuestion,
    Decision,
    OnLate,
)
from emceepee_stdio.trace.open_request import Leg, on_leg
from emceepee_stdio.trust.store import Pending, TrustStore, seal

UNNOTED = "Ask a person to see to the directory in which emceepee keeps what they agree to."

_MAX_REQUEST_CHARS = 20_000  # a person has to read it; nobody reads more than this
_MAX_UNANSWERED = 50  # questions without a yes: after so many the model will not get one


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSubject:
    """What a person is to allow, and the words of each sentence about it."""

    title: str  # the question
    lines: tuple[str, ...]  # what it is about, as a client shows it
    text: str  # all of it
    redacted: str  # the same without secrets
    digest: str  # stands for exactly this
    server: str
    tool: str | None = None
    target: str | None = None  # what the server starts or calls, without secrets
    what: str  # "github", "send of mail"
    first: str  # what a person has to allow first: "github", "this call of send of mail"
    undone: str  # "was not added"
    may: str  # "may be added"
    refused: str  # "it", "this call"
    again: str  # "call add_server again with the same arguments"
    instead: str  # what a model should do after a refusal
    shorter: str  # what a model should do where it is too long
    unnoted: str = UNNOTED  # what to do where it cannot be put aside


class ApprovalFlow:
    """Asks about one subject at a time; several may wait for a person."""

    def __init__(self, store: TrustStore, *, clock: Clock, journal: Journal) -> None:
        self._store = store
        self._clock = clock
        self._journal = journal
        self._unanswered = 0

    def refuse_long(self, subject: ApprovalSubject) -> None:
        """Raise where it is more than a person reads."""
        if len(subject.text) > _MAX_REQUEST_CHARS:
            raise PolicyDenied(
                f"{subject.what} {subject.undone}: a person has to agree to it, and it is longer "
                "than a person reads.",
                hint=subject.shorter,
            )

    async def decision(
        self, subject: ApprovalSubject, call: Call, *, on_late: OnLate, digest: str = ""
    ) -> Decision:
        """What the person says, if the client can ask; `digest` tells two of the same apart."""
        if call.consent is None:
            return Decision.CANNOT_ASK
        question = ConsentQuestion(
            title=subject.title, lines=subject.lines, digest=digest or subject.digest, call=call
        )
        with on_leg(Leg.PERSON):
            return await call.consent.confirm(
                question, on_ask=lambda: self._before_asking(subject, call), on_late=on_late
            )

    async def require(self, decision: Decision, subject: ApprovalSubject) -> None:
        """Raise unless the person agreed, with the next step."""
        match decision:
            case Decision.AGREED | Decision.AGREED_ONCE:
                return
            case Decision.REFUSED:
                self.record(JournalEvent.APPROVAL_DENIED, subject, reason="the person refused")
                raise PolicyDenied(
                    f"{subject.what} {subject.undone}: the person refused {subject.refused}.",
                    hint=subject.instead,
                )
            case Decision.OPEN:
                raise NeedsApproval(
                    f"The person has not said yet whether {subject.what} {subject.may}.",
                    hint=f"To wait for the answer, {subject.again}.",
                )
            case Decision.CANNOT_ASK | Decision.TOO_LONG | Decision.AUTOMATIC:
                raise await self.put_aside(subject, WHY_NOT_ASKED[decision])

    async def put_aside(self, subject: ApprovalSubject, why: str) -> NeedsApproval:
        """Leave it for `emceepee approve`; the error that says so."""
        self.refuse_long(subject)
        is_whole = subject.redacted == subject.text
        pending = Pending(
            digest=subject.digest,
            name=subject.server,
            text=subject.redacted,
            at=self.now(),
            sealed=None if is_whole else seal(self._store.key(), subject.text),
            tool=subject.tool,
        )
        self.record(JournalEvent.APPROVAL_REQUESTED, subject, id=pending.id)
        fact = f"A person has to allow {subject.first} first, and nobody was asked: {why}."
        try:
            await anyio.to_thread.run_sync(self._store.wait_for, pending)
        except OSError as error:
            return NeedsApproval(
                f"{fact} That cannot be noted: {error.strerror}.", hint=subject.unnoted
            )
        command = f"emceepee approve {pending.id}"
        return NeedsApproval(
            fact,
            hint=f"Ask them to run `{command}` in a terminal; then {subject.again}.",
            command=command,
        )

    async def agreed(
        self, subject: ApprovalSubject, *, kept: bool, digest: str = "", what: str = ""
    ) -> bool:
        """Note that they agreed, for good where that is wanted and can be; whether for good."""
        self._unanswered = 0
        self.record(JournalEvent.APPROVAL_GRANTED, subject, remembered=kept)
        if not kept:
            return False
        try:
            await anyio.to_thread.run_sync(
                lambda: self._store.approve(
                    digest or subject.digest, name=subject.server, at=self.now(), what=what
                )
            )
        except OSError as error:
            self.record(JournalEvent.APPROVAL_UNWRITABLE, subject, error=str(error.strerror))
            return False
        return True

    def now(self) -> str:
        return self._clock.iso(self._clock.now())

    def record(self, event: JournalEvent, subject: ApprovalSubject, **data: object) -> None:
        named = {"tool": subject.tool, "target": subject.target}
        data |= {name: value for name, value in named.items() if value is not None}
        self._journal.write(event.level, event, server=subject.server, request_id=None, **data)

    def _before_asking(self, subject: ApprovalSubject, call: Call) -> None:
        """Count that a person is about to be asked; raise when they were asked too often."""
        if self._unanswered >= _MAX_UNANSWERED:
            raise PolicyDenied(
                f"{subject.what} {subject.undone}: the person was asked {_MAX_UNANSWERED} times "
                "without agreeing, and is left in peace.",
                hint=subject.instead,
            )
        self._unanswered += 1
        call.trace.questions += 1
        self.record(JournalEvent.APPROVAL_REQUESTED, subject)
