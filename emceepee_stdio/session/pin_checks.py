"""The tools of each server against what they were: changes are told, and by policy held up.

A list of tools is compared whenever it was read anew. What is seen for the first time is taken as
it is; from then on only a person changes what is agreed to, with `emceepee approve`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.to_thread

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.errors import NeedsApproval, ToolNotFound
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.suggestions import SHOWN_NAME_CHARS
from emceepee_stdio.trust.approval_request import approval_request_for
from emceepee_stdio.trust.store import Pending, TrustStore
from emceepee_stdio.trust.tool_pins import Changes, Pinned, compare, pin_all

__all__ = ["PinChecks"]

_MAX_SERVERS = 1_000  # far more than a session has; names come and go with add_server
_UNNOTED = "Ask a person to see to the directory in which emceepee keeps what they agree to."

Tools = Sequence[Mapping[str, object]]


class _Look:
    """One list of tools, and what came of comparing it."""

    def __init__(self, config: ServerConfig, tools: Tools) -> None:
        self.config = config
        self.tools = tools
        self.now: dict[str, Pinned] = {}
        self.changes = Changes()
        self.pending = ""
        self.begun = False
        self.done = anyio.Event()


class PinChecks:
    """Compares in the background; `check` waits for it where the policy enforces it."""

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

    def __repr__(self) -> str:
        return f"<PinChecks {self._mode()} {len(self._looks)} servers>"

    @property
    def enforced(self) -> bool:
        return self._mode() == "enforce"

    def seen(self, config: ServerConfig, tools: Tools, start: Callable[..., object]) -> None:
        """A list was read. `start` runs the comparison in the background."""
        before = self._looks.pop(config.name, None)
        look = self._looks[config.name] = _Look(config, tools)
        if len(self._looks) > _MAX_SERVERS:
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

    async def veiled(self, server: str, tools: Tools) -> Tools:
        """The list without what a person has not seen: it is meant to be read by a model."""
        changes, pending = await self.changes(server)
        unseen = {*changes.changed, *changes.added}
        instead = f"Not shown: a person has to see it first, with `emceepee approve {pending}`."
        return [
            {"name": tool.get("name"), "description": instead, "inputSchema": {"type": "object"}}
            if str(tool.get("name")) in unseen
            else tool
            for tool in tools
        ]

    async def check(self, config: ServerConfig, tool: str) -> None:
        """Raise unless this tool is what a person has seen."""
        server = config.name
        look = self._looks.get(server)
        if look is not None and look.config != config:  # of another that had this name
            look = None
        if look is not None and not look.begun:  # the policy was another when it was read
            look.begun = True
            await self._compare(look, None)
        if look is not None:
            await look.done.wait()
        if look is not None and look.changes:
            await anyio.to_thread.run_sync(self._judge, look)  # a person may have agreed meanwhile
        if look is None or tool not in look.now:
            raise ToolNotFound(
                f"{server} does not list a tool {tool[:SHOWN_NAME_CHARS]!r}.",
                hint="By policy only tools that are listed, and so can be compared, are run.",
            )
        if tool in look.changes.changed or tool in look.changes.added:
            what = "has changed since" if tool in look.changes.changed else "was not there when"
            fact = f"{tool} of {server} {what} its tools were first seen, or agreed to by a person."
            if problem := await anyio.to_thread.run_sync(self._put_aside, look):
                raise NeedsApproval(f"{fact} That cannot be noted: {problem}.", hint=_UNNOTED)
            raise NeedsApproval(
                fact,
                hint=f"Ask them to run `emceepee approve {look.pending}` in a terminal, then call "
                "again.",
            )

    async def _compare(self, look: _Look, before: _Look | None) -> None:
        try:
            if before is not None and before.begun:
                await before.done.wait()
            problem = await anyio.to_thread.run_sync(self._look_at, look)
            told = None if before is None else before.changes
            if look.changes and look.changes != told:
                self._say(look)
            if problem is not None:
                self._journal.record(
                    JournalEvent.APPROVAL_UNWRITABLE, server=look.config.name, error=problem
                )
        except Exception as error:  # noqa: BLE001 - what a server lists must not end the session
            self._journal.record(
                JournalEvent.UNEXPECTED_ERROR, server=look.config.name, error=repr(error)
            )
        finally:
            look.done.set()

    def _look_at(self, look: _Look) -> str | None:
        """Compare; the problem with writing down what came of it, if there is one."""
        look.now = pin_all(look.tools)
        if self._judge(look):
            return self._put_aside(look) if look.changes else None
        try:
            self._store.pin(self._identity(look), look.now)
        except OSError as error:
            return str(error.strerror)
        return None

    def _judge(self, look: _Look) -> bool:
        """Compare with what was agreed to; False when there is nothing yet."""
        agreed = self._store.pinned(self._identity(look))
        look.changes = Changes() if agreed is None else compare(agreed, look.now)
        return agreed is not None

    def _identity(self, look: _Look) -> str:
        return approval_request_for(look.config).identity(self._store.key())

    def _put_aside(self, look: _Look) -> str | None:
        """Leave the changes for `emceepee approve`, unless they are there; what is in the way."""
        identity = self._identity(look)
        text = f"Server: {look.config.name}\n{look.changes.text()}"
        digest = hashlib.sha256(f"{identity}{text}".encode("utf-8", "replace")).hexdigest()
        pending = Pending(
            digest=digest,
            name=look.config.name,
            text=text,
            at=self._clock.iso(self._clock.now()),
            tools=look.now,
            identity=identity,
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
        unseen = "Not shown: a person has to see it first."
        data: dict[str, object] = {
            "changed": dict.fromkeys(changes.changed, unseen) if self.enforced else changes.changed,
            "added": changes.added,
            "removed": changes.removed,
            "enforced": self.enforced,
            "a_person_agrees_with": f"emceepee approve {look.pending}",
        }
        self._tell(look.config.name, data)
        self._journal.record(
            JournalEvent.TOOLS_CHANGED,
            server=look.config.name,
            changed=list(changes.changed),
            added=changes.added,
            removed=changes.removed,
        )
