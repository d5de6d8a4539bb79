"""Who calls, and what follows: how long it waits, what it shows, how its person is asked."""

from typing import NamedTuple

from emceepee_stdio.front.client_profile import ceiling_s, profile_of
from emceepee_stdio.front.consent import ConsentForm, ConsentRequests, ElicitedConsent
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.environment import BEHIND_HTTP

__all__ = ["CallingClient", "CallingClients"]


class CallingClient(NamedTuple):
    """What follows from the name of a client and the version that it speaks."""

    name: str
    version: str | None
    ceiling: float
    budget: int
    context_first: bool
    modern_form: ConsentForm
    consent: ElicitedConsent


class CallingClients:
    """The client by the name that it gave last; looked up again only when that changes."""

    def __init__(self, runtime: Runtime, protocol: Protocol, questions: ConsentRequests) -> None:
        self._runtime = runtime
        self._protocol = protocol
        self._questions = questions
        self._client: CallingClient | None = None

    def __repr__(self) -> str:
        return f"<CallingClients {self._protocol.client_name}>"

    def now(self) -> CallingClient:
        name, version, known = self._protocol.client_name, self._protocol.version, self._client
        if known is None or known.name != name or known.version != version:
            known = self._client = self._meet(name, version)
        return known

    def _meet(self, name: str, version: str | None) -> CallingClient:
        profile = profile_of(name, self._protocol.client_version)
        settings, answers = self._runtime.settings, self._runtime.automatic_answers
        ceiling = ceiling_s(
            name,
            profile,
            default_ms=settings.timeouts.client_ceiling_ms,
            configured_ms=settings.client_ceilings_ms,
            environ=self._runtime.environment.environ,
        )
        # Over HTTP a yes counts for one call: only the owner of this machine gives a standing one.
        keeps = BEHIND_HTTP not in self._runtime.environment.environ
        form = ConsentForm(profile, answers, version=version, keeps=keeps)
        configured = settings.limits.result_chars
        return CallingClient(
            name=name,
            version=version,
            ceiling=ceiling,
            budget=profile.result_bytes if configured is None else configured,
            context_first=profile.cuts_end,
            modern_form=ConsentForm(profile, answers, version=None, keeps=keeps),
            consent=ElicitedConsent(self._questions, form, within=ceiling),
        )
