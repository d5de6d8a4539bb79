"""Serves the page on which a person answers what waits, and takes back what they allowed for good.

A helper process of a session serves it, or `emceepee approve --web`. Requests for approval are read
from the store and answered there, as `emceepee approve` does: whoever waits for an answer finds it
in the store. Questions of a session come from its process (`ask`), and their answers go back there.

Three things keep an answer the person's. Only the browser that we opened gets in: by a token that
is good once, and a cookie afterwards. Only the page itself can post, which `Origin` proves. And
nothing is answered that has not been on the page for a second, so that what comes up under a
pointer is not clicked. Text of others is sent as JSON, and the page makes text nodes of it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Literal
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import Listener, SocketStream
from msgspec import Struct

from emceepee_stdio.clock import HOUR_S, Clock
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.storage.private_file import Stamp, make_private, write_new
from emceepee_stdio.trust.approval_request import shown
from emceepee_stdio.trust.store import ONE_CALL_LIFETIME_S, Approval, Pending, TrustStore
from emceepee_stdio.wire.loopback_http import (
    EVENT_STREAM,
    LOOPBACK,
    OPEN_PATH,
    Entrance,
    LoopbackServer,
    PageRefusal,
    PageReply,
    PageRequest,
    UsedAgain,
    loopback_listener,
    page_reply,
)

Answer = Literal["no", "once", "always"]

_COOKIE = "emceepee_approve"
_AGAIN = "Run emceepee approve --web to open the page."
_PAGE = "approvals.html"
_READING_S = 1.0  # nobody has read a request that has been on the page for less
_POLL_S = 0.2  # a person takes this for at once
_KEEP_ALIVE_POLLS = 75  # 15 s
_NOTHING = b"null"
_LEAVING_S = 1.0  # for pages to hear that this is over
_LABELS = frozenset(
    {"Server", "Beware", "Address", "Headers", "Command", "Program", "Directory", "Variables"}
    | {"Tool", "Arguments"}
)
# A browser posts the token from this file, which only its owner can read: an address with a token
# would stand in the arguments of the browser, where every user of the machine can see it.
_FILE_NAME = "page-{}.html"
_FILE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer"><title>emceepee</title></head>
<body><form method="post" action="http://{authority}{path}">
<input type="hidden" name="token" value="{token}"><button>Open the page of emceepee</button></form>
<script>document.forms[0].submit()</script></body></html>
"""


class PageOrder(Struct, frozen=True, kw_only=True):
    """What the helper of a session is told first: where the store is, and which session it is."""

    directory: str
    session: str


class PageQuestion(Struct, frozen=True, kw_only=True):
    """A question of a session. `schema` is that of its form; `url` is where it leads."""

    id: str
    server: str
    title: str
    text: str
    schema: dict[str, object] | None = None
    url: str | None = None


