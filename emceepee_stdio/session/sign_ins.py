"""Leads a person to sign in to a server, when somebody waits for it, and lets tokens be refreshed.

Nothing is opened here, and nothing is begun for a server that nobody waits for. A helper finds out
where the person has to go, and stores the address beside the record, so that several proxies lead
to the same visit: whoever finds one under way shows that. A client that can send its person to an
address is asked to, and the call waits meanwhile. With any other client a call that waits becomes
a task as soon as the address is known, because its answer is how the person learns it. That the
person has signed in is seen by the supervisor, in the store, whoever led them there.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.auth.bearer import BearerContext
from emceepee_stdio.auth.orders import HelperExit, SignInNeeded
from emceepee_stdio.auth.token_store import TokenStore, Visit
from emceepee_stdio.backends.backend_events import Question
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.journal import given_secrets
from emceepee_stdio.session.session import Session
from emceepee_stdio.state import EventType
from emceepee_stdio.wire.codec import RpcError, to_json
from emceepee_stdio.wire.helper_process import HelperProcess

__all__ = ["SignIns"]

_HELPER = "emceepee_stdio.cli.auth_helper"
_MESSAGE = "It wants you to sign in. The page is open to you for five minutes."
_LOOK_S = 0.1  # a helper takes a second or two to find the address
_ADDRESS_TIMEOUT_S = 60.0  # discovery and registration, with servers that are slow
_END_S = 0.5  # for helpers that wait for a person, when the proxy ends


class SignIns:
    """The visits of one session, by server. `group` is where it waits for helpers."""

    def __init__(
        self,
        session: Session,
        *,
        directory: Path,
        environ: Mapping[str, str],
        group: Callable[[], TaskGroup],
    ) -> None:
        self._session = session
        self._environ = environ
        self._group = group
        self._leading: set[str] = set()
        self._visits: dict[str, Visit] = {}
        self._questions: dict[str, str] = {}  # that are with the person, by server
        self._helpers: set[HelperProcess] = set()
        self.context = BearerContext(
            directory=str(directory), clock=session.clock, refresh=self._refresh, learn=self._learn
        )

    def __repr__(self) -> str:
        return f"<SignIns {', '.join(self._leading) or 'none'}>"

    def instruction(self, server: str, needed: SignInNeeded) -> str:
        """What to ask the person for, as far as it is known."""
        visit = self._visits.get(server)
        if visit is None or visit.url is None:
            why = f" ({visit.failed.rstrip('.')})" if visit is not None and visit.failed else ""
            return f"ask the person to run `{needed.command}`{why}"
        return f"ask the person to open {visit.url} or to run `{needed.command}`"

    def facts(self, server: str, error: ProxyError | None) -> dict[str, object]:
        """How a person signs in, where one has to."""
        if not isinstance(error, SignInNeeded):
            return {}
        visit = self._visits.get(server)
        url = {} if visit is None or visit.url is None else {"url": visit.url}
        return {"sign_in": {"command": error.command, **url}}

    def want(self, server: str, needed: SignInNeeded) -> None:
        """Somebody waits for the server: find out where the person has to go, and say so."""
        if server not in self._leading:
            self._leading.add(server)
            self._visits.pop(server, None)  # why the last one failed
            self._group().start_soon(self._lead, server, needed)
        elif server in self._visits and server not in self._questions:
            self._let_calls_go(server, needed)

    async def lead(self, server: str, needed: SignInNeeded, *, within: float) -> None:
        """As `want`, and wait until that is known."""
        self.want(server, needed)
        await self._session.until(
            lambda: server in self._visits or server not in self._leading, within=within
        )

    async def stop(self) -> None:
        """Let helpers go that only wait for a person; what they exchange they end."""
        for helper in self._helpers:
            helper.let_go()
        with anyio.move_on_after(_END_S):
            for helper in list(self._helpers):
                await helper.wait()

    async def _lead(self, server: str, needed: SignInNeeded) -> None:
        order = needed.order
        store = TokenStore(Path(order.directory), order.server, client_id=order.oauth.client_id)
        try:
            visit = await anyio.to_thread.run_sync(store.visit)
            helper = None
            if visit is None or visit.url is None:
                helper = self._start("sign-in", msgspec.json.encode(order))
                visit = await self._found(store, helper)
            self._visits[server] = visit
            data = {"command": needed.command, "url": visit.url, "error": visit.failed}
            self._session.tell(
                EventType.SIGN_IN_REQUIRED,
                server=server,
                data={name: value for name, value in data.items() if value is not None},
                fold=(server, "sign_in_required"),
            )
            if visit.url is None or not self._ask(server, needed, visit.url):
                self._let_calls_go(server, needed)
            if visit.url is not None:
                self._session.asked(_HELPER + server, server, None)
                await self._until_over(store, helper)
                del self._visits[server]
                self._end_question(server)
        finally:
            self._session.answered(_HELPER + server)
            self._leading.discard(server)

    def _ask(self, server: str, needed: SignInNeeded, url: str) -> bool:
        """Whether the client itself sends the person there."""
        session, name = self._session, self._session.ids()
        dialogue, now = session.routing.dialogue, session.clock.now()
        params = {"mode": "url", "message": _MESSAGE, "url": url, "elicitationId": name}
        question = Question(
            method="elicitation/create",
            params=Raw(to_json(params)),
            key=(_HELPER, name),
            deliver=partial(self._answered, server, needed),
        )
        asked = None if dialogue is None else session.questions.admit(server, question, now=now)
        if dialogue is None or asked is None:
            return False
        session.ticker.look(asked.expires_at)
        self._questions[server] = name
        if not dialogue.ask(asked):
            del self._questions[server]
            session.requests.withdraw(asked.id, now=now)
            return False
        return True

    def _answered(self, server: str, needed: SignInNeeded, outcome: bytes | RpcError) -> bool:
        """A person who does not want to go there now may do it later: the answer says how."""
        if isinstance(outcome, RpcError) or b'"accept"' not in outcome:
            self._questions.pop(server, None)
            self._let_calls_go(server, needed)
        return True

    def _end_question(self, server: str) -> None:
        """Its visit is over: the client may take its dialogue away."""
        if name := self._questions.pop(server, None):
            self._session.routing.visited(server, name)

    async def _found(self, store: TokenStore, helper: HelperProcess) -> Visit:
        """The address, or why there is none."""
        code: int | None = None
        with anyio.move_on_after(_ADDRESS_TIMEOUT_S):
            while code in (None, HelperExit.TRY_AGAIN):  # then another process leads the person
                code = helper.poll()
                visit = await anyio.to_thread.run_sync(store.visit)
                if visit is not None and (visit.url is not None or code is not None):
                    return visit
                await anyio.sleep(_LOOK_S)
        return Visit(failed="it is not known where to sign in; try again")

    async def _until_over(self, store: TokenStore, helper: HelperProcess | None) -> None:
        """Until the visit has ended, here or in another process."""
        if helper is not None:
            await helper.wait()
            self._helpers.discard(helper)
        while True:
            if not await anyio.to_thread.run_sync(store.is_visited, abandon_on_cancel=True):
                return
            await anyio.sleep(_LOOK_S)

    def _let_calls_go(self, server: str, needed: SignInNeeded) -> None:
        if needed.is_step_up:  # the others have what they need
            return
        why = f"{server} wants a person to sign in first: {self.instruction(server, needed)}; "
        for call in self._session.waiting_on(server):
            tail = "the call goes on by itself afterwards; "
            self._session.promote(call, "input_required", why=f"{why}{tail}")

    async def _refresh(self, order: bytes) -> int:
        return await self._start("refresh", order).wait()

    def _start(self, what: str, order: bytes) -> HelperProcess:
        helper = HelperProcess.start(_HELPER, what, order=order, environ=self._environ)
        if what == "sign-in":
            self._helpers.add(helper)
        return helper

    def _learn(self, server: str, secret: str) -> None:
        del server
        self._session.secrets.learn(given_secrets(headers={"authorization": f"Bearer {secret}"}))
