"""The one session: all state, and what joins the client's calls, the servers and the events.

Whatever happens to a server comes in through the sink methods and becomes state and events. What
the client does comes in through the tools. Everything here is synchronous but waiting.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import anyio
from msgspec import Raw

from emceepee_stdio.backends.base import (
    LogLine,
    LogSource,
    Loss,
    PhaseChange,
    Question,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Settings
from emceepee_stdio.errors import ProxyError, TaskLimit
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Event as JournalEvent
from emceepee_stdio.journal import Journal, Secrets
from emceepee_stdio.session.calls import Call, Calls
from emceepee_stdio.session.heard import (
    Flows,
    Logged,
    Notified,
    fields_of,
    fold_of,
    ring_of,
)
from emceepee_stdio.session.promotion import promoted
from emceepee_stdio.session.questions import Questions
from emceepee_stdio.session.reconcile import Reconciler
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.ticker import Ticker
from emceepee_stdio.state import (
    EventLog,
    EventType,
    Phase,
    RequestKind,
    Requests,
    Results,
    Ring,
    Task,
    Tasks,
    Timers,
    fold_key,
)
from emceepee_stdio.state.deadlines import Deadlines

__all__ = ["Session"]

_AFTER_ITS_TASK = 5.0
_ASKED = {
    RequestKind.ELICITATION: EventType.ELICITATION_REQUEST,
    RequestKind.SAMPLING: EventType.SAMPLING_REQUEST,
}


class Session:
    """State, calls and events of the one client."""

    def __init__(self, settings: Settings, *, clock: Clock, ids: Ids, journal: Journal) -> None:
        limits, times = settings.limits, settings.timeouts
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.journal = journal
        self.secrets = Secrets()
        self.events = EventLog(new_id=ids, capacity=limits.events)
        self.tasks = Tasks(
            new_id=ids,
            limit=limits.tasks,
            ttl=min(times.task_ttl_ms, times.task_ttl_max_ms) / 1000,
            max_ttl=times.task_ttl_max_ms / 1000,
            retention=times.result_retention_ms / 1000,
            max_finished=limits.finished_tasks,
            max_bytes=limits.stored_bytes,
        )
        self.requests = Requests(
            new_id=ids,
            timeout=times.client_request_ms / 1000,
            limit=limits.pending_requests,
        )
        self.questions = Questions(self.requests, limits)
        self.timers = Timers(new_id=ids, limit=limits.timers)
        self.results = Results(new_id=ids, max_bytes=limits.stored_bytes)
        self.notifications: dict[str, Ring[Notified]] = {}
        self.logs: dict[str, Ring[Logged]] = {}
        self._reconciler = Reconciler(
            events=self.events, tasks=self.tasks, requests=self.requests, clock=clock
        )
        self._calls = Calls()
        self._promotions: Deadlines[Call] = Deadlines()
        self._flows = Flows(limits.output_lines, servers=limits.servers)
        self._news = anyio.Event()
        self.target_of: Callable[[str], str | None] = lambda _server: None
        self.ticker = Ticker(
            clock,
            [
                self.tasks.next_deadline,
                self.requests.next_deadline,
                self.timers.next_deadline,
                self._promotions.next,
            ],
            self._expire,
            on_bug=lambda error: journal.record(JournalEvent.UNEXPECTED_ERROR, error=repr(error)),
        )

    def __repr__(self) -> str:
        return f"<Session {self.events!r} {self.tasks!r} {self.requests!r}>"

    # Events

    def tell(
        self,
        kind: EventType,
        *,
        server: str | None = None,
        data: Mapping[str, object] | None = None,
        fold: Hashable = None,
    ) -> str:
        """Something happened: keep it for the client and wake whoever waits. Its id."""
        added = self.events.add(kind, now=self.clock.now(), server=server, data=data, fold=fold)
        if added.nearly_full or added.dropped:
            self.journal.record(
                JournalEvent.EVENT_STORE_EVICTION,
                waiting=self.events.waiting,
                evicted=added.evicted,
                dropped=added.dropped,
            )
        self.wake()
        return added.event.id

    def wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()

    async def until(self, condition: Callable[[], bool], *, within: float) -> bool:
        """Wait until something that happens makes the condition true; False when time is up."""
        with anyio.move_on_after(within):
            while not condition():
                await self._news.wait()
        return condition()

    # Calls

    def begin(
        self, call: Call, *, server: str, tool: str, within: float, ttl: float | None = None
    ) -> None:
        """The call is about to wait on a server: it counts, and it will be answered in time.

        Its server may take longer than the task that the call may become.
        """
        call.ttl = self.tasks.check_ttl(ttl)
        if self._calls.count(server) >= self.settings.limits.server_calls:
            raise TaskLimit(
                f"{server} has {self._calls.count(server)} calls and tasks at work, as many as one "
                "server may have.",
                hint="Wait for one with await_activity, or stop one with cancel_task.",
            )
        call.slot = self.tasks.admit()
        call.server, call.tool = server, tool
        call.deadline = self.clock.now() + within
        self.journal.debug(JournalEvent.TOOL_EXECUTION_START, server=server, tool=tool)
        self._calls.add(server, call)
        call.limit = max(within, 0.0) + call.ttl + _AFTER_ITS_TASK
        if within <= 0:
            self.promote(call, "timeout")
            return
        if self.settings.promote_on_input and self.requests.pending(server=server):
            within = min(within, self.settings.timeouts.question_pending_ms / 1000)
        self._promote_at(call, self.clock.now() + within)

    def finish(self, call: Call, reply: Reply) -> None:
        """The tool is done: answer the client, or keep the reply as the result of its task."""
        self._forget(call)
        if call.server is not None:
            self.journal.debug(
                JournalEvent.TOOL_EXECUTION_COMPLETE,
                server=call.server,
                tool=call.tool,
                bytes=reply.size,
                is_error=reply.is_error,
            )
        if call.task is None:
            call.reply(reply)
            return
        now = self.clock.now()
        task = self.tasks.complete(call.task, reply, now=now, size=reply.size)
        if task is None:
            self.journal.record(JournalEvent.LATE_RESULT, server=call.server, task_id=call.task)
            return
        self._tell_task(EventType.TASK_COMPLETED, task)
        self.journal.record(JournalEvent.TASK_COMPLETED, server=task.server, task_id=task.id)

    def fail(self, call: Call, error: ProxyError) -> None:
        """The tool failed: tell the client, or fail its task."""
        error = error.masked(self.secrets.mask)
        self._forget(call)
        if call.task is None:
            call.reply(Reply.error(error))
            return
        task = self.tasks.fail(call.task, str(error), now=self.clock.now())
        if task is not None:
            self._tell_task(EventType.TASK_FAILED, task)
            self.journal.record(
                JournalEvent.TASK_FAILED, server=task.server, task_id=task.id, error=str(error)
            )

    def abandon(self, call: Call) -> None:
        """The client cancelled: nothing is answered, the place is free."""
        self._forget(call)
        call.answered = True

    def cancel_task(self, task_id: str) -> Task:
        """Stop a working task, also at its server."""
        task = self.tasks.cancel(task_id, now=self.clock.now())
        self._stop(task_id)
        self._tell_task(EventType.TASK_CANCELLED, task)
        return task

    def fetch(self, task_id: str) -> Task:
        """A task for the client to take; once it has ended, its outcome is kept a while longer."""
        task = self.tasks.fetch(task_id, now=self.clock.now())
        if (due := self.tasks.next_deadline()) is not None:
            self.ticker.look(due)
        return task

    def promote(self, call: Call, reason: str) -> None:
        """Answer with a task now; the call goes on."""
        if call.answered or call.slot is None or call.server is None:
            return
        self._promotions.clear(call)
        now = self.clock.now()
        task = self.tasks.promote(
            call.slot, server=call.server, tool=call.tool, now=now, ttl=call.ttl
        )
        call.task = task.id
        self.ticker.look(task.expires_at)
        call.own_events.append(self._tell_task(EventType.TASK_CREATED, task, reason=reason))
        self.journal.record(
            JournalEvent.TOOL_EXECUTION_TIMEOUT,
            server=task.server,
            tool=task.tool,
            task_id=task.id,
            reason=reason,
        )
        call.reply(
            promoted(
                task,
                reason,
                note=call.note,
                working=self.tasks.working(server=task.server),
                asked=[asked.id for asked in self.requests.pending(server=task.server)],
                clock=self.clock,
            )
        )

    def _promote_at(self, call: Call, deadline: float) -> None:
        call.promote_at = deadline
        self._promotions.set(call, deadline)
        self.ticker.look(deadline)

    def _stop(self, task_id: str) -> None:
        call = self._calls.of_task(task_id)
        if call is not None and call.cancel():
            self._forget(call)

    def _forget(self, call: Call) -> None:
        self._promotions.clear(call)
        self._calls.remove(call)
        if call.slot is not None:
            self.tasks.leave(call.slot)

    def _tell_task(self, kind: EventType, task: Task, **more: object) -> str:
        data: dict[str, object] = {"task_id": task.id, "tool": task.tool, **more}
        if task.error is not None:
            data["error"] = task.error
        return self.tell(kind, server=task.server, data=data)

    # What the servers tell

    def phase_changed(self, server: str, change: PhaseChange) -> None:
        change = change.masked(self.secrets.mask)
        gone = self._reconciler.phase_changed(server, change)
        self.questions.forget(gone.requests)
        self._journal_phase(server, change)
        self.wake()

    def attempt_failed(self, server: str, error: ProxyError) -> None:
        error = error.masked(self.secrets.mask)
        self.journal.record(JournalEvent.SERVER_RECONNECT_FAILED, server=server, error=str(error))

    def process_started(self, server: str, pid: int) -> None:
        self._reconciler.process_started(server, pid)
        self.journal.record(
            JournalEvent.SERVER_SPAWNED, server=server, pid=pid, command=self.target_of(server)
        )
        self.wake()

    def process_ended(self, server: str, loss: Loss, *, expected: bool) -> None:
        self._reconciler.process_ended(server, loss.masked(self.secrets.mask), expected=expected)
        self.wake()

    def notification(self, server: str, method: str, params: Raw | None) -> None:
        limits = self.settings.limits
        ring = ring_of(
            self.notifications, server, capacity=limits.notifications, servers=limits.servers
        )
        now = self.clock.now()
        ring.append(Notified(server=server, method=method, params=params, received_at=now))
        fields = fields_of(params)
        self.tell(
            EventType.NOTIFICATION,
            server=server,
            data={"method": method, "params": fields} if fields else {"method": method},
            fold=fold_of(server, method, fields),
        )

    def log(self, server: str, line: LogLine) -> None:
        logger = line.logger and self.secrets.mask(line.logger)
        line = replace(line, text=self.secrets.mask(line.text), logger=logger)
        limits, now = self.settings.limits, self.clock.now()
        ring = ring_of(self.logs, server, capacity=limits.log_lines, servers=limits.servers)
        ring.append(Logged(server=server, line=line, received_at=now))
        passed, over = self._flows.takes(server, now)
        if not passed:
            return
        if over:
            self.journal.record(JournalEvent.SERVER_OUTPUT_DROPPED, server=server, count=over)
        write = self.journal.debug if line.source is LogSource.PROTOCOL else self.journal.info
        write(JournalEvent.SERVER_OUTPUT, server=server, source=line.source.value, text=line.text)

    def asked(self, server: str, question: Question) -> None:
        asked = self.questions.admit(server, question, now=self.clock.now())
        if asked is None:
            return
        self.ticker.look(asked.expires_at)
        self.journal.record(
            JournalEvent.ELICITATION_RECEIVED,
            server=server,
            request_id=asked.id,
            kind=asked.kind.value,
        )
        self.tell(_ASKED[asked.kind], server=server, data={"request_id": asked.id})
        if self.settings.promote_on_input:
            self._make_way(server, question.call)

    def withdrawn(self, server: str, question: Question) -> None:  # noqa: ARG002 - the sink's way
        if closed := self.questions.withdraw(question, now=self.clock.now()):
            self._reconciler.asked_expired(closed)
            self.wake()

    def lists_differ(self, server: str, kinds: Sequence[str]) -> None:
        for kind in kinds:
            self.tell(
                EventType.NOTIFICATION,
                server=server,
                data={"method": f"notifications/{kind}/list_changed", "since_reconnect": True},
                fold=fold_key(server, f"notifications/{kind}/list_changed", {}),
            )

    def health_changed(self, server: str, *, degraded: bool, misses: int) -> None:
        kind = EventType.SERVER_HEALTH_DEGRADED if degraded else EventType.SERVER_HEALTH_RESTORED
        self.tell(kind, server=server, data={"missed": misses})

    def _make_way(self, server: str, asking: object) -> None:
        """A client that calls one tool at a time could not answer: let its calls go, soon."""
        grace = self.clock.now() + self.settings.timeouts.promotion_grace_ms / 1000
        for call in self._calls.waiting_on(server):
            if asking is None or asking is call:
                self._promote_at(call, min(grace, call.promote_at))

    def _journal_phase(self, server: str, change: PhaseChange) -> None:
        if change.phase is Phase.CONNECTED:
            self.journal.record(JournalEvent.SERVER_CONNECTED, server=server)
        elif change.phase is Phase.RECONNECTING:
            self.journal.record(
                JournalEvent.SERVER_RECONNECTING,
                server=server,
                attempt=change.attempt,
                error=str(change.error),
            )
        elif change.phase is Phase.FAILED:
            self.journal.record(JournalEvent.SERVER_FAILED, server=server, error=str(change.error))
        elif change.previous is Phase.CONNECTED:
            self.journal.record(
                JournalEvent.SERVER_DISCONNECTED,
                server=server,
                error=str(change.error) if change.error else None,
            )

    # Time

    def _expire(self, now: float) -> None:
        for call in self._promotions.pop_due(now=now):
            asked = self.requests.pending(server=call.server)
            if asked or now >= call.deadline:
                self.promote(call, "input_required" if asked else "timeout")
            else:  # what was asked has been answered or taken back meanwhile
                self._promote_at(call, call.deadline)
        for task in self.tasks.expire(now=now).expired:
            self._stop(task.id)
            self._tell_task(EventType.TASK_EXPIRED, task)
        for asked in self.requests.expire(now=now):
            self.questions.refuse(asked, "The client did not answer in time.")
            self._reconciler.asked_expired(asked)
            self.wake()
            self.journal.record(
                JournalEvent.ELICITATION_TIMEOUT, server=asked.server, request_id=asked.id
            )
        for fired in self.timers.expire(now=now):
            timer = fired.timer
            data: dict[str, object] = {"timer_id": timer.id, "message": timer.message}
            if timer.repeats:
                data |= {"fired": timer.fired, "missed": fired.missed}
            self.tell(EventType.TIMER_EXPIRED, data=data)
