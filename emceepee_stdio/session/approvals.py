"""The one flow by which a person allows a server that a model adds, a call, or changed tools.

They are asked through the client where that can ask, else on a page in their browser; both are a
`Person`. Else what waits is put aside for `emceepee approve`, with what is secret in it sealed.
Changed tools are always put aside: their differences are longer than a client shows of a question.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio.to_thread
from msgspec import Struct

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import NeedsApproval, PolicyDenied
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.person import WHY_NOT_ASKED, Choice, Decision, OnLate, Person
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.trace.request import Leg, on_leg
from emceepee_stdio.trust.store import ID_CHARS, Pending, TrustStore, seal

_UNNOTED = "Ask a person to see to the directory in which emceepee keeps what they agree to."

_MAX_REQUEST_CHARS = 20_000  # a person has to read it; nobody reads more than this
_CLIENT_CHARS = 60  # of what a client calls itself
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
    client: str = ""  # whose model wants it
    tool: str | None = None
    standing: str | None = None  # stands for every call of the tool
    target: str | None = None  # what the server starts or calls, without secrets
    what: str  # "github", "send of mail"
    first: str  # what a person has to allow first: "github", "this call of send of mail"
    undone: str  # "was not added"
    may: str  # "may be added"
    refused: str  # "it", "this call"
    again: str  # "call add_server again with the same arguments"
    by_itself: str = ""  # what happens upon a yes without another call
    instead: str  # what a model should do after a refusal
    shorter: str  # what a model should do where it is too long
    unnoted: str = _UNNOTED  # what to do where it cannot be put aside


class ApprovalFlow(Struct, eq=False, dict=True):
    """Asks about one subject at a time; several may wait for a person."""

    store: TrustStore
    clock: Clock
    journal: Journal
    page: Person
    tell: Callable[[EventType, ApprovalSubject], None]
    token: str = ""  # of the HTTP client for which all this is asked

    def __post_init__(self) -> None:
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
        """What the person says, if they can be asked; `digest` tells two of the same apart."""
        choice = Choice(
            title=subject.title,
            lines=subject.lines,
            digest=digest or subject.digest,
            call=call,
            within=call.client.ceiling,
            request=call.request,
        )

        def before_asking() -> None:
            self._before_asking(subject, call)

        async def decided_late(decision: Decision) -> None:
            agreed = decision is not Decision.REFUSED
            self.tell(EventType.APPROVAL_GRANTED if agreed else EventType.APPROVAL_REFUSED, subject)
            if not agreed:
                self._record_refusal(subject)
            await on_late(decision)

        decision = Decision.CANNOT_ASK
        with on_leg(Leg.PERSON):
            if call.client.person is not None:
                decision = await call.client.person.confirm(
                    choice, on_ask=before_asking, on_late=decided_late
                )
            if decision in (Decision.CANNOT_ASK, Decision.TOO_LONG):
                choice = replace(choice, pending=self._pending(subject))
                shown = await self.page.confirm(choice, on_ask=before_asking, on_late=decided_late)
                decision = decision if shown is Decision.CANNOT_ASK else shown
        return decision

    async def on_page(self, pending: Pending, *, within: float) -> Decision:
        """What the person says on their page to what they can agree to there alone."""

        async def late(_decision: Decision) -> None: ...

        choice = Choice(title="", lines=(), digest=pending.digest, pending=pending, within=within)
        with on_leg(Leg.PERSON):
            return await self.page.confirm(choice, on_ask=lambda: None, on_late=late)

    async def require(self, decision: Decision, subject: ApprovalSubject) -> None:
        """Raise unless the person agreed, with the next step."""
        match decision:
            case Decision.AGREED | Decision.AGREED_ONCE:
                return
            case Decision.REFUSED:
                self._record_refusal(subject)
                raise PolicyDenied(
                    f"{subject.what} {subject.undone}: the person refused {subject.refused}.",
                    hint=subject.instead,
                )
            case Decision.OPEN:
                raise NeedsApproval(
                    f"The person has not said yet whether {subject.what} {subject.may}.",
                    hint=f"To wait for the answer, {subject.again}.",
                )
            case Decision.ON_PAGE:
                command = f"emceepee approve {subject.digest[:ID_CHARS]}"
                raise NeedsApproval(
                    f"The person was asked on a page in their browser whether {subject.what} "
                    f"{subject.may}, and has not answered yet.",
                    hint=f"{subject.by_itself}To wait for the answer, {subject.again}. They can "
                    f"also run `{command}` in a terminal.",
                    command=command,
                )
            case Decision.CANNOT_ASK | Decision.TOO_LONG | Decision.AUTOMATIC:
                raise await self.put_aside(subject, WHY_NOT_ASKED[decision])

    async def put_aside(self, subject: ApprovalSubject, why: str) -> NeedsApproval:
        """Leave it for `emceepee approve`; the error that says so."""
        self.refuse_long(subject)
        pending = self._pending(subject)
        self.record(JournalEvent.APPROVAL_REQUESTED, subject, id=pending.id)
        fact = f"A person has to allow {subject.first} first, and nobody was asked: {why}."
        return await self.needed(pending, fact, again=subject.again, unnoted=subject.unnoted)

    async def needed(
        self,
        pending: Pending,
        fact: str,
        *,
        again: str,
        unnoted: str = _UNNOTED,
        on_page: bool = False,
    ) -> NeedsApproval:
        """The error that says how a person agrees to what is noted."""
        if problem := await anyio.to_thread.run_sync(self.note, pending):
            return NeedsApproval(f"{fact} That cannot be noted: {problem}.", hint=unnoted)
        command = f"emceepee approve {pending.id}"
        hint = f"Ask them to run `{command}` in a terminal; then {again}."
        if on_page:
            hint = (
                f"They are asked on a page in their browser: {again} once they agree. They can "
                f"also run `{command}` in a terminal."
            )
        return NeedsApproval(fact, hint=hint, command=command)

    def note(self, pending: Pending) -> str | None:
        """Leave it for `emceepee approve`, once; the problem if that fails. Blocking."""
        try:
            if not any(
                (one.digest, one.text) == (pending.digest, pending.text)
                for one in self.store.waiting()
            ):
                self.store.wait_for(pending)
        except OSError as error:
            return str(error.strerror)
        return None

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
                lambda: self.store.approve(
                    digest or subject.digest, name=subject.server, at=self.now(), what=what
                )
            )
        except OSError as error:
            self.record(JournalEvent.APPROVAL_UNWRITABLE, subject, error=str(error.strerror))
            return False
        return True

    def _pending(self, subject: ApprovalSubject) -> Pending:
        is_whole = subject.redacted == subject.text
        return Pending(
            digest=subject.digest,
            name=subject.server,
            text=subject.redacted,
            at=self.now(),
            sealed=None if is_whole else seal(self.store.key(), subject.text),
            tool=subject.tool,
            standing=subject.standing,
            client=subject.client[:_CLIENT_CHARS],
            session=self.journal.session,
            token=self.token,
        )

    def _record_refusal(self, subject: ApprovalSubject) -> None:
        self.record(JournalEvent.APPROVAL_DENIED, subject, reason="the person refused")

    def now(self) -> str:
        return self.clock.iso(self.clock.now())

    def record(self, event: JournalEvent, subject: ApprovalSubject, **data: object) -> None:
        named = {"tool": subject.tool, "target": subject.target}
        data |= {name: value for name, value in named.items() if value is not None}
        self.journal.write(event.level, event, server=subject.server, request_id=None, **data)

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
