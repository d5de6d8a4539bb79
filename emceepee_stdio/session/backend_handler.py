"""Turns backend events into session state, events for the client, and logs without secrets.

One method takes everything, in the order of things, and never waits: `take`. The state is changed
first, and whoever waits is woken when it is.

A lost connection invalidates what was in flight on it, at once and once: working tasks fail,
pending questions are rejected, each with its event. Finished results stay. One outage is told once,
however many attempts it takes to end it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from emceepee_stdio.auth.bearer import SignInNeeded
from emceepee_stdio.backends.interface import (
    AttemptFailed,
    BackendEvent,
    HealthChange,
    ListsDiffer,
    LogLine,
    LogSource,
    PhaseChange,
    ProcessEnded,
    ProcessStarted,
    Question,
    Seen,
    ServerNotification,
    SignInWanted,
    StateEvent,
    Withdrawn,
)
from emceepee_stdio.journal import JournalEvent, Level, PrivateKeyLines, redact_text
from emceepee_stdio.session.server_output import (
    Logged,
    Notified,
    RateLimits,
    cut_name,
    excerpt_of,
    fields_of,
    fold_of,
    fold_of_large,
    kept_params,
)
from emceepee_stdio.session.server_registry import Outage
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_types import EventData, EventType, Excerpt, fold_key
from emceepee_stdio.state.pending_requests import ClosedBy, PendingRequest, RequestKind
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.wire.codec import to_json

if TYPE_CHECKING:
    from emceepee_stdio.backends.interface import Hello


_LOG_LINE_CHARS = 16_384  # of one log message, as of a line on stderr; masking it stays short
_VISITED = "notifications/elicitation/complete"
_LOGGER_CHARS = 1_000  # the name of a logger is a word
_MOST_KEYS = 1_000  # sources that are in the middle of a private key; the one silent longest goes

_LEAVING = "The connection is being closed: there will be no answer."


class BackendHandler(Struct, eq=False, dict=True):
    """Takes what every backend tells. `target_of` is the command line or address of a server."""

    session: Session
    target_of: Callable[[str], str | None]
    on_sign_in_wanted: Callable[[str, SignInNeeded], None] = lambda _server, _needed: None

    def __post_init__(self) -> None:
        settings = self.session.settings
        self._journal = self.session.journal
        self._idle: set[str] = set()  # servers that were stopped because nobody used them
        self._signed_out: set[str] = set()  # servers that a person has to sign in to
        self._hellos: dict[str, Hello | None] = {}  # of the connections that live
        self._outages: dict[str, Outage] = {}  # of those that are lost and tried again
        self._keys: dict[tuple[str, LogSource], PrivateKeyLines] = {}
        self._flows = RateLimits(settings.fixed.output_lines, servers=settings.limits.servers)

    def take(self, server: str, event: BackendEvent) -> None:
        if isinstance(event, LogLine):  # never a reason to wake anybody
            self._log(server, event)
        elif isinstance(event, SignInWanted):
            self.on_sign_in_wanted(server, event.needed)
        elif not isinstance(event, Seen):  # the backend keeps its own lists
            self._apply(server, event)
            self.session.wake()

    def _apply(self, server: str, event: StateEvent) -> None:
        match event:
            case ServerNotification():
                self._notification(server, event)
            case PhaseChange():
                self._phase_changed(server, event.masked(self.session.secrets.mask))
            case Question():
                self._on_question(server, event)
            case Withdrawn():
                self._withdrawn(event.key)
            case ProcessStarted():
                self._process_started(server, event.pid)
            case ProcessEnded():
                self._process_ended(server, event)
            case AttemptFailed():
                self._attempt_failed(server, event)
            case ListsDiffer():
                self._lists_differ(server, event.kinds)
            case HealthChange():
                self._health_changed(server, event)

    # Connections

    def _phase_changed(self, server: str, change: PhaseChange) -> None:
        """Tell the outage or its end, and invalidate what the lost connection held."""
        if change.phase is Phase.IDLE:
            self._became_idle(server, change)
            return
        self._idle.discard(server)
        if change.previous is Phase.CONNECTED:
            self._lost(server, change)
        is_start = server in self.session.state.starting
        self.session.state.starting.discard(server)
        if change.phase is Phase.CONNECTED:
            self._connected(server, change, tell=not is_start)
        elif change.phase is Phase.CONNECTING and (is_start or change.previous is Phase.IDLE):
            self.session.state.starting.add(server)
        elif change.phase is Phase.RECONNECTING:
            self.session.tell(EventType.SERVER_RECONNECTING, server=server, data=_prospects(change))
        elif change.phase is Phase.FAILED:
            self.session.tell(
                EventType.SERVER_RESTART_FAILED, server=server, data=_prospects(change)
            )
        elif isinstance(change.error, SignInNeeded):
            self._signed_out.add(server)
            command = {"command": change.error.command}
            self.session.tell(EventType.SIGN_IN_REQUIRED, server=server, data=command)
            self._journal.record(JournalEvent.SIGN_IN_REQUIRED, server=server, **command)
        elif change.phase is Phase.DISCONNECTED:
            self._outages.pop(server, None)
            self._signed_out.discard(server)
        self._journal_phase(server, change)

    def _became_idle(self, server: str, change: PhaseChange) -> None:
        """No loss: nothing was open, and whoever needs it next starts it."""
        self.session.state.starting.discard(server)
        self._hellos.pop(server, None)
        if change.previous is Phase.CONNECTED:
            self._idle.add(server)
            self._journal.record(JournalEvent.SERVER_IDLE, server=server)

    def _connected(self, server: str, change: PhaseChange, *, tell: bool) -> None:
        outage = self._outages.pop(server, None)
        if change.previous is Phase.RECONNECTING and change.was_connected_before:
            kind, cost = EventType.SERVER_RECONNECTED, outage or Outage()
            data = _introduction(change) | {"type": cost.kind(change.hello), **cost.counts()}
        else:
            kind, data = EventType.SERVER_CONNECTED, _introduction(change)
        if server in self._signed_out:
            self._signed_out.discard(server)
            self.session.tell(EventType.SIGNED_IN, server=server)
            self._journal.record(JournalEvent.SIGNED_IN, server=server)
        self._hellos[server] = change.hello
        if tell:
            self.session.tell(kind, server=server, data=data)

    def _lost(self, server: str, change: PhaseChange) -> None:
        fact = change.loss.fact if change.loss else f"The connection to {server} was closed."
        session = self.session
        session.tell(EventType.SERVER_DISCONNECTED, server=server, data={"reason": fact})
        self._journal_loss(server, change, fact)
        tasks = session.fail_tasks(server, str(change.loss or fact), fact=fact)
        asked = Counter(asked.kind for asked in self._reject(server, change))
        if change.phase is not Phase.NEEDS_SIGN_IN:  # to which such a call leads the person
            session.end_calls_of(tasks)  # last: a call that ends withdraws what it has asked
        outage = Outage(
            hello=self._hellos.pop(server, None),
            restarted=change.loss is not None and change.loss.restarted,
            tasks=len(tasks),
            elicitations=asked[RequestKind.ELICITATION],
            sampling_requests=asked[RequestKind.SAMPLING],
        )
        if change.phase is Phase.RECONNECTING:
            self._outages[server] = outage
        self._journal.record(
            JournalEvent.SESSION_SERVER_RECONCILIATION_COMPLETE, server=server, **outage.counts()
        )

    def _journal_loss(self, server: str, change: PhaseChange, fact: str) -> None:
        """A warning with its cause, unless it is we who left."""
        event, loss = JournalEvent.SERVER_DISCONNECTED, change.loss
        if loss is None or change.phase in (Phase.DISCONNECTED, Phase.CONNECTING):
            self._journal.record(event, server=server, reason=fact)
            return
        if loss.exit_code is None and not loss.tail:  # there is no process
            self._journal.write(Level.WARNING, event, server=server, reason=fact)
            return
        stderr = list(loss.tail)
        self._journal.write(
            Level.WARNING,
            event,
            server=server,
            reason=fact,
            exit_code=loss.exit_code,
            stderr=stderr,
        )

    def _reject(self, server: str, change: PhaseChange) -> list[PendingRequest]:
        """Close its questions; where it is we who leave, the server still hears of it."""
        removed = change.phase is Phase.DISCONNECTED
        reason = ClosedBy.REMOVED if removed else ClosedBy.DISCONNECTED
        session = self.session
        rejected = session.state.requests.reject_server(server, reason, now=session.clock.now())
        for asked in rejected:
            if removed or change.phase is Phase.CONNECTING:
                session.questions.refuse(asked, _LEAVING)
            session.questions.closed(asked)
        return rejected

    def _attempt_failed(self, server: str, event: AttemptFailed) -> None:
        error = str(event.error.masked(self.session.secrets.mask))
        self._journal.record(
            JournalEvent.SERVER_RECONNECT_FAILED, server=server, attempt=event.attempt, error=error
        )
        if event.retry_in is not None:
            self._journal.record(
                JournalEvent.SERVER_RECONNECTING,
                server=server,
                attempt=event.attempt + 1,
                delay_ms=round(event.retry_in * 1000),
            )

    def _journal_phase(self, server: str, change: PhaseChange) -> None:
        record, error = self._journal.record, str(change.error)
        if change.phase is Phase.CONNECTED:
            data = {} if change.url is None else {"url": self.session.secrets.mask(change.url)}
            record(JournalEvent.SERVER_CONNECTED, server=server, **data)
        elif change.phase is Phase.RECONNECTING:
            was_told = change.previous is Phase.CONNECTED  # with its cause, as a loss
            level = Level.INFO if was_told else Level.WARNING
            self._journal.write(
                level,
                JournalEvent.SERVER_RECONNECTING,
                server=server,
                attempt=change.attempt,
                delay_ms=round((change.retry_in or 0.0) * 1000),
                error=error,
            )
        elif change.phase is Phase.FAILED:
            record(JournalEvent.SERVER_FAILED, server=server, error=error)

    def _process_started(self, server: str, pid: int) -> None:
        if server not in self.session.state.starting:
            self.session.tell(EventType.PROCESS_STARTED, server=server, data={"pid": pid})
        command = self.target_of(server)
        self._journal.record(JournalEvent.SERVER_SPAWNED, server=server, pid=pid, command=command)

    def _process_ended(self, server: str, event: ProcessEnded) -> None:
        if event.expected and server in self._idle:
            return
        loss = event.loss.masked(self.session.secrets.mask)
        data: dict[str, object] = {"reason": loss.fact, "exit_code": loss.exit_code}
        if not event.expected:
            data["stderr"] = list(loss.tail)
        kind = EventType.PROCESS_STOPPED if event.expected else EventType.PROCESS_CRASHED
        self.session.tell(kind, server=server, data=data)

    def _health_changed(self, server: str, change: HealthChange) -> None:
        kinds = (EventType.SERVER_HEALTH_RESTORED, EventType.SERVER_HEALTH_DEGRADED)
        self.session.tell(kinds[change.degraded], server=server, data={"missed": change.misses})

    # What servers say

    def _notification(self, server: str, event: ServerNotification) -> None:
        session, method, params = self.session, cut_name(event.method), event.params
        if method == _VISITED:
            session.questions.visited(server, fields_of(params).get("elicitationId"))
        kept = Notified(
            server=server, method=method, params=kept_params(params), created_at=session.clock.now()
        )
        session.state.notifications.append(server, kept, kept.size)
        data, fold = self._told(server, method, params)
        session.tell(EventType.NOTIFICATION, server=server, data=data, fold=fold)

    def _told(self, server: str, method: str, params: Raw | None) -> tuple[EventData, Hashable]:
        """What the event says, and what makes another say the same; large params stay bytes."""
        limit = self.session.settings.fixed.event_data_bytes
        if params is not None and len(memoryview(params)) > limit:
            cut = excerpt_of(params, limit)
            text = f'{{"method":{to_json(method).decode()},"params":{cut.text}'
            return Excerpt(text, cut.size), fold_of_large(server, method, params)
        fields = fields_of(params)
        data: dict[str, object] = {"method": method, **({"params": fields} if fields else {})}
        return data, fold_of(server, method, fields)

    def _lists_differ(self, server: str, kinds: Sequence[str]) -> None:
        for kind in kinds:
            method = f"notifications/{kind}/list_changed"
            self.session.tell(
                EventType.NOTIFICATION,
                server=server,
                data={"method": method, "since_reconnect": True},
                fold=fold_key(server, method, {}),
            )

    def _log(self, server: str, line: LogLine) -> None:
        mask = self.session.secrets.mask_head
        line = replace(
            line,
            text=redact_text(mask(self._without_keys(server, line), _LOG_LINE_CHARS)),
            level=line.level and cut_name(line.level),
            logger=line.logger and mask(line.logger, _LOGGER_CHARS),
        )
        now = self.session.clock.now()
        kept = Logged(server=server, line=line, created_at=now)
        self.session.state.logs.append(server, kept, kept.size)
        passed, over = self._flows.takes(server, now)
        if not passed:
            return
        if over:
            self._journal.record(JournalEvent.SERVER_OUTPUT_DROPPED, server=server, count=over)
        level = Level.DEBUG if line.source is LogSource.PROTOCOL else Level.INFO
        self._journal.write(
            level,
            JournalEvent.SERVER_OUTPUT,
            server=server,
            source=line.source.value,
            text=line.text,
        )

    def _without_keys(self, server: str, line: LogLine) -> str:
        """A private key may come line by line; what has begun is remembered for each source."""
        source = (server, line.source)
        keys = self._keys.pop(source, None)
        if keys is None and "-----BEGIN" not in line.text:
            return line.text
        keys = keys or PrivateKeyLines()
        text = keys.hide(line.text)
        if keys.is_inside:
            self._keys[source] = keys
            if len(self._keys) > _MOST_KEYS:
                del self._keys[next(iter(self._keys))]
        return text

    def _on_question(self, server: str, question: Question) -> None:
        session = self.session
        asked = session.questions.admit(server, question)
        if asked is None:
            return
        self._journal.record(
            JournalEvent.ELICITATION_RECEIVED,
            server=server,
            request_id=asked.id,
            kind=asked.kind.value,
        )
        session.asked(asked.id, server, question.call)
        session.questions.put(asked)

    def _withdrawn(self, key: object) -> None:
        self.session.questions.withdraw(key)


def _introduction(change: PhaseChange) -> dict[str, object]:
    if change.hello is None:
        return {}
    return {
        "era": change.hello.era.value,
        "protocol_version": change.hello.protocol_version,
        "server_info": change.hello.server_info,
    }


def _prospects(change: PhaseChange) -> dict[str, object]:
    data: dict[str, object] = {"attempt": change.attempt, "attempts": change.attempts}
    if change.retry_in is not None:
        data["retry_in_ms"] = round(change.retry_in * 1000)
    if change.error is not None:
        data["error"] = str(change.error)
    return data
