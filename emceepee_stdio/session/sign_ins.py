"""Sign-ins during a session: leads the person to sign in, and starts token refreshes.

Nothing is begun for a server that nobody waits for, and nothing is opened without a yes. A helper
finds out where the person has to go, and stores the address beside the record, so that several
proxies lead to the same visit: whoever finds one under way shows that. What a model added may lead
to another host only when the person agrees, and that is asked before anything is sent there. The
person is asked by the client, and the call waits meanwhile. Where it cannot
ask, or they say no, a call that waits becomes a task, because its answer is how the person learns
the address. That the person has signed in is seen by the supervisor, in the store, whoever led them
there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import Struct

from emceepee_stdio.auth.bearer import BearerContext, HelperExit, SignInNeeded, SignInOrder
from emceepee_stdio.auth.browser import finds_browser
from emceepee_stdio.auth.token_store import TokenStore, Visit
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.redaction.known_secrets import token_secrets
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.person import Choice, Decision
from emceepee_stdio.session.person_page import open_in_browser
from emceepee_stdio.session.questions import host_of, url_problem, url_warning
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.visible_text import readable
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.helper_process import HELPER_MAIN, HelperProcess

# What a person is asked before they are led to a sign-in: in our own words, and of them alone.
#
# A client that can send its person to a page is asked to do so. One that has forms shows a choice,
# and only a yes that a person had the time to give is one. Line 1 names the server and the host of
# the sign-in, line 2 the host of the server; both are shorter than what every host shows of a line.


_NAME_CHARS = 25  # of a server: with the host line 1 stays under 110 characters
_ANSWERS = {"Yes, open the browser": Decision.AGREED_ONCE}
_THIS_COMPUTER = ("127.0.0.1", "localhost", "::1")


def _lines(order: SignInOrder, url: str, given_to: str | None) -> Iterator[str]:
    name = readable(order.name).replace('"', "'")
    name = name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…"
    there, here = host_of(url), host_of(order.server)
    source = "" if order.trusted else "You did not configure it. "
    place = f"at another host, {here}" if there != here else f"at {here}, too"
    if there == here in _THIS_COMPUTER:
        place = "on this computer"
    yield f'emceepee: "{name}" wants you to sign in at {there}.'
    if given_to is not None:
        given_to = host_of(f"https://{given_to}/")
        yield f"Beware: the sign-in there is then given to {given_to}, another host."
    yield f"{source}The server itself is {place}."
    if warning := url_warning(url):
        yield warning


_VISIT = "sign-in of "  # begins the id of a question to the person
_LOOK_S = 0.1  # a helper takes a second or two to find the address
_ADDRESS_TIMEOUT_S = 60.0  # discovery and registration, with servers that are slow
_ANSWER_TIMEOUT_S = 20.0  # who has asked for a server waits so long to learn the address
_END_S = 0.5  # for helpers that wait for a person, when the proxy ends
_MAX_HOSTS = 3  # other than the server's that a person is asked about for one sign-in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Led:
    """What is known before a person is sent there. `agreed`: they said yes to the host already."""

    visit: Visit
    helper: HelperProcess | None = None
    agreed: bool = False


class SignIns(Struct, eq=False, dict=True):
    """The visits of one session, by server. `group` is where it waits for helpers.

    `is_connected` tells whether a server is: then calls in flight have what they need, and only
    the one that wanted more rights has to be told.
    """

    session: Session
    directory: Path
    environ: Mapping[str, str]
    is_connected: Callable[[str], bool]
    group: Callable[[], TaskGroup]

    def __post_init__(self) -> None:
        # A client on another machine opens no browser on this one, and sends nobody to other hosts.
        self._is_over_http = BEHIND_HTTP in self.environ
        self._pages: dict[str, str] = {}  # that the client sent its person to, by server
        self._leading: dict[str, SignInNeeded] = {}
        self._next: dict[str, SignInNeeded] = {}  # what else was wanted meanwhile
        self._visits: dict[str, Visit] = {}
        self._with_person: set[str] = set()  # servers about which the client asks, or has asked
        self._helpers: set[HelperProcess] = set()
        self.context = BearerContext(
            directory=str(self.directory),
            clock=self.session.clock,
            refresh=self._refresh,
            learn=self._learn,
        )

    def __repr__(self) -> str:
        return f"<SignIns {', '.join(self._leading) or 'none'}>"

    def instruction(self, server: str, needed: SignInNeeded) -> str:
        """What to ask the person for, as far as it is known."""
        visit = self._visits.get(server)
        is_asked = server in self._with_person
        who = "the person is being asked, and can also" if is_asked else "ask the person to"
        if visit is None or visit.url is None:
            why = f" ({visit.failed.rstrip('.')})" if visit is not None and visit.failed else ""
            return f"{who} run `{needed.command}`{why}"
        return f"{who} open {visit.url} or{' ' if is_asked else ' to '}run `{needed.command}`"

    def pending(self, server: str) -> str | None:
        """What to ask the person for before anything goes on, where the client does not ask."""
        needed = self._leading.get(server)
        if needed is None or server not in self._visits or server in self._with_person:
            return None
        return None if self.is_connected(server) else self.instruction(server, needed)

    def facts(self, server: str, error: ProxyError | None) -> dict[str, object]:
        """How a person signs in, where one has to."""
        if not isinstance(error, SignInNeeded):
            return {}
        visit = self._visits.get(server)
        url = {} if visit is None or visit.url is None else {"url": visit.url}
        return {"sign_in": {"command": error.command, **url}}

    def want(self, server: str, needed: SignInNeeded, *, call: Call | None = None) -> None:
        """Somebody waits for the server: find out where the person has to go, and lead them."""
        if server not in self._leading:
            self._leading[server] = needed
            self._visits.pop(server, None)  # why the last one failed
            self.group().start_soon(self._lead, server, needed, call)
            return
        if needed is not self._leading[server]:
            self._next[server] = needed
        if server in self._visits and server not in self._with_person:
            self._let_calls_go(server, needed)

    async def lead(self, server: str, needed: SignInNeeded, call: Call) -> bool:
        """As `want`, and wait until the person has been asked; whether their visit is over."""
        until = self.session.until
        self.want(server, needed, call=call)
        await until(
            lambda: server in {*self._visits, *self._with_person} or server not in self._leading,
            within=min(call.client.ceiling, _ANSWER_TIMEOUT_S),
        )
        await until(lambda: server not in self._with_person, within=call.client.ceiling)
        return server not in self._leading and server not in self._visits

    async def stop(self) -> None:
        """Let helpers go that only wait for a person; what they exchange they end."""
        for helper in self._helpers:
            helper.let_go()
        with anyio.move_on_after(_END_S):
            for helper in list(self._helpers):
                await helper.wait()

    # One visit

    async def _lead(self, server: str, needed: SignInNeeded, call: Call | None) -> None:
        store = needed.order.store
        try:
            led = await self._find(needed, store, call)
            if led.visit.url is not None:  # who waits for the address waits for what comes of it
                self._with_person.add(server)
            self._visits[server] = led.visit
            self._tell(server, needed, led.visit)
            if led.visit.url is not None:
                self.session.asked(_VISIT + server, server, None)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send_person, needed, led, store, call)
                    await self._until_over(store, led.helper)
                    tasks.cancel_scope.cancel()
                await self._note_end(server, store)
        finally:
            self.session.answered(_VISIT + server)
            del self._leading[server]
            self._with_person.discard(server)
            if page := self._pages.pop(server, None):  # the client may take its dialogue away
                self.session.questions.visited(server, page)
        further = self._next.pop(server, None)
        if server in self._visits:  # it failed: who waits for it learns why
            self._let_calls_go(server, needed)
            further = None
        self.session.wake()
        if further is not None and not await further.is_met():  # the new token was refused as well
            self.want(server, further)

    def _tell(self, server: str, needed: SignInNeeded, visit: Visit) -> None:
        data = {"command": needed.command, "url": visit.url, "error": visit.failed}
        self.session.tell(
            EventType.SIGN_IN_REQUIRED,
            server=server,
            data={name: value for name, value in data.items() if value is not None},
            fold=(server, "sign_in_required"),
        )

    async def _find(self, needed: SignInNeeded, store: TokenStore, call: Call | None) -> _Led:
        """Where the person has to go, with their consent where that is needed."""
        order, agreed = needed.order, False
        visit = await anyio.to_thread.run_sync(store.visit)
        if visit is not None and visit.url is not None:
            return _Led(visit=_checked(visit))
        helper = None
        for _ in range(_MAX_HOSTS + 1):
            helper = self._start("sign-in", msgspec.json.encode(order))
            visit = await self._found(store, helper)
            host = visit.other_host
            if host is None or host in order.agreed_hosts:
                break
            agreed = await self._agrees(needed, host, visit.code_from, call)
            if not agreed:
                break
            order = msgspec.structs.replace(order, agreed_hosts=(*order.agreed_hosts, host))
        return _Led(visit=visit or Visit(), helper=helper, agreed=agreed)

    async def _found(self, store: TokenStore, helper: HelperProcess) -> Visit:
        """The address, or why there is none."""
        code: int | None = None
        with anyio.move_on_after(_ADDRESS_TIMEOUT_S):
            while code in (None, HelperExit.TRY_AGAIN):  # then another process leads the person
                code = helper.poll()
                visit = await anyio.to_thread.run_sync(store.visit)
                if visit is not None and (visit.url is not None or code is not None):
                    return _checked(visit)
                await anyio.sleep(_LOOK_S)
        return Visit(failed="it is not known where to sign in; try again")

    async def _agrees(
        self, needed: SignInNeeded, host: str, code_from: str | None, call: Call | None
    ) -> bool:
        """Whether the person wants to sign in at that host; asked until they have done so.

        With `code_from`: to sign in there, for that host.
        """
        order, answer = needed.order, Decision.CANNOT_ASK
        if self._is_over_http:
            return False
        async with anyio.create_task_group() as tasks:

            async def end_when_signed_in() -> None:
                await needed.signed_in()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_when_signed_in)
            self._with_person.add(order.name)
            answer = await self._confirm(
                order, f"https://{code_from or host}/", call, given_to=code_from and host
            )
            tasks.cancel_scope.cancel()
        if answer is not Decision.AGREED_ONCE:
            self._with_person.discard(order.name)
        return answer is Decision.AGREED_ONCE

    async def _send_person(
        self, needed: SignInNeeded, led: _Led, store: TokenStore, call: Call | None
    ) -> None:
        order, url = needed.order, led.visit.url or ""
        answer = await self._confirm(order, url, call, is_sent=True)
        if answer is Decision.CANNOT_ASK and not self._is_over_http:
            answer = Decision.AGREED_ONCE
            if not led.agreed:
                answer = await self._confirm(order, url, call)
            if answer is Decision.AGREED_ONCE and not await self._open(url, store):
                answer = Decision.CANNOT_ASK
        if answer is not Decision.AGREED_ONCE:
            self._with_person.discard(order.name)
            self._let_calls_go(order.name, needed)
            self.session.wake()

    async def _confirm(
        self,
        order: SignInOrder,
        url: str,
        call: Call | None,
        *,
        given_to: str | None = None,
        is_sent: bool = False,
    ) -> Decision:
        """Ask the person whether to open a browser there; `url` has at least the host.

        `given_to` is another host that would be given what they do there. With `is_sent`, their
        client is to send them.
        """
        if url_problem(url) or url_problem(order.server):
            return Decision.CANNOT_ASK
        choice = Choice(
            title="Sign in there?",
            lines=tuple(_lines(order, url, given_to)),
            digest=self.session.ids(),
            server=order.name,
            answers=_ANSWERS,
            url=url if is_sent else None,
            call=call,
        )
        if is_sent:
            self._pages[order.name] = choice.digest
        return await self.session.questions.confirm(choice)

    async def _open(self, url: str, store: TokenStore) -> bool:
        """Whether a browser shows it, which we opened, or another proxy upon the person's yes."""
        if not finds_browser(self.environ):
            return False
        if await anyio.to_thread.run_sync(store.claim_opening):
            open_in_browser(url, self.environ, self.group())
        return True

    async def _until_over(self, store: TokenStore, helper: HelperProcess | None) -> None:
        """Until the visit has ended, here or in another process."""
        if helper is not None:
            await helper.wait()
            self._helpers.discard(helper)
        while True:
            if not await anyio.to_thread.run_sync(store.is_visited, abandon_on_cancel=True):
                return
            await anyio.sleep(_LOOK_S)

    async def _note_end(self, server: str, store: TokenStore) -> None:
        """Why it came to nothing, if it did."""
        visit = await anyio.to_thread.run_sync(store.visit)
        if visit is not None and visit.failed is not None:
            self._visits[server] = visit
        else:
            del self._visits[server]

    def _let_calls_go(self, server: str, needed: SignInNeeded) -> None:
        if self.is_connected(server):
            return
        why = f"{server} wants a person to sign in first: {self.instruction(server, needed)}; "
        for call in self.session.waiting_on(server):
            tail = "the call goes on by itself afterwards; "
            self.session.promote(call, "input_required", why=f"{why}{tail}")

    # Helpers

    async def _refresh(self, order: bytes) -> int:
        return await self._start("refresh", order).wait()

    def _start(self, what: str, order: bytes) -> HelperProcess:
        helper = HelperProcess.start(HELPER_MAIN, what, order=order, environ=self.environ)
        if what == "sign-in":
            self._helpers.add(helper)
        return helper

    def _learn(self, server: str, secret: str) -> None:
        del server
        self.session.secrets.learn(token_secrets(secret))


def _checked(visit: Visit) -> Visit:
    """Nobody is sent to an address that can be read in two ways."""
    problem = visit.url and url_problem(visit.url)
    return Visit(failed=f"the address of its sign-in {problem}") if problem else visit
