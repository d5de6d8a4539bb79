"""Compares the tools of servers with their pins: reports changes, and by policy blocks them.

A list of tools is compared whenever it was read anew, and with it what the server says of itself in
its instructions. What is seen for the first time is taken as it is; from then on only a person
changes what is agreed to, with `emceepee approve`.

Under `enforce` a model is shown, and runs, only what equals its pin. What is judged is the very
list that is about to be shown, never one that was read before or after it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import NeedsApproval, ToolNotFound
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.approvals import UNNOTED
from emceepee_stdio.session.server_registry import ListedTools, Origin
from emceepee_stdio.trust.store import Pending, TrustStore
from emceepee_stdio.trust.targets import target_id, target_id_of_version_1
from emceepee_stdio.trust.tool_pins import Changes, Pins, compare_pins, pin_all, pin_key, pin_text
from emceepee_stdio.visible_text import SHOWN_NAME_CHARS

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
        self.changes = Changes()
        self.pending = ""
        self.begun = False
        self.is_news = True
        self.done = anyio.Event()

    @property
    def server(self) -> str:
        return self.listed.config.name


class PinChecks:
    """Compares in the background; what the policy enforces waits for it."""

    def __init__(
        self,
        store: TrustStore,
        *,
        mode: Callable[[], str],
        tell: Callable[[str, Mapping[str, object]], None],
        clock: Clock,
        journal: Journal,
    ) -> None:
        self._store = store
        self._mode = mode
        self._tell = tell
        self._clock = clock
        self._journal = journal
        self._looks: dict[str, _Look] = {}
        self._unkept: dict[str, Pins] = {}  # first looks for which the store has no room

    @property
    def enforced(self) -> bool:
        return self._mode() == "enforce"

    def seen(self, listed: ListedTools, start: Callable[..., object]) -> None:
        """A list was read. `start` runs the comparison in the background."""
        before = self._looks.pop(listed.config.name, None)
        look = self._looks[listed.config.name] = _Look(listed)
        if len(self._looks) > _MOST_SERVERS:
            del self._looks[next(iter(self._looks))]
        if self._mode() != "off":
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

    async def check(self, server: str, listed: ListedTools | None, tool: str) -> None:
        """Raise unless this tool is what a person has seen."""
        look = None if listed is None else await self._compared(listed)
        key = pin_key({"name": tool})
        if look is None or key not in (look.now.tools or {}):
            raise ToolNotFound(
                f"{server} does not list a tool {tool[:SHOWN_NAME_CHARS]!r}.",
                hint="By policy only tools that are listed, and so can be compared, are run.",
            )
        if key in look.changes.changed or key in look.changes.added:
            what = "has changed since" if key in look.changes.changed else "was not there when"
            fact = (
                f"{tool} of {look.server} {what} its tools were first seen, or agreed to by a "
                "person."
            )
            if problem := await anyio.to_thread.run_sync(self._put_aside, look):
                raise NeedsApproval(f"{fact} That cannot be noted: {problem}.", hint=UNNOTED)
            command = f"emceepee approve {look.pending}"
            raise NeedsApproval(
                fact,
                hint=f"Ask them to run `{command}` in a terminal, then call again.",
                command=command,
            )

    async def is_as_pinned(self, listed: ListedTools, tool: str) -> bool:
        """Whether a tool is what it was at the first look, or what a person agreed to since."""
        if self._mode() == "off":
            return False
        look = await self._compared(listed)
        return _is_as_pinned(look, pin_key({"name": tool}))

    async def unpinned(self, listed: ListedTools) -> frozenset[str]:
        """The tools of a list that are not what they were, or of which nobody knows it."""
        keys = {str(tool.get("name")): pin_key(tool) for tool in listed.tools}
        if self._mode() == "off":
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
                self._journal.record(
                    JournalEvent.APPROVAL_UNWRITABLE, server=look.server, error=problem
                )
        except Exception as error:  # noqa: BLE001 - what a server lists must not end the session
            look.now = Pins()
            self._journal.record(
                JournalEvent.UNEXPECTED_ERROR, server=look.server, error=repr(error)
            )
        finally:
            look.done.set()

    def _look_at(self, look: _Look) -> str | None:
        """Compare, and pin what is new; the problem with writing it down, if there is one."""
        agreed = self._judge(look)
        problem = self._put_aside(look) if look.changes and look.now.tools else None
        first = agreed.missing(look.now)
        if not first:
            return problem
        identity = self._identity(look)
        passing = look.listed.origin is Origin.CLIENT
        try:
            if self._store.pin(identity, first, passing=passing):
                return problem
        except OSError as error:
            problem = str(error.strerror)
        self._unkept[identity] = self._unkept.get(identity, Pins()).filled(first)
        return problem

    def _judge(self, look: _Look) -> Pins:
        """Compare with what was agreed to, and give that."""
        key, config = self._store.key(), look.listed.config
        identity = target_id(config, key)
        agreed = self._store.pinned(identity, target_id_of_version_1(config, key))
        agreed = agreed.filled(self._unkept.get(identity, Pins()))
        look.changes = compare_pins(agreed, look.now)
        return agreed

    def _identity(self, look: _Look) -> str:
        return target_id(look.listed.config, self._store.key())

    def _put_aside(self, look: _Look) -> str | None:
        """Leave the changes for `emceepee approve`, unless they are there; what is in the way."""
        identity = self._identity(look)
        text = f"Server: {look.server}\n{look.changes.text()}"
        digest = hashlib.sha256(f"{identity}{text}".encode("utf-8", "replace")).hexdigest()
        pending = Pending(
            digest=digest,
            name=look.server,
            text=text,
            at=self._clock.iso(self._clock.now()),
            tools=look.now.tools,
            identity=identity,
            instructions=look.now.instructions,
        )
        look.pending = pending.id
        if any(one.digest == digest for one in self._store.waiting()):
            return None
        try:
            self._store.wait_for(pending)
        except OSError as error:
            return str(error.strerror)
        return None

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
        self._tell(look.server, data)
        self._journal.record(
            JournalEvent.TOOLS_CHANGED,
            server=look.server,
            changed=list(changes.changed),
            added=changes.added,
            removed=changes.removed,
            instructions=bool(changes.instructions),
        )


def _is_as_pinned(look: _Look, key: str) -> bool:
    known, changes = look.now.tools or {}, look.changes
    return key in known and key not in changes.changed and key not in changes.added


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
