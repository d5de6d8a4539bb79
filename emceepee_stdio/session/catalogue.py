"""What is known of servers that do not run: looked up before one is added, kept when one lists.

Looking up and writing happen in threads. What cannot be read is not known, and what cannot be
written is known for this session only: neither is worse than starting the server.

What a person has not seen yet is not believed either: a server whose remembered tools differ from
its pins is started, so that the difference is told.
"""

from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread

from emceepee_stdio.backends.catalogue_record import Remembered, Seen, recalled
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.catalogue_store import CatalogueStore
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.trust.targets import target_id, target_id_of_version_1
from emceepee_stdio.trust.tool_pins import Pins, compare_pins, pin_all, pin_text

__all__ = ["Catalogue"]

_MINUTE_CHARS = 16  # of a time: lists that are fetched at every use are written once a minute
_FLUSH_S = 1.0  # at the end of a session: the files are small, and the client waits for our end


class Catalogue:
    """Shared with every other proxy of this person, by files. `run` writes."""

    def __init__(
        self,
        store: CatalogueStore,
        trust: TrustStore,
        *,
        pin_mode: Callable[[], str],
        journal: Journal,
    ) -> None:
        self._store = store
        self._trust = trust
        self._pin_mode = pin_mode
        self._journal = journal
        self._unwritten: list[tuple[ServerConfig, Seen]] = []
        self._news = anyio.Event()
        self._problem: str | None = None
        self._written: dict[tuple[str, str], Seen] = {}

    def __repr__(self) -> str:
        return f"<Catalogue {self._store!r} {len(self._unwritten)} unwritten>"

    async def recall(self, config: ServerConfig) -> Remembered | None:
        """All that can be said of a server without starting it; None where it has to be started."""
        return await anyio.to_thread.run_sync(partial(self._recall, config), abandon_on_cancel=True)

    def note(self, config: ServerConfig, seen: Seen) -> None:
        """A server has listed something: it is written down soon."""
        self._unwritten.append((config, seen))
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await self._write()

    async def flush(self) -> None:
        """Write what is left, in bounded time."""
        with anyio.move_on_after(_FLUSH_S):
            await self._write()

    async def _write(self) -> None:
        self._news = anyio.Event()
        unwritten, self._unwritten = self._unwritten, []
        if unwritten:
            problem = await anyio.to_thread.run_sync(self._put_down, unwritten)
            if problem is not None and problem != self._problem:
                self._journal.record(JournalEvent.CATALOGUE_UNWRITABLE, error=problem)
            self._problem = problem

    # In threads

    def _put_down(self, unwritten: list[tuple[ServerConfig, Seen]]) -> str | None:
        """The problem with writing it, if there is one."""
        key, problem = self._trust.key(), None
        seen: dict[str, list[Seen]] = {}
        for config, one in unwritten:
            identity = self._store.identity(config, key)
            if not _says_the_same(self._written.get((identity, one.kind)), one):
                seen.setdefault(identity, []).append(one)
        for identity, lists in seen.items():
            try:
                self._store.add(identity, lists)
                self._written |= {(identity, one.kind): one for one in lists}
            except OSError as error:
                problem = str(error.strerror)
        return problem

    def _recall(self, config: ServerConfig) -> Remembered | None:
        key = self._trust.key()
        record = self._store.read(self._store.identity(config, key))
        remembered = None if record is None else recalled(record)
        if remembered is None or self._is_to_be_seen(config, remembered, key):
            return None
        return remembered

    def _is_to_be_seen(self, config: ServerConfig, remembered: Remembered, key: bytes) -> bool:
        """Whether it differs from what is pinned, where pins count."""
        if self._pin_mode() == "off":
            return False
        agreed = self._trust.pinned(target_id(config, key), target_id_of_version_1(config, key))
        said = pin_text(remembered.hello.instructions or "")
        now = Pins(tools=pin_all(remembered.tools), instructions=said)
        return bool(compare_pins(agreed, now))


def _says_the_same(before: Seen | None, now: Seen) -> bool:
    return (
        before is not None
        and not now.first
        and before.at[:_MINUTE_CHARS] == now.at[:_MINUTE_CHARS]
        and before.items == now.items
    )
