"""Lists over many servers: asked at the same time, filtered, shown by pages.

A server that does not answer is named with the reason, never left out in silence. Neither a slow
pattern nor a long list makes other calls wait, and no page is too long to be read.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated, Protocol, TypeVar

import anyio
import anyio.lowlevel
from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.auth.bearer import SignInNeeded
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.interface import Kind
from emceepee_stdio.config.server import marked_names
from emceepee_stdio.errors import (
    InvalidArguments,
    InvalidPattern,
    NeedsSignIn,
    ProxyError,
    ServerNotFound,
    ServerUnavailable,
)
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.rendering import room_beside_context
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.visible_text import LISTED_NAMES, SHOWN_NAME_CHARS, close_names, cut
from emceepee_stdio.wire.codec import to_json

ALL = ".*"
MAX_SERVER_TEXT_CHARS = 4_000  # a page of its own words; a hostile server has no more room
QUICK_LIST_TIMEOUT_S = 5.0  # for a list that only makes an answer better, while a caller waits

_CURSOR_DIGITS = 18  # fits into 64 bits, and no list is as long
_LIST_TIMEOUT_S = 10.0  # one slow server must not keep the lists of all others back
_PAGE_BYTES = 24_000  # 6000 tokens of 4 bytes; the strictest client cuts at 10,000
_REASON_CHARS = 400  # per server that failed: a sentence or two
_PATTERN_TIMEOUT_FACTOR = 10  # all texts together may take so many times what one may
_SLICE_S = 0.01  # other calls get their turn after this much matching
_CONNECTING_TIMEOUT_S = 1.0  # for who is not there yet, when others have answered
_SIGNED_IN_WAIT_S = 5.0  # a token that a person brought is seen within a second

_LATER = "Call again later, or list_servers to see what it waits for."

ServerPattern = Annotated[str, Meta(description="A server's name, or a regex of names.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="How many at once.")]
Cursor = Annotated[str, Meta(description="next_cursor of the answer before.")]

T = TypeVar("T")
Item = tuple[str, Mapping[str, object]]


class _Paged(Protocol):
    limit: int
    cursor: str | UnsetType


class _Listing(_Paged, Protocol):
    server: str
    pattern: str


@dataclass(slots=True)
class Found:
    """Items with their server, and the servers that could not be asked."""

    items: list[Item] = field(default_factory=list[Item])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    cut: dict[str, int] = field(default_factory=dict[str, int])
    hidden: dict[str, str] = field(default_factory=dict[str, str])
    remembered: dict[str, str] = field(default_factory=dict[str, str])

    def failures(self) -> dict[str, object]:
        """The servers that did not answer or were not asked, and what is not shown of others."""
        more = {server: f"Only its first {n} are listed." for server, n in self.cut.items()}
        told = {
            "servers_that_failed": self.failed,
            "servers_with_more": more,
            "not_shown": self.hidden,
            "from_catalogue": self.remembered,
        }
        return {what: servers for what, servers in told.items() if servers}

    def fail(self, server: str, reason: str) -> None:
        self.failed[server] = cut(reason, _REASON_CHARS)


def cut_text(text: str) -> str:
    """What a server says of itself or of a tool, as much of it as is shown."""
    if len(text) <= MAX_SERVER_TEXT_CHARS:
        return text
    return f"{text[:MAX_SERVER_TEXT_CHARS]} … (cut from {len(text)} characters)"


def pattern(runtime: Runtime, text: str) -> Pattern:
    fixed = runtime.settings.fixed
    try:
        return Pattern(text, max_chars=fixed.pattern_chars, timeout=fixed.pattern_s)
    except RecursionError:
        raise InvalidPattern("The pattern is nested too deeply.") from None


async def matching(
    runtime: Runtime, items: Iterable[T], wanted: Pattern, texts: Callable[[T], Iterable[str]]
) -> list[T]:
    """The items of which one text matches; a pattern that is slow in sum is refused, too."""
    if wanted.text == ALL:
        return list(items)
    limit = _PATTERN_TIMEOUT_FACTOR * runtime.settings.fixed.pattern_s
    now = runtime.clock.now
    found: list[T] = []
    spent, turn = 0.0, now()
    for item in items:
        if any(map(wanted.matches, texts(item))):
            found.append(item)
        if (took := now() - turn) >= _SLICE_S:
            spent += took
            if spent > limit:
                raise InvalidPattern(f"The pattern took longer than {limit * 1000:g} ms in all.")
            await anyio.lowlevel.checkpoint()
            turn = now()
    return found


def having(*keys: str) -> Callable[[Item], Iterable[str]]:
    """The texts of an item that stand under these keys."""
    return lambda item: (str(item[1][key]) for key in keys if item[1].get(key))


def of_server(server: str, item: Mapping[str, object]) -> dict[str, object]:
    """An item under the name of the server that lists it, whatever the item itself says of that."""
    return {"server": server} | dict(item) | {"server": server}


async def gather(runtime: Runtime, kind: str, servers: str, call: Call) -> Found:
    """Ask every server of that name, or of that pattern, at once."""
    found = Found()
    backends = await _chosen(runtime, servers, found)
    # These need not be started for their lists.
    known = [backend for backend in backends if is_remembered(backend, Kind(kind))]
    found.remembered = {backend.name: backend.lists.remembered_at for backend in known}
    answers: dict[str, Sequence[Mapping[str, object]]] = {
        backend.name: backend.lists.known(Kind(kind)) or () for backend in known
    }
    within = min(_LIST_TIMEOUT_S, call.client.ceiling)
    mask = runtime.session.secrets.mask

    waits = {b.name: anyio.CancelScope() for b in backends if b.phase is not Phase.CONNECTED}
    asking = [backend for backend in backends if backend.name not in answers]
    answered = anyio.Event()

    get = partial(_get, kind, within, waits)
    # For the list of one server the person is led to its sign-in, not for those of all.
    listed = partial(_signed_in, runtime, call, get) if len(backends) == 1 else get

    async def ask(backend: Backend) -> None:
        # One that was given up is not started again for a list.
        if backend.phase is Phase.FAILED and (given_up := backend.snapshot().last_error):
            found.fail(backend.name, mask(given_up))
            return
        try:
            answers[backend.name] = await listed(backend)
            answered.set()
        except ProxyError as error:
            found.fail(backend.name, mask(str(error)))
            answers[backend.name] = backend.lists.known(Kind(kind)) or ()

    async def wait_no_longer() -> None:
        await anyio.sleep(_CONNECTING_TIMEOUT_S)
        if not found.remembered:
            await answered.wait()
        for wait in waits.values():
            wait.cancel()

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as asked:
            for backend in asking:
                asked.start_soon(ask, backend)
            tasks.start_soon(wait_no_longer)
        tasks.cancel_scope.cancel()
    found.cut = {b.name: len(answers.get(b.name, ())) for b in backends if kind in b.lists.cut}
    if kind == Kind.TOOLS and runtime.pins.enforced:
        for name, tools in answers.items():
            answers[name] = await _veiled(runtime, name, tools, found)
    runtime.session.state.starting -= found.failed.keys()
    found.items = [
        (backend.name, item)
        for backend in backends
        for item in answers.get(backend.name, ())
        if kind != Kind.TOOLS or not _is_hidden(backend, item)
    ]
    return found


async def list_items(
    runtime: Runtime, p: _Listing, call: Call, kind: Kind, texts: Sequence[str]
) -> Reply:
    """What servers have of one kind, where one of these texts of an item matches."""
    found = await gather(runtime, kind, p.server, call)
    items = await matching(runtime, found.items, pattern(runtime, p.pattern), having(*texts))
    entries, rest = page_for(runtime, p, call, items, lambda item: of_server(*item))
    return Reply.json({kind.value: entries, **rest, **found.failures()})


def _is_hidden(backend: Backend, tool: Mapping[str, object]) -> bool:
    return backend.rules is not None and backend.rules.hides(tool.get("name"))


async def is_signed_in(
    runtime: Runtime, backend: Backend, error: ProxyError | None, call: Call
) -> bool:
    """Lead the person to sign in, where a server needs that; whether it goes on without now."""
    if not isinstance(error, SignInNeeded):
        return False
    is_over = await runtime.sign_ins.lead(backend.name, error, call)
    return is_over and await runtime.session.until(
        lambda: backend.phase is not Phase.NEEDS_SIGN_IN, within=_SIGNED_IN_WAIT_S
    )


def sign_in_first(runtime: Runtime, server: str, needed: SignInNeeded) -> str:
    """What to ask the person for, who has not signed in yet."""
    return (
        f"{server} wants a person to sign in: {runtime.sign_ins.instruction(server, needed)}. "
        "It connects by itself afterwards; await_activity tells when."
    )


async def sign_in(runtime: Runtime, backend: Backend, needed: SignInNeeded, call: Call) -> None:
    """Lead the person there; the error says how they sign in later."""
    if not await is_signed_in(runtime, backend, needed, call):
        fact = sign_in_first(runtime, backend.name, needed)
        raise NeedsSignIn(fact, hint="Then call it again.", command=needed.command)


def is_remembered(backend: Backend, kind: Kind) -> bool:
    """Whether a list is known without the server, which does not run yet or any more."""
    waits = backend.phase in (Phase.IDLE, Phase.CONNECTING)
    return waits and kind in backend.lists.remembered


def request_limit(runtime: Runtime, call: Call) -> float:
    """How long a request beside calls may take, in seconds."""
    return min(call.client.ceiling, runtime.settings.timeouts.request_ms / 1000)


def say_starting(backend: Backend, call: Call) -> None:
    """Tell a client that asked for progress why its call takes longer than the next one."""
    if call.request.token is not None and backend.phase is Phase.IDLE:
        call.client.end.status(call, f"starting {backend.name}")


def shown_names(backend: Backend, names: Iterable[str]) -> list[str]:
    """Those of its tools that no rule hides."""
    return [name for name in names if backend.rules is None or not backend.rules.hides(name)]


async def _veiled(
    runtime: Runtime, server: str, tools: Sequence[Mapping[str, object]], found: Found
) -> Sequence[Mapping[str, object]]:
    """What of the tools a person has seen, however they came to be known."""
    listed = runtime.servers.listed(server, tools)
    if listed is None:
        return ()
    veiled = await runtime.pins.veiled(listed)
    if veiled.remark is not None:
        found.hidden[server] = veiled.remark
    return veiled.tools


async def _chosen(runtime: Runtime, servers: str, found: Found) -> list[Backend]:
    """The server of exactly that name, or those whose name matches; at least one."""
    known = {backend.name: backend for backend in runtime.servers}
    broken = {entry.name: entry for entry in runtime.servers.broken.values()}
    marked = marked_names(known, broken.values())
    names = list(marked)
    chosen = (
        [servers]
        if servers in names
        else await matching(runtime, names, pattern(runtime, servers), lambda name: [name])
    )
    if not chosen and servers != ALL:
        close = [marked[name] for name in close_names(servers, names) or names[:LISTED_NAMES]]
        suffix = f" There are: {', '.join(close)}." if close else ""
        raise ServerNotFound(
            f"No server is called {servers[:SHOWN_NAME_CHARS]!r} or matches it.{suffix}"
        )
    for name in chosen:
        if name not in known and not broken[name].switched_off:
            found.fail(name, broken[name].fact)
    return [known[name] for name in chosen if name in known]


async def _connected(backend: Backend, waits: dict[str, anyio.CancelScope], within: float) -> None:
    """Wait for its connection, until somebody decides that this takes too long."""
    if wait := waits.get(backend.name):
        with wait:
            await backend.connect(within=within)
            del waits[backend.name]
        if wait.cancelled_caught:
            raise ServerUnavailable(f"{backend.name} is still connecting.", hint=_LATER)


async def _get(
    kind: str, within: float, waits: dict[str, anyio.CancelScope], backend: Backend
) -> Sequence[Mapping[str, object]]:
    await _connected(backend, waits, within)
    return await _list(backend, kind, within)


async def _signed_in(
    runtime: Runtime, call: Call, get: Callable[[Backend], Awaitable[T]], backend: Backend
) -> T:
    try:
        return await get(backend)
    except SignInNeeded as needed:
        await sign_in(runtime, backend, needed, call)
        return await get(backend)


async def _list(backend: Backend, kind: str, within: float) -> Sequence[Mapping[str, object]]:
    with anyio.move_on_after(within):
        return await backend.list_all(kind, within=within)
    raise ServerUnavailable(f"{backend.name} did not answer within {round(within, 2):g} s.")


def page_for(
    runtime: Runtime,
    p: _Paged,
    call: Call,
    items: Sequence[T],
    show: Callable[[T], dict[str, object]],
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """The page that is asked for, as long as it may be beside the context of this answer."""
    room = room_beside_context(runtime.session, call.client.budget)
    return page(items, show, limit=p.limit, cursor=p.cursor, room=room)


def page(
    items: Sequence[T],
    show: Callable[[T], dict[str, object]],
    *,
    limit: int,
    cursor: str | UnsetType,
    room: int = _PAGE_BYTES,
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """One page, of at least one item, and what to say about the rest.

    `room` is how many bytes the client shows.
    """
    start = 0
    if cursor is not UNSET:
        if not cursor.isdecimal() or not cursor.isascii():
            raise InvalidArguments(
                "cursor is not one of ours.", hint="Use next_cursor of the answer before."
            )
        start = int(cursor[:_CURSOR_DIGITS])
    shown: list[dict[str, object]] = []
    room = min(_PAGE_BYTES, room)
    for item in map(show, islice(items, start, start + limit)):
        room -= len(to_json(item)) + 1
        if room < 0 and shown:
            break
        shown.append(item)
    rest: dict[str, object] = {"total": len(items)}
    end = start + len(shown)
    if end < len(items):
        rest["next_cursor"] = str(end)
    return shown, rest
