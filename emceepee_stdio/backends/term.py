"""The time of one connection, from its hello to its end.

Whatever belongs to a connection holds its term: once that is over, nothing of it is carried over to
the next connection, and whoever waits in it is told.
"""

from collections.abc import Mapping

import anyio

from emceepee_stdio.backends.base import Era, Hello
from emceepee_stdio.backends.bell import Bell
from emceepee_stdio.backends.lists import Item, Kind
from emceepee_stdio.backends.notices import mapping
from emceepee_stdio.errors import ServerDisconnected

__all__ = ["Term"]


class Term:
    """One connection of one server. `scope` is around all tasks that serve it."""

    def __init__(
        self, server: str, hello: Hello, known: Mapping[Kind, tuple[Item, ...]] | None = None
    ) -> None:
        self._server = server
        self.hello = hello
        self.modern = hello.era is Era.MODERN
        self.known_before = known or {}
        self.bell = Bell()
        self.scope = anyio.CancelScope()
        self.over = False
        self._loss: str | None = None

    def __repr__(self) -> str:
        return f"<Term {self._server} {self.hello.era.value} {'over' if self.over else 'open'}>"

    def declares(self, capability: str, feature: str | None = None) -> bool:
        """Whether the server said that it can do this."""
        declared = self.hello.capabilities.get(capability)
        if feature is None:
            return declared is not None
        return mapping(declared).get(feature) is True

    def end(self, loss: str | None) -> None:
        """The connection is gone: its tasks end, and its waiters learn of it."""
        if not self.over:
            self.over = True
            self._loss = loss
            self.scope.cancel()
            self.bell.ring()

    def check(self) -> None:
        """Raise once the connection is gone."""
        if self.over:
            raise ServerDisconnected(
                self._loss or f"The connection to {self._server} was closed.",
                hint="The call was not made again on the new connection: check, then call again.",
            )
