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
from emceepee_stdio.journal import Event, Journal
from emceepee_stdio.trust.pins import Changes, Pinned, compare, pin_all
from emceepee_stdio.trust.store import Pending, TrustStore
from emceepee_stdio.trust.wishes import wish_for

__all__ = ["Pins"]

_MOST_SERVERS = 1_000

Tools = Sequence[Mapping[str, object]]


class _Look:
    """One list of tools, and what came of comparing it."""

    def __init__(self, config: ServerConfig, tools: Tools) -> None:
        self.config = config
        self.tools = tools
        self.now: dict[str, Pinned] = {}
        self.changes = Changes()
        self.pending = ""
        self.done = anyio.Event()


class Pins:
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
        return f"<Pins {self._mode()} {len(self._looks)} servers>"

    @property
    def enforced(self) -> bool:
        return self._mode() == "enforce"

    def seen(self, config: ServerConfig, tools: Tools, start: Callable[..., object]) -> None:
        """A list was read. `start` runs the comparison in the background."""
        if self._mode() != "off":
            before = self._looks.get(config.name)
            self._looks.pop(config.name, None)
            look = self._looks[config.name] = _Look(config, tools)
            if len(self._looks) > _MOST_SERVERS:
                del self._looks[next(iter(self._looks))]
            start(self._compare, look, before)

    async def changes(self, server: str) -> tuple[Changes, str]:
        """What is different about its tools, and the id to approve it with."""
        look = self._looks.get(server)
        if look is None:
            return Changes(), ""
        await look.done.wait()
        return look.changes, look.pending

    async def check(self, server: str, tool: str) -> None:
        """Raise unless this tool is what a person has seen."""
        look = self._looks.get(server)
        if look is None:
            return
        await look.done.wait()
        if look.changes:
            await self._judge(look)  # a person may have agreed meanwhile
        if tool not in look.now:
            raise ToolNotFound(
                f"{server} does not list a tool {tool[:100]!r}.",
                hint="By policy only tools that are listed, and so can be compared, are run.",
            )
        if tool in look.changes.changed or tool in look.changes.added:
            what = "has changed since" if tool in look.changes.changed else "was not there when"
            raise NeedsApproval(
                f"{tool} of {server} {what} a person agreed to this server's tools.",
                hint=f"Ask them to run `emceepee approve {look.pending}` in a terminal, then call "
                "again.",
            )

    async def _compare(self, look: _Look, before: _Look | None) -> None:
        try:
            await self._judge(look)
            told = None if before is None else before.changes
            if look.changes and look.changes != told:
                self._say(look)
        except OSError as error:
            self._journal.record(
                Event.APPROVAL_UNWRITABLE, server=look.config.name, error=str(error.strerror)
            )
        finally:
            look.done.set()

    async def _judge(self, look: _Look) -> None:
        await anyio.to_thread.run_sync(self._judge_blocking, look)

    def _judge_blocking(self, look: _Look) -> None:
        identity = wish_for(look.config).identity(self._store.key())
        look.now = look.now or pin_all(look.tools)
        agreed = self._store.pinned(identity)
        if agreed is None:
            look.changes = Changes()
            self._store.pin(identity, look.now)
            return
        look.changes = compare(agreed, look.now)
        if look.changes and not look.pending:
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
            self._store.wait_for(pending)
            look.pending = pending.id

    def _say(self, look: _Look) -> None:
        changes = look.changes
        data: dict[str, object] = {
            "changed": changes.changed,
            "added": changes.added,
            "removed": changes.removed,
            "enforced": self.enforced,
            "a_person_agrees_with": f"emceepee approve {look.pending}",
        }
        self._tell(look.config.name, data)
        self._journal.record(
            Event.TOOLS_CHANGED,
            server=look.config.name,
            changed=list(changes.changed),
            added=changes.added,
            removed=changes.removed,
        )
