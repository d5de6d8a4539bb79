"""The person at this machine: asked on a page in their own browser, where their client cannot ask.

A helper process serves the page (`trust/approval_page`). A request for approval is put into the
store, where `emceepee approve` finds it as well, and whoever answers it there has answered it here:
the store is looked at until it has an answer, or the request has been open long enough. A call
waits as long as its client does; the answer after that is told by `on_late`.

The helper says what a browser has to open, and this process opens it: an address that no model is
told. Of pages, a session opens a few and no more; what comes while one is open joins it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.auth.browser import has_desktop
from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.session.person import Asked, Choice, Decision, OnLate
from emceepee_stdio.trust.store import Pending, TrustStore
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.helper_process import HELPER_MAIN, HelperProcess

if TYPE_CHECKING:
    from emceepee_stdio.trust.approval_page import PageReport

_BROWSER = "emceepee_stdio.auth.browser"
_MAX_PAGES = 3  # opened by one session; a person who closes as many does not want another
_MAX_OPEN = 10  # requests at a time; more would only be clicked away
_LOOK_S = 0.2  # a person takes this for at once
_LOOK_AT_BROWSER_S = 1.0  # only to bury the helper that opened it
_HELPER_S = 10.0  # it starts in half a second
_END_S = 0.5  # for the helper, when the proxy ends
_MAX_REPORT_BYTES = 1 << 20
_FILES = ("approvals.json", "pending.json")


OnAnswer = Callable[[Raw | None], None]


def open_in_browser(address: str, environ: Mapping[str, str], tasks: TaskGroup) -> None:
    """Have a process of its own open it, which is not a server of ours."""
    helper = HelperProcess.start(_BROWSER, order=address.encode(), environ=environ)
    tasks.start_soon(partial(helper.wait, every=_LOOK_AT_BROWSER_S))


class PersonPage(Struct, eq=False, dict=True):
    """The page of one session. `group` is where it waits for answers."""

    store: TrustStore
    session: str
    environ: Mapping[str, str]
    is_wanted: Callable[[], bool]
    within: float
    clock: Clock
    group: Callable[[], TaskGroup]

    def __post_init__(self) -> None:
        # A client on another machine has no browser opened on this one.
        self._has_desktop = BEHIND_HTTP not in self.environ and has_desktop(self.environ)
        self._open: dict[str, Asked] = {}  # by the digest of the choice
        self._pages = 0
        self._helper: HelperProcess | None = None
        self._shown = anyio.Event()
        self._is_shown = False
        self._questions: dict[str, OnAnswer] = {}
        self._sending = anyio.Lock()
        self._showing = anyio.Lock()  # several requests at once get one page

    def __repr__(self) -> str:
        return f"<PersonPage {len(self._open)} open, {self._pages} pages>"

    @property
    def is_there(self) -> bool:
        return self._has_desktop and self.is_wanted()

    async def confirm(
        self, choice: Choice, *, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        if choice.pending is None or not self.is_there:
            return Decision.CANNOT_ASK
        asked = self._open.get(choice.digest)
        if asked is None:
            if len(self._open) >= _MAX_OPEN:
                return Decision.CANNOT_ASK
            on_ask()
            asked = self._open[choice.digest] = Asked()
            self.group().start_soon(self._follow, asked, choice.pending, choice.digest, on_late)
        else:
            self.group().start_soon(self.bring_up)  # they may have closed it
        try:
            decision = await asked.wait(choice.within)
        finally:
            self._forget(asked, choice.digest)
        return Decision.ON_PAGE if decision is Decision.OPEN else decision

    async def stop(self) -> None:
        """The page learns that the session is over."""
        if self._helper is not None:
            self._helper.let_go()
            with anyio.move_on_after(_END_S):
                await self._helper.wait()

    # One request

    async def _follow(self, asked: Asked, pending: Pending, digest: str, on_late: OnLate) -> None:
        """Put it on the page, and look for the answer until there is one."""
        try:
            asked.decision = await self._answer(pending)
        except OSError:  # it cannot be put into the store
            asked.decision = Decision.CANNOT_ASK
        asked.over.set()
        is_answer = asked.decision not in (Decision.OPEN, Decision.CANNOT_ASK)
        if is_answer and not asked.waiting:
            await on_late(asked.decision)
        self._forget(asked, digest)

    def _forget(self, asked: Asked, digest: str) -> None:
        """Once it is over, and nobody is about to learn the answer."""
        if asked.over.is_set() and not asked.waiting and self._open.get(digest) is asked:
            del self._open[digest]

    async def _answer(self, pending: Pending) -> Decision:
        await anyio.to_thread.run_sync(self.store.wait_for, pending)
        if not await self.bring_up():
            return Decision.CANNOT_ASK
        seen, decision = None, Decision.OPEN
        until = self.clock.now() + self.within
        while decision is Decision.OPEN and self.clock.now() < until:
            stamp = await anyio.to_thread.run_sync(self.store.stamp, _FILES)
            if stamp != seen:
                seen = stamp
                is_there, decision = await anyio.to_thread.run_sync(self._look, pending)
                if not is_there:
                    break
            await anyio.sleep(_LOOK_S)
        return decision

    def _look(self, pending: Pending) -> tuple[bool, Decision]:
        """Whether it still waits, and the answer. What was agreed to once is used up here."""
        # In this order: an answer is written before the request is taken away.
        is_there = any(one.digest == pending.digest for one in self.store.waiting())
        decision = Decision.OPEN
        if self.store.is_approved(pending.standing or pending.digest):
            decision = Decision.AGREED
        elif self.store.redeem(pending.digest, now=self.clock.iso(self.clock.now())):
            decision = Decision.AGREED_ONCE
        elif self.store.is_refused(pending.digest):
            decision = Decision.REFUSED
        return is_there, decision

    # Questions

    def show(self, question: Mapping[str, object], on_answer: OnAnswer) -> None:
        """Put a question on the page; no answer is None."""
        name = str(question["id"])
        self._questions[name] = on_answer
        self.group().start_soon(self._ask, name, question)

    def withdraw(self, name: str) -> None:
        """It has ended without an answer from the page."""
        if self._questions.pop(name, None) is not None and self._helper is not None:
            self.group().start_soon(partial(self._send, self._helper, withdraw=name))

    async def _ask(self, name: str, question: Mapping[str, object]) -> None:
        if not await self.bring_up() or self._helper is None:
            self._settle(name, None)
        elif name in self._questions:
            await self._send(self._helper, ask=question)

    def _settle(self, name: str, answer: Raw | None) -> None:
        if on_answer := self._questions.pop(name, None):
            on_answer(answer)

    # The page

    async def _send(self, helper: HelperProcess, **command: object) -> None:
        """In a thread: one that is stopped reads nothing."""
        async with self._sending:
            line = msgspec.json.encode(command)
            await anyio.to_thread.run_sync(helper.send, line, abandon_on_cancel=True)

    async def bring_up(self) -> bool:
        """Whether there is a page that shows what waits; opened if it has to be, and may be."""
        if not self.is_there:
            return False
        async with self._showing:
            helper = self._helper
            if helper is None or helper.poll() is not None:
                helper = self._helper = self._start()
            self._shown, self._is_shown = anyio.Event(), False
            await self._send(helper, show=self._pages < _MAX_PAGES)
            with anyio.move_on_after(_HELPER_S):
                await self._shown.wait()
                return self._is_shown
            await helper.kill()
            return False

    def _start(self) -> HelperProcess:
        order = {"directory": str(self.store.directory), "session": self.session}
        helper = HelperProcess.start(
            HELPER_MAIN,
            "page",
            order=msgspec.json.encode(order),
            environ=self.environ,
            answers=True,
        )
        self.group().start_soon(self._listen, helper)
        return helper

    async def _listen(self, helper: HelperProcess) -> None:
        from emceepee_stdio.trust.approval_page import (  # noqa: PLC0415 - most sessions have no page
            PageReport,
        )

        while line := await helper.answer(_MAX_REPORT_BYTES, last=False):
            if (report := decoded(line, PageReport)) is not None:
                self._take(report)
        self._shown.set()
        for name in list(self._questions):
            self._settle(name, None)

    def _take(self, report: "PageReport") -> None:
        if report.question is not None:
            self._settle(report.question, report.answer.copy())
        if report.open is not None:
            open_in_browser(report.open, self.environ, self.group())
        if report.shown is not None:
            self._pages += report.open is not None
            self._is_shown = report.shown
            self._shown.set()
