"""Gives each server its tool rules, asks the person where one says `ask`, and checks the pins.

Rules belong to a target. An entry of the configuration has its own; a server that a model added has
those of every entry that leads to the same place, and of several the strictest word. They are kept
with the backend, which refuses by itself what they forbid: what is done here is to keep them
current, and to ask the person where a rule says so. A yes is for one call, unless the person does
not want to be asked again: then it holds for this tool of this target as long as the server says
the same of it.

Pins are what the server said of its tools at the first look. A list of tools is compared whenever
it was read anew, and with it what the server says of itself in its instructions. What is seen for
the first time is taken as it is; from then on only a person changes what is agreed to, with
`emceepee approve`. Under `enforce` a model is shown, and runs, only what equals its pin. What is
judged is the very list that is about to be shown, never one that was read before or after it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import cast

import anyio
import anyio.to_thread
from msgspec import Raw, Struct

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.interface import Kind
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.config.tool_rules import rules_of
from emceepee_stdio.errors import PolicyDenied, ServerUnavailable, ToolNotFound
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.approvals import ApprovalFlow, ApprovalSubject
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.person import Decision
from emceepee_stdio.session.server_registry import ListedTools, Origin, RegisteredServer, Servers
from emceepee_stdio.trust.approval_request import ToolCallRequest, tool_call_request
from emceepee_stdio.trust.store import ONE_CALL_LIFETIME_S, Pending, TrustStore
from emceepee_stdio.trust.targets import leads_to_same, target_id, target_id_of_version_1
from emceepee_stdio.trust.tool_pins import (
    Changes,
    Pins,
    agreed_pins,
    compare_pins,
    pin_all,
    pin_key,
    pin_text,
)
from emceepee_stdio.visible_text import SHOWN_NAME_CHARS

_TITLE = "May this tool run?"


class ToolPermissions(Struct, eq=False, dict=True):
    """Keeps the rules of every backend, and asks about one call at a time."""

    store: TrustStore
    flow: ApprovalFlow
    servers: Servers
    clock: Clock

    def __post_init__(self) -> None:
        self._entries = dict[str, ServerConfig]()
        self._asking: set[str] = set()
        self._late: dict[str, float] = {}  # calls that a person agreed to after they had ended

    # The rules

    def apply(self, config: Config) -> None:
        """The configuration is another one: its rules hold from now on."""
        entries = {server.name: server for server in config.servers}
        for broken in config.disabled:
            # What cannot be read keeps the rules that it had.
            entry = broken.config or self._entries.get(broken.name)
            if entry is not None:
                entries.setdefault(broken.name, entry)
        self._entries = entries
        for member in self.servers.members.values():
            self.bind(member)

    def bind(self, member: RegisteredServer) -> None:
        """Give a server its rules."""
        if member.origin is Origin.CONFIGURATION:
            binding = [self._entries.get(member.config.name, member.config)]
        else:
            entries = self._entries.values()
            binding = [entry for entry in entries if leads_to_same(entry, member.config)]
        member.backend.obey(rules_of({entry.name: entry.tools for entry in binding}))

    def shown_changes(self, server: str, changes: Mapping[str, object]) -> dict[str, object] | None:
        """What a model is told of tools that changed: nothing of those that a rule hides."""
        member = self.servers.members.get(server)
        rules = None if member is None else member.backend.rules
        shown = dict(changes)
        if rules is None:
            return shown
        diffs = mapping(changes.get("changed"))
        shown["changed"] = {name: diffs[name] for name in diffs if not rules.hides(name)}
        for what in ("added", "removed"):
            names = cast("Sequence[str]", changes.get(what) or ())
            shown[what] = [name for name in names if not rules.hides(name)]
        told = ("changed", "added", "removed", "instructions")
        return shown if any(shown.get(what) for what in told) else None

    # A call

    async def admit(self, backend: Backend, tool: str, args: Raw, call: Call) -> tuple[Raw, bool]:
        """The arguments to send, and whether the person agreed to them because a rule asks them.

        May wait for them as long as the client waits for us. The call must not have become a task.
        """
        if backend.rules is None or backend.rules.rule(tool) != "ask":
            return args, False
        request = await anyio.to_thread.run_sync(self._request, backend, tool, args)
        if not await anyio.to_thread.run_sync(self._is_agreed, request):
            await self._ask(request, call)
        return request.args, True

    def _request(self, backend: Backend, tool: str, args: Raw) -> ToolCallRequest:
        member = self.servers.members.get(backend.name)
        if member is None or member.backend is not backend:
            raise ServerUnavailable(f"{backend.name} was removed or replaced in this moment.")
        listed = backend.lists.known(Kind.TOOLS) or ()
        same = [item for item in listed if item.get("name") == tool]
        pinned = list(pin_all(same).values())
        return tool_call_request(
            server=backend.name,
            tool=tool,
            args=args,
            target=target_id(member.config, self.store.key()),
            definition=pinned[0].digest if pinned else "",
            token=self.flow.token,
        )

    def _is_agreed(self, request: ToolCallRequest) -> bool:
        """Whether the person has said yes before: to the tool, or to this one call."""
        key = self.store.key()
        if self.store.is_approved(request.standing_digest(key)):
            return True
        try:
            return self.store.redeem(request.digest(key), now=self.flow.now())
        except OSError:  # what cannot be used up would be good for ever
            return False

    async def _ask(self, request: ToolCallRequest, call: Call) -> None:
        """Return when the person agrees to this call; raise otherwise."""
        subject = _subject(request, self.store.key(), call.client.name)
        decision = Decision.AGREED_ONCE
        if self._late.pop(subject.digest, 0.0) <= self.clock.now():
            decision = await self._decision(request, subject, call)
        await self.flow.require(decision, subject)
        await self._agreed(request, subject, kept=decision is Decision.AGREED)

    async def _decision(
        self, request: ToolCallRequest, subject: ApprovalSubject, call: Call
    ) -> Decision:
        async def decided_late(decision: Decision) -> None:
            """The call has ended: a yes is for the next one that is the same."""
            if decision is Decision.REFUSED:
                return
            kept = decision is Decision.AGREED
            if not kept:
                self._late[subject.digest] = self.clock.now() + ONE_CALL_LIFETIME_S
            await self._agreed(request, subject, kept=kept)

        # A yes is for one call: who wants the same at the same time asks another question.
        numbered = (f"{subject.digest}:{n}" if n else subject.digest for n in count())
        digest = next(one for one in numbered if one not in self._asking)
        self._asking.add(digest)
        try:
            return await self.flow.decision(subject, call, on_late=decided_late, digest=digest)
        finally:
            self._asking.discard(digest)

    async def _agreed(
        self, request: ToolCallRequest, subject: ApprovalSubject, *, kept: bool
    ) -> None:
        digest = request.standing_digest(self.store.key())
        what = f"every call of {request.tool}"
        await self.flow.agreed(subject, kept=kept, digest=digest, what=what)


def _subject(request: ToolCallRequest, key: bytes, client: str) -> ApprovalSubject:
    what = f"{request.tool} of {request.server}"
    return ApprovalSubject(
        title=_TITLE,
        lines=request.lines(),
        text=request.text(),
        redacted=request.text(hides=True),
        digest=request.digest(key),
        server=request.server,
        client=client,
        tool=request.tool,
        standing=request.standing_digest(key),
        what=what,
        first=f"this call of {what}",
        undone="did not run",
        may="may run with these arguments",
        refused="this call",
        again="call it again with the same arguments, which runs it once",
        instead="Do not call it again with the same arguments; ask them what they want.",
        shorter="Pass less, for example the name of a file.",
    )


_MOST_SERVERS = 1_000
_UNSEEN = "Not shown: a person has to see it first."
_ANY = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Veiled:
    """A list of tools as a model may read it, and what it is told of the rest."""

    tools: Sequence[Mapping[str, object]]
    remark: str | None = None


class _Look:
    """One list of tools, and what came of comparing it."""

    def __init__(self, listed: ListedTools) -> None:
        self.listed = listed
        self.now = Pins()
        self.agreed = Pins()
        self.changes = Changes()
        self.pending = ""
        self.begun = False
        self.is_news = True
        self.done = anyio.Event()

    @property
    def server(self) -> str:
        return self.listed.config.name


class PinChecks(Struct, eq=False, dict=True):
    """Compares in the background; what the policy enforces waits for it."""

    store: TrustStore
    flow: ApprovalFlow
    mode: Callable[[], str]
    tell: Callable[[str, Mapping[str, object]], None]
    journal: Journal

    def __post_init__(self) -> None:
        self._looks: dict[str, _Look] = {}
        self._unkept: dict[str, Pins] = {}  # first looks for which the store has no room

    @property
    def enforced(self) -> bool:
        return self.mode() == "enforce"

    def seen(self, listed: ListedTools, start: Callable[..., object]) -> None:
        """A list was read. `start` runs the comparison in the background."""
        before = self._looks.pop(listed.config.name, None)
        look = self._looks[listed.config.name] = _Look(listed)
        if len(self._looks) > _MOST_SERVERS:
            del self._looks[next(iter(self._looks))]
        if self.mode() != "off":
            look.begun = True
            start(self._compare, look, before)

    async def changes(self, server: str) -> tuple[Changes, str]:
        """What is different about its tools, and the id to approve it with."""
        look = self._looks.get(server)
        if look is None or not look.begun:
            return Changes(), ""
        await look.done.wait()
        return look.changes, look.pending

    async def veiled(self, listed: ListedTools) -> Veiled:
        """The list without what a person has not seen: it is meant to be read by a model."""
        look = await self._compared(listed)
        shown: list[Mapping[str, object]] = []
        for tool in listed.tools:
            key = pin_key(tool)
            if key in look.changes.changed:
                name = tool.get("name")
                shown.append({"name": name, "description": _UNSEEN, "inputSchema": _ANY})
            elif key in (look.now.tools or {}) and key not in look.changes.added:
                shown.append(tool)
        hidden = len(listed.tools) - len(shown)
        if not hidden and not look.changes.changed:
            return Veiled(tools=shown)
        agree = f"emceepee approve {look.pending}".strip()
        return Veiled(
            tools=shown,
            remark=f"{hidden} more tools, and what changed, are not shown: a person has to see "
            f"them first, with `{agree}`.",
        )

    async def check(
        self, server: str, listed: ListedTools | None, tool: str, *, within: float
    ) -> None:
        """Raise unless this tool is what a person has seen, or sees so long on their page."""
        look = None if listed is None else await self._compared(listed)
        key = pin_key({"name": tool})
        if look is None or key not in (look.now.tools or {}):
            raise ToolNotFound(
                f"{server} does not list a tool {tool[:SHOWN_NAME_CHARS]!r}.",
                hint="By policy only tools that are listed, and so can be compared, are run.",
            )
        on_page = False
        if _is_news(look, key):
            decision = await self.flow.on_page(self._pending(look), within=within)
            if decision is Decision.REFUSED:
                raise PolicyDenied(
                    f"{tool} of {look.server} did not run: the person refused it as it is now.",
                    hint="Do not call it again; ask them what they want.",
                )
            on_page = decision is Decision.ON_PAGE
            await anyio.to_thread.run_sync(self._judge, look)
        if _is_news(look, key):
            what = "has changed since" if key in look.changes.changed else "was not there when"
            fact = (
                f"{tool} of {look.server} {what} its tools were first seen, or agreed to by a "
                "person."
            )
            pending = self._pending(look)
            raise await self.flow.needed(pending, fact, again="call again", on_page=on_page)

    async def is_as_pinned(self, listed: ListedTools, tool: str) -> bool:
        """Whether a tool is what it was at the first look, or what a person agreed to since."""
        if self.mode() == "off":
            return False
        look = await self._compared(listed)
        return _is_as_pinned(look, pin_key({"name": tool}))

    async def unpinned(self, listed: ListedTools) -> frozenset[str]:
        """The tools of a list that are not what they were, or of which nobody knows it."""
        keys = {str(tool.get("name")): pin_key(tool) for tool in listed.tools}
        if self.mode() == "off":
            return frozenset(keys)
        look = await self._compared(listed)
        return frozenset(name for name, key in keys.items() if not _is_as_pinned(look, key))

    async def instructions(self, listed: ListedTools) -> str | None:
        """What a server says of itself, as a model may read it."""
        if listed.instructions is None or not self.enforced:
            return listed.instructions
        look = _Look(listed)
        look.now = Pins(instructions=pin_text(listed.instructions))
        await anyio.to_thread.run_sync(self._look_at, look)
        if not look.changes.instructions:
            return listed.instructions
        return f"{_UNSEEN} After list_tools, `emceepee approve` has it."

    async def _compared(self, listed: ListedTools) -> _Look:
        """The look at exactly this list, compared with what is agreed to now."""
        look = self._looks.get(listed.config.name)
        if look is None or not _is_same(look.listed, listed):
            look = _Look(listed)
            look.is_news = False  # what is new was told when it was read
        if not look.begun:  # the policy was another when it was read, or it is no longer the last
            look.begun = True
            await self._compare(look, None)
        await look.done.wait()
        if look.changes:  # a person may have agreed meanwhile
            await anyio.to_thread.run_sync(self._judge, look)
        return look

    async def _compare(self, look: _Look, before: _Look | None) -> None:
        try:
            if before is not None and before.begun:
                await before.done.wait()
            look.now = await anyio.to_thread.run_sync(_pins_of, look.listed)
            problem = await anyio.to_thread.run_sync(self._look_at, look)
            told = None if before is None else before.changes
            if look.changes and look.changes != told and look.is_news:
                self._say(look)
            if problem is not None:
                self.journal.record(
                    JournalEvent.APPROVAL_UNWRITABLE, server=look.server, error=problem
                )
        except OSError as error:  # what is pinned cannot be read: nothing counts as it was
            look.now = Pins()
            self.journal.record(
                JournalEvent.APPROVAL_UNWRITABLE, server=look.server, error=str(error.strerror)
            )
        except Exception as error:  # noqa: BLE001 - what a server lists must not end the session
            look.now = Pins()
            self.journal.record(
                JournalEvent.UNEXPECTED_ERROR, server=look.server, error=repr(error)
            )
        finally:
            look.done.set()

    def _look_at(self, look: _Look) -> str | None:
        """Compare, and pin what is new; the problem with writing it down, if there is one."""
        agreed = self._judge(look)
        is_due = bool(look.changes and look.now.tools)
        problem = self.flow.note(self._pending(look)) if is_due else None
        first = agreed.missing(look.now)
        if not first:
            return problem
        identity = self._identity(look)
        passing = look.listed.origin is Origin.CLIENT
        try:
            if self.store.pin(identity, first, passing=passing):
                return problem
        except OSError as error:
            problem = str(error.strerror)
        self._unkept[identity] = self._unkept.get(identity, Pins()).filled(first)
        return problem

    def _judge(self, look: _Look) -> Pins:
        """Compare with what was agreed to, and give that."""
        key, config = self.store.key(), look.listed.config
        identity = target_id(config, key)
        agreed = self.store.pinned(identity, target_id_of_version_1(config, key))
        look.agreed = agreed.filled(self._unkept.get(identity, Pins()))
        said = look.listed.instructions or ""
        look.changes = compare_pins(look.agreed, look.now, tools=look.listed.tools, said=said)
        return look.agreed

    def _identity(self, look: _Look) -> str:
        return target_id(look.listed.config, self.store.key())

    def _pending(self, look: _Look) -> Pending:
        """The changes, as a person is to agree to them."""
        identity = self._identity(look)
        seen = agreed_pins(look.agreed, look.now, look.changes)
        text = f"Server: {look.server}\n{look.changes.text()}"
        pending = Pending(
            digest=hashlib.sha256(f"{identity}{text}".encode("utf-8", "replace")).hexdigest(),
            name=look.server,
            text=text,
            at=self.flow.now(),
            tools=seen.tools,
            identity=identity,
            instructions=seen.instructions,
            session=self.journal.session,
        )
        look.pending = pending.id
        return pending

    def _say(self, look: _Look) -> None:
        changes = look.changes
        data: dict[str, object] = {
            "changed": dict.fromkeys(changes.changed, _UNSEEN)
            if self.enforced
            else changes.changed,
            "added": [_UNSEEN] * len(changes.added) if self.enforced else changes.added,
            "removed": changes.removed,
            "enforced": self.enforced,
            "a_person_agrees_with": f"emceepee approve {look.pending}",
        }
        if changes.instructions:
            data["instructions"] = _UNSEEN if self.enforced else changes.instructions
        self.tell(look.server, data)
        self.journal.record(
            JournalEvent.TOOLS_CHANGED,
            server=look.server,
            changed=list(changes.changed),
            added=changes.added,
            removed=changes.removed,
            instructions=bool(changes.instructions),
        )


def _is_as_pinned(look: _Look, key: str) -> bool:
    return key in (look.now.tools or {}) and not _is_news(look, key)


def _is_news(look: _Look, key: str) -> bool:
    return key in look.changes.changed or key in look.changes.added


def _is_same(one: ListedTools, other: ListedTools) -> bool:
    """The very same list; comparing what is in it would take as long as pinning it."""
    return (
        one.tools is other.tools
        and one.config == other.config
        and one.instructions == other.instructions
    )


def _pins_of(listed: ListedTools) -> Pins:
    said = listed.instructions
    return Pins(tools=pin_all(listed.tools), instructions=pin_text(said or ""))
