"""What is done anew on each new connection: subscriptions, the log level, the lists.

What cannot be restored is worth a line in the log; the rest is restored all the same.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from emceepee_stdio.backends.backend_events import Emit, ListsDiffer
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.lists import KINDS, Item, Kind, differ
from emceepee_stdio.backends.subscriptions import Subscriptions
from emceepee_stdio.errors import ProxyError, ServerDisconnected

__all__ = ["Restoration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """Of one connection. `known` are the lists of before, `kinds` those that are to be fetched."""

    connection: Connection
    subscriptions: Subscriptions
    log_level: str | None
    known: Mapping[Kind, tuple[Item, ...]]
    kinds: tuple[Kind, ...]
    fetch: Callable[[Connection, Kind, float], Awaitable[tuple[Item, ...]]]
    within: float
    emit: Emit

    async def run(self) -> None:
        connection = self.connection
        steps: list[Callable[[], Awaitable[object]]] = [
            partial(self.subscriptions.restore, connection, within=self.within)
        ]
        if self.log_level is not None and not connection.is_modern:
            level = {"level": self.log_level}
            steps.append(partial(connection.ask, "logging/setLevel", level, self.within))
        steps.append(self._compare)
        for step in steps:
            try:
                await step()
            except ServerDisconnected:
                return
            except ProxyError as error:
                connection.note(f"not everything could be restored after connecting: {error.fact}")

    async def _compare(self) -> None:
        """Fetch anew what was known before, and say what is no longer the same."""
        changed: list[str] = []
        try:
            for kind in self.kinds:
                now = await self.fetch(self.connection, kind, self.within)
                name, before = KINDS[kind].capability, self.known.get(kind)
                if before is not None and differ(before, now) and name not in changed:
                    changed.append(name)
        finally:
            if changed:
                self.emit(ListsDiffer(changed))