class PageCommand(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line to the helper. `show`: something waits; whether a browser may be opened for it."""

    show: bool | None = None
    ask: PageQuestion | None = None
    withdraw: str | None = None


class PageReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the helper. `shown` answers `show`; `open` is for the browser, if there is one."""

    shown: bool | None = None
    open: str | None = None
    question: str | None = None
    answer: msgspec.Raw = msgspec.Raw(_NOTHING)


class _Posted(Struct, frozen=True, kw_only=True):
    """What the page sends: an answer, or an approval that is taken back."""

    id: str
    answer: Answer | Literal["revoke", "reply"]
    content: msgspec.Raw = msgspec.Raw(_NOTHING)


class ApprovalPage(Struct, eq=False, dict=True):
    """One page for one person; several tabs may show it. `session` is the one that asks."""

    store: TrustStore
    port: int
    clock: Clock
    session: str = ""
    on_reply: Callable[[str, msgspec.Raw], None] = lambda _id, _content: None

    def __post_init__(self) -> None:
        self._authority = f"{LOOPBACK}:{self.port}"
        self._server = LoopbackServer(
            self.port, self._reply, methods=("GET", "POST"), led_here=(OPEN_PATH,)
        )
        self._path = token_urlsafe(9)
        self._entrance = self._new_entrance()
        self._addresses: set[str] = set()  # tokens that stand in an address
        self._files: dict[str, Path] = {}  # the file with a token
        self._questions: dict[str, PageQuestion] = {}
        self._shown_at: dict[str, float] = {}
        self._stamp: tuple[Stamp | None, ...] | None = None
        self._state: bytes | None = None
        self._looking = anyio.Lock()
        self._changed = anyio.Event()
        self._is_over = False
        self.pages = 0  # tabs that show it
        self.entered = anyio.Event()

    def __repr__(self) -> str:
        return f"<ApprovalPage {self._authority} {self.pages} open>"

    async def run(self, listener: Listener[SocketStream]) -> None:
        """Until it is cancelled."""
        await self._server.accept(listener)

    async def end(self) -> None:
        """Tell the pages that this is over."""
        self._is_over = True
        self._change()
        with anyio.move_on_after(_LEAVING_S):
            await self._server.drained()
        for file in self._files.values():
            with suppress(OSError):
                file.unlink()

    # The entrance

    def new_file(self) -> str:
        """A file of ours that leads a browser here; OSError where it cannot be written."""
        token, directory = self._entrance.new_token(), self.store.directory
        file = directory / _FILE_NAME.format(token_hex(8))
        make_private(directory)
        text = _FILE.format(authority=self._authority, path=OPEN_PATH, token=token)
        write_new(file, text.encode())
        self._files[token] = file
        written_at = file.stat().st_mtime
        for old in directory.glob(_FILE_NAME.format("*")):  # of helpers that were killed
            with suppress(OSError):
                if old.stat().st_mtime < written_at - HOUR_S:
                    old.unlink()
        return file.as_uri()

    def new_address(self) -> str:
        """The same as an address. Others may see it: brought twice, nobody is let in by it."""
        token = self._entrance.new_token()
        self._addresses.add(token)
        return f"http://{self._authority}{OPEN_PATH}?token={token}"

    def _new_entrance(self) -> Entrance:
        return Entrance(_COOKIE, path=self._path, cookie=token_urlsafe(32), again=_AGAIN)

    def _opened(self, request: PageRequest) -> PageReply:
        posted = parse_qs(request.body.decode("latin-1")).get("token", [""])
        given = posted[0] if request.method == "POST" else request.query.get("token", "")
        if request.method == "POST" and given in self._addresses:
            given = ""
        try:
            reply = self._entrance.opened(given, request)
        except UsedAgain:
            if given in self._addresses:
                self._shut_out()
                raise PageRefusal(
                    HTTPStatus.FORBIDDEN,
                    "This address was opened twice, so somebody else may have it: it leads nowhere "
                    f"any more, and pages that it opened are closed. {_AGAIN}",
                ) from None
            raise
        if file := self._files.pop(given, None):
            with suppress(OSError):
                file.unlink()
        return reply

    def _shut_out(self) -> None:
        """No page that is open now gets anything any more."""
        self._entrance = self._new_entrance()
        self._change()

    # What is served

    async def _reply(self, request: PageRequest) -> PageReply:
        if request.path == OPEN_PATH:
            return self._opened(request)
        name = self._entrance.within(request)
        if request.method == "POST" and name == "answer":
            return await self._take(request)
        if name == "events" and request.method == "GET":
            return PageReply(self._events(self._entrance), EVENT_STREAM)
        if request.method != "GET":
            raise PageRefusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
        return page_reply("trust", name or _PAGE)

    async def _events(self, entrance: Entrance) -> AsyncGenerator[bytes]:
        """All that waits, and again all of it with every change."""
        self.pages += 1
        self.entered.set()
        sent, quiet_polls = None, 0
        try:
            while not self._is_over and entrance is self._entrance:
                changed, state = self._changed, await self._look()
                if state is not sent:
                    sent, quiet_polls = state, 0
                    yield b"data: " + state + b"\n\n"
                quiet_polls += 1
                if quiet_polls % _KEEP_ALIVE_POLLS == 0:
                    yield b": \n\n"
                with anyio.move_on_after(_POLL_S):
                    await changed.wait()
            yield b"event: over\ndata: {}\n\n"
        finally:
            self.pages -= 1

    async def _look(self) -> bytes:
        async with self._looking:
            stamp = await anyio.to_thread.run_sync(
                self.store.stamp, ("approvals.json", "pending.json")
            )
            if self._state is None or stamp != self._stamp:
                self._stamp = stamp
                self._state = await anyio.to_thread.run_sync(self._read)
            return self._state

    def _read(self) -> bytes:
        waiting = self.store.waiting()
        items = [self._item(one) for one in waiting]
        items += [_question_item(one) for one in list(self._questions.values())]
        now = self.clock.now()
        self._shown_at = {str(one["id"]): self._shown_at.get(str(one["id"]), now) for one in items}
        granted = [_granted_row(one) for one in self.store.granted() if not one.until]
        return msgspec.json.encode({"waiting": items, "granted": granted})

    def _item(self, pending: Pending) -> dict[str, object]:
        """A request as the page shows it: whole, for the person's eyes alone."""
        lines = [shown(line) for line in pending.whole(self.store.key()).split("\n")]
        parts = [line.partition(": ") for line in lines]
        kind = "call" if pending.tool is not None else "server"
        kind = kind if pending.tools is None else "tools"
        is_plain = kind != "tools" and all(label in _LABELS for label, _, _ in parts)
        return {
            "id": pending.digest,
            "command": f"emceepee approve {pending.id}",
            "kind": kind,
            "name": shown(pending.name),
            "client": shown(pending.client),
            "at": pending.at,
            "mine": not self.session or pending.session == self.session,
            "rows": [[label, what] for label, _, what in parts] if is_plain else [],
            "text": "" if is_plain else "\n".join(lines),
            "answers": _answers(pending),
        }

    # What comes back

    async def _take(self, request: PageRequest) -> PageReply:
        posted = decoded(request.body, _Posted)
        if posted is None or request.headers.get("content-type") != "application/json":
            return _said(HTTPStatus.BAD_REQUEST, "This is no answer.")
        try:
            if posted.answer == "revoke":
                await anyio.to_thread.run_sync(self.store.revoke, posted.id)
                return _said(HTTPStatus.OK, "")
            problem = await self._answered(posted)
        except OSError as error:
            text = f"The answer cannot be written down: {error.strerror}."
            return _said(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        self._change()
        return _said(HTTPStatus.CONFLICT if problem else HTTPStatus.OK, problem)

    async def _answered(self, posted: _Posted) -> str:
        """Why an answer does not count, or nothing."""
        shown_at = self._shown_at.get(posted.id)
        if shown_at is None:
            return "This no longer waits for an answer."
        if self.clock.now() < shown_at + _READING_S:
            return "Read it first: an answer counts after a second."
        if posted.id in self._questions:
            if posted.answer != "reply" or bytes(posted.content) == _NOTHING:
                return "This is no answer."
            del self._questions[posted.id]
            self.on_reply(posted.id, posted.content.copy())
            return ""
        return await anyio.to_thread.run_sync(self._decide, posted)

    def _decide(self, posted: _Posted) -> str:
        pending = next((one for one in self.store.waiting() if one.digest == posted.id), None)
        if pending is None:
            return "This no longer waits for an answer."
        now = self.clock.now()
        if posted.answer == "no":
            self.store.refuse(pending.digest)
        elif posted.answer not in _answers(pending):
            return "This is no answer."
        elif posted.answer == "once":
            until = self.clock.iso(now + ONE_CALL_LIFETIME_S)
            self.store.allow(pending, at=self.clock.iso(now), once_until=until)
        else:
            self.store.allow(pending, at=self.clock.iso(now))
        return ""

    # Questions of the session

    def ask(self, question: PageQuestion) -> None:
        self._questions[question.id] = question
        self._change()

    def withdraw(self, question_id: str) -> None:
        if self._questions.pop(question_id, None) is not None:
            self._change()

    def _change(self) -> None:
        self._state = None
        self._changed.set()
        self._changed = anyio.Event()


def _answers(pending: Pending) -> Sequence[Answer]:
    """What a person can say beside no: a change of tools is agreed to for good."""
    if pending.tools is not None:
        return ("always",)
    is_for_one = pending.tool is not None and pending.standing is None
    return ("once",) if is_for_one else ("once", "always")


def _question_item(question: PageQuestion) -> dict[str, object]:
    return {
        "id": question.id,
        "kind": "question",
        "name": shown(question.server),
        "title": question.title,
        "mine": True,
        "text": "\n".join(map(shown, question.text.split("\n"))),
        "schema": question.schema,
        "url": question.url,
    }


def _granted_row(approval: Approval) -> dict[str, object]:
    return {
        "id": approval.digest,
        "name": shown(approval.name),
        "what": shown(approval.what),
        "at": approval.at,
    }


def _said(status: int, problem: str) -> PageReply:
    return PageReply(msgspec.json.encode({"problem": problem}), "application/json", status=status)


# The helper of a session: it is asked for a page, and says what the browser has to open.

_OPENING_S = 30.0  # then the browser that was to read our file is taken for one that cannot


class SessionPage:
    """The page under way: commands in, reports out. `reads_files`: the browser can read our file.

    Who gives the commands opens the browser, and ends the page by their end.
    """

    def __init__(self, order: PageOrder, *, reads_files: bool) -> None:
        self._order = order
        self._reads_files = reads_files
        self._clock = Clock()
        self._opening_until = 0.0

    async def run(
        self, commands: AsyncIterator[PageCommand], report: Callable[[PageReport], None]
    ) -> None:
        listener, port = await loopback_listener(0)
        page = ApprovalPage(
            TrustStore(Path(self._order.directory)),
            port,
            clock=self._clock,
            session=self._order.session,
            on_reply=lambda name, content: report(PageReport(question=name, answer=content)),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(page.run, listener)
            try:
                async for command in commands:
                    if command.ask is not None:
                        page.ask(command.ask)
                    if command.withdraw is not None:
                        page.withdraw(command.withdraw)
                    if command.show is not None:
                        show = partial(self._show, page, may_open=command.show, report=report)
                        tasks.start_soon(show)
            finally:
                with anyio.CancelScope(shield=True):
                    await page.end()
            tasks.cancel_scope.cancel()

    async def _show(
        self,
        page: ApprovalPage,
        *,
        may_open: bool,
        report: Callable[[PageReport], None],
    ) -> None:
        """Have a page open, if it is not; where the browser does not read a file, by an address."""
        is_opening = self._clock.now() < self._opening_until and not page.entered.is_set()
        if page.pages or is_opening:
            report(PageReport(shown=True))
            return
        if not may_open:
            report(PageReport(shown=False))
            return
        self._opening_until = self._clock.now() + _OPENING_S
        page.entered = entered = anyio.Event()
        if self._reads_files:
            with suppress(OSError):
                report(PageReport(shown=True, open=page.new_file()))
                with anyio.move_on_after(_OPENING_S):
                    await entered.wait()
                if not entered.is_set():
                    report(PageReport(open=page.new_address()))
                return
        report(PageReport(shown=True, open=page.new_address()))
