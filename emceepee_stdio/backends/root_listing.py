"""One server and the roots: it is told them when it asks, and of a change when it has asked."""

from collections.abc import Callable, Mapping, Sequence

from emceepee_stdio.backends.backend_events import Question
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.wire.codec import to_json

__all__ = ["RootListing", "RootSource"]

_CHANGED = "notifications/roots/list_changed"

# Tells the roots to whom it is given, now or later.
RootSource = Callable[[Callable[[Sequence[Mapping[str, str]]], None]], None]


class RootListing:
    """Answers one server. `current` is its living connection."""

    def __init__(self, source: RootSource, *, current: Callable[[], Connection | None]) -> None:
        self._source = source
        self._current = current
        self._asked_on: Connection | None = None

    def __repr__(self) -> str:
        return f"<RootListing {'asked' if self._asked_on else 'not asked'}>"

    def answer(self, question: Question) -> None:
        self._asked_on = self._current()
        self._source(lambda roots: _respond(question, roots))

    def changed(self) -> None:
        """Others count now. The modern era has no message for it: there every call asks anew."""
        connection = self._current()
        if connection is not None and connection is self._asked_on and not connection.is_modern:
            connection.notify(_CHANGED)


def _respond(question: Question, roots: Sequence[Mapping[str, str]]) -> None:
    question.respond(to_json({"roots": list(roots)}))
