"""What the session hears of one server.

The ear is the sink of the server's channel and supervisor. It passes on what the session is to know
in the words of neither era, and keeps the rest to itself. It knows the term of the connection that
is being heard.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Raw

from emceepee_stdio.backends.base import (
    Hello,
    LogLine,
    LogSource,
    Loss,
    PhaseChange,
    Question,
    Sink,
)
from emceepee_stdio.backends.listening import ACKNOWLEDGED
from emceepee_stdio.backends.lists import Kind, Lists
from emceepee_stdio.backends.notices import log_line, without_stream
from emceepee_stdio.backends.subscriptions import Subscriptions
from emceepee_stdio.backends.term import Term
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.wire.codec import INVALID_REQUEST, RpcError, to_json

__all__ = ["Ear", "Roots"]

_LIST_CHANGED = {
    "notifications/tools/list_changed": (Kind.TOOLS,),
    "notifications/resources/list_changed": (Kind.RESOURCES, Kind.TEMPLATES),
    "notifications/prompts/list_changed": (Kind.PROMPTS,),
}

Roots = Callable[[], Sequence[Mapping[str, str]]]


class Ear:
    """Hears one server. `attend` is called with the term of each new connection."""

    def __init__(
        self,
        server: str,
        sink: Sink,
        *,
        lists: Lists,
        roots: Roots,
        attend: Callable[[Term], None],
    ) -> None:
        self._server = server
        self._sink = sink
        self._lists = lists
        self._roots = roots
        self._attend = attend
        self.subscriptions = Subscriptions(server, on_gap=lists.drop_all, note=self.note)
        self.term: Term | None = None
        self.pushed: dict[int, list[Question]] = {}

    def __repr__(self) -> str:
        return f"<Ear {self._server} {self.term!r}>"

    # The connection

    def phase_changed(self, server: str, change: PhaseChange) -> None:
        if change.phase is Phase.CONNECTED and change.hello is not None:
            self._begin(change.hello)
        elif self.term is not None:
            self.leave(None if change.loss is None else str(change.loss))
        self._sink.phase_changed(server, change)
        if self.term is not None:
            self._attend(self.term)

    def leave(self, loss: str | None = None) -> None:
        """The connection is over: nothing of it counts any more."""
        if self.term is not None:
            term, self.term = self.term, None
            self.pushed.clear()
            term.end(loss)

    def _begin(self, hello: Hello) -> None:
        self.leave()
        self.term = Term(self._server, hello, self._lists.all_known())
        self._lists.drop_all()
        self.subscriptions.begin(self.term)

    def attempt_failed(self, server: str, error: ProxyError) -> None:
        self._sink.attempt_failed(server, error)

    def process_started(self, server: str, pid: int) -> None:
        self._sink.process_started(server, pid)

    def process_ended(self, server: str, loss: Loss, *, expected: bool) -> None:
        self._sink.process_ended(server, loss, expected=expected)

    # Notices

    def note(self, text: str) -> None:
        """Something that is worth a line in the log of this server."""
        self.log(self._server, LogLine(source=LogSource.PROTOCOL, text=text, level="warning"))

    def log(self, server: str, line: LogLine) -> None:
        self._sink.log(server, line)

    def notification(self, server: str, method: str, params: Raw | None) -> None:
        if method == "notifications/message":
            self._sink.log(server, log_line(params))
            return
        if method == ACKNOWLEDGED:
            self.subscriptions.acknowledged(params)
            return
        if self.term is not None and self.term.modern:
            params, stream = without_stream(params)
            if stream is not None and not self.subscriptions.hears(stream):
                return
        for kind in _LIST_CHANGED.get(method, ()):
            self._lists.drop(kind)
        self._sink.notification(server, method, params)

    def lists_differ(self, server: str, kinds: Sequence[str]) -> None:
        self._sink.lists_differ(server, kinds)

    def health_changed(self, server: str, *, degraded: bool, misses: int) -> None:
        self._sink.health_changed(server, degraded=degraded, misses=misses)

    # Questions

    def asked(self, server: str, question: Question) -> None:
        """A pushed question, and of which call, where the channel can tell."""
        if question.call is not None:
            self.pushed.setdefault(id(question.call), []).append(question)
        self.show(question, server)

    def show(self, question: Question, server: str | None = None) -> None:
        """Put it to the session; the roots are known here."""
        if question.method == "roots/list":
            question.answer(to_json({"roots": list(self._roots())}))
        else:
            self._sink.asked(server or self._server, question)

    def withdrawn(self, server: str, question: Question) -> None:
        self._sink.withdrawn(server, question)

    def take_back(self, question: Question) -> None:
        self._sink.withdrawn(self._server, question)

    def call_ended(self, call: object) -> None:
        """What a call has asked and nobody has answered is asked no more."""
        for question in self.pushed.pop(id(call), ()):
            if question.refuse(RpcError(INVALID_REQUEST, "The call that asked this has ended.")):
                self.take_back(question)
