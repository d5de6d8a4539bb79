"""How a request of the session travels: on the connection there is, until its result is complete.

A request that was begun on one connection is never carried over to the next.
"""

from dataclasses import dataclass
from functools import partial

from msgspec import Raw

from emceepee_stdio.backends.base import OnProgress, Params, RemoteError, Settled
from emceepee_stdio.backends.ear import Ear
from emceepee_stdio.backends.eras import LOG_LEVEL
from emceepee_stdio.backends.listening import Ask
from emceepee_stdio.backends.rounds import Rounds, required_urls
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.backends.term import Term
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CallTimeout, ServerUnavailable

__all__ = ["Asking", "Errand"]

_BRACE = ord("{")
# What the SDK says of a tool whose questions belong to the other era: worth a hint, no more.
_SAID_IN_MODERN = "back-channel"
_SAID_IN_LEGACY = "returned an invalid result"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One request of the session: what for, and until when."""

    method: str
    within: float
    deadline: float
    call: object = None
    on_progress: OnProgress | None = None


class Asking:
    """Makes requests of one server. `log_level` is what a modern server is to log for each."""

    def __init__(
        self, server: str, supervisor: Supervisor, ear: Ear, *, clock: Clock, rounds: int
    ) -> None:
        self._server = server
        self._supervisor = supervisor
        self._ear = ear
        self._clock = clock
        self._limit = rounds
        self.log_level: str | None = None

    def __repr__(self) -> str:
        return f"<Asking {self._server} {self._ear.term!r}>"

    async def ask(
        self,
        method: str,
        params: Params,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
        settled: Settled | None = None,
    ) -> Raw:
        """A request that may raise questions; lean where the answer can only be a result."""
        term = self._ear.term
        if settled is None and (term is None or term.modern):
            return await self._ask_in_rounds(method, params, within, call, on_progress)
        asked_at = self._clock.now()
        try:
            result = await self._supervisor.request(
                method,
                params,
                within=within,
                call=call,
                on_progress=on_progress,
                settled=settled,
            )
        except RemoteError as error:
            if term is None:
                raise
            errand = Errand(
                method=method,
                within=within,
                deadline=asked_at + within,
                call=call,
                on_progress=on_progress,
            )
            result = await self._consent(term, errand, params, error)
        finally:
            if self._ear.pushed:
                self._ear.call_ended(call)
        return _checked(result, self._server, method)

    async def _ask_in_rounds(
        self,
        method: str,
        params: Params,
        within: float,
        call: object,
        on_progress: OnProgress | None,
    ) -> Raw:
        deadline = self._clock.now() + within
        term, _ = await self.reach(within)
        errand = Errand(
            method=method, within=within, deadline=deadline, call=call, on_progress=on_progress
        )
        send = partial(self.send, term, errand)
        try:
            if term.modern:
                result = await self._rounds(term, errand).run(send, params)
            else:
                result = await send(params)
        except RemoteError as error:
            result = await self._consent(term, errand, params, error)
        finally:
            if self._ear.pushed:
                self._ear.call_ended(call)
        return _checked(result, self._server, method)

    async def _consent(
        self, term: Term, errand: Errand, params: Params, refusal: RemoteError
    ) -> Raw:
        """An error may mean that a person has to visit a URL first; otherwise it stands."""
        if term.modern or not required_urls(refusal):
            raise self._advised(refusal, term) from None
        send = partial(self.send, term, errand)
        return await self._rounds(term, errand).consent(send, params, refusal)

    def _rounds(self, term: Term, errand: Errand) -> Rounds:
        return Rounds(
            self._server,
            term,
            ask=self._ear.show,
            take_back=self._ear.take_back,
            call=errand.call,
            limit=self._limit,
            clock=self._clock,
            deadline=errand.deadline,
        )

    async def send(self, term: Term, errand: Errand, params: Params | None) -> Raw:
        """On this connection or not at all, in what is left of the time."""
        term.check()
        left = errand.deadline - self._clock.now()
        if left <= 0:
            raise self._late(errand)
        if term.modern and self.log_level is not None:
            params = {**(params or {}), "_meta": {LOG_LEVEL: self.log_level}}
        try:
            return await self._supervisor.request(
                errand.method,
                params,
                within=left,
                call=errand.call,
                on_progress=errand.on_progress,
            )
        except CallTimeout:
            raise self._late(errand) from None

    def asker(self, term: Term) -> Ask:
        async def ask(method: str, params: Params | None, within: float) -> Raw:
            deadline = self._clock.now() + within
            return await self.send(
                term, Errand(method=method, within=within, deadline=deadline), params
            )

        return ask

    async def reach(self, within: float) -> tuple[Term, float]:
        """The term of the living connection, made first if need be, and the time that is left."""
        if self._ear.term is not None:
            return self._ear.term, within
        asked_at = self._clock.now()
        await self._supervisor.connection(within=within)
        if self._ear.term is None:
            raise ServerUnavailable(f"{self._server} is being connected anew.")
        return self._ear.term, within - (self._clock.now() - asked_at)

    def _late(self, errand: Errand) -> CallTimeout:
        return CallTimeout(
            f"{self._server} did not answer {errand.method} within {errand.within:g} s."
        )

    def _advised(self, error: RemoteError, term: Term) -> RemoteError:
        """A tool that asks in the way of the other era fails; the switch is worth naming."""
        said = _SAID_IN_MODERN if term.modern else _SAID_IN_LEGACY
        if said in error.error.message:
            other = "legacy" if term.modern else "modern"
            error.next_step = (
                f"If this tool asks its questions in the way of the {other} era, call "
                f"reconnect_server for {self._server} with era {other}, then call again."
            )
        return error


def _checked(result: Raw, server: str, method: str) -> Raw:
    if memoryview(result)[0] != _BRACE:
        shown = bytes(memoryview(result)[:200]).decode(errors="replace")
        raise CallFailed(f"{server} answered {method} with something that is no object: {shown}")
    return result
