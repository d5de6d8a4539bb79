"""The session: begins, finishes, promotes and cancels calls; owns all state.

What the client does comes in through the tools, what happens to a server through
`backend_handler`. Everything here is synchronous but waiting.

Promotion, the theory of operation. A call that waits on a server has one moment at which it is
looked at, `promote_at`: its own time limit, or sooner when its server has asked the client
something (`make_way`), because a client that makes one call at a time could otherwise never
answer. At that moment the ticker either promotes it, or, when the question was answered meanwhile,
sets the moment back to the time limit. To promote is to answer the client with a task now and let
the call go on: `finish` and `fail` then keep the outcome with the task instead of answering. A
place in the limit of calls was taken before the call was made (`begin`), and the task inherits it,
so a promotion can never be refused. Whichever comes first counts: a call is answered once, a task
ends once, and a result that comes after its task was cancelled or has expired is only journaled.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import anyio
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Limits, Settings
from emceepee_stdio.errors import ProxyError, ServerDisconnected, TaskLimit
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal, JournalEvent, Level
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import (
    Call,
    ServerRun,
    progress_text,
    promoted,
    shown_arguments,
    why_promoted,
)
from emceepee_stdio.session.client_link import ClientLink
from emceepee_stdio.session.person import ClientRequest
from emceepee_stdio.session.questions import Questions
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.server_output import Logged, Notified, RateLimits, kept_data
from emceepee_stdio.state.event_log import Added, EventLog, Lease
from emceepee_stdio.state.event_types import Event, EventData, EventType, Excerpt
from emceepee_stdio.state.pending_requests import PendingRequest
from emceepee_stdio.state.session_state import SessionState
from emceepee_stdio.state.tasks import Task
from emceepee_stdio.trace.request import Leg, OpenRequest, on_leg
from emceepee_stdio.trace.request_log import RequestLog
from emceepee_stdio.wire.timing import Ticker, Wakeup

# What the journal says of calls, tasks, and the event log: one line for each beginning and end.


# Events that no other line of the journal tells of, and what each matters.
_TOLD_BY_NOBODY_ELSE = {
    EventType.NOTIFICATION: Level.INFO,
    EventType.ELICITATION_EXPIRED: Level.INFO,
    EventType.SAMPLING_EXPIRED: Level.INFO,
    EventType.LATE_ANSWER: Level.WARNING,
    EventType.TASK_CANCELLED: Level.INFO,
    EventType.TASK_EXPIRED: Level.WARNING,
    EventType.TIMER_EXPIRED: Level.INFO,
    EventType.SERVER_HEALTH_DEGRADED: Level.WARNING,
    EventType.SERVER_HEALTH_RESTORED: Level.INFO,
}
_NAMES = ("method", "uri", "tool", "task_id", "timer_id", "request_id", "reason", "missed")


class SessionJournal:
    """Writes them down. Whoever tells of single calls asks first whether `debugs` is on."""

    def __init__(self, journal: Journal, clock: Clock, settings: Settings) -> None:
        self._journal = journal
        self._clock = clock
        self._flows = RateLimits(settings.fixed.output_lines, servers=settings.limits.servers)

    def call_began(self, call: Call) -> None:
        self._journal.record(JournalEvent.TOOL_EXECUTION_START, server=call.server, tool=call.tool)

    def call_ended(self, call: Call, outcome: str, **more: str | int) -> None:
        self._journal.record(
            JournalEvent.TOOL_EXECUTION_COMPLETE,
            server=call.server,
            tool=call.tool,
            outcome=outcome,
            duration_ms=round((self._clock.now() - call.began_at) * 1000),
            **more,
        )

    def task(self, event: JournalEvent, task: Task, **more: str) -> None:
        about = {"server": task.server, "task_id": task.id, "tool": task.tool}
        self._journal.record(event, **about, **more)

    def event_added(self, events: EventLog, added: Added) -> None:
        """One that the client is going to be told; and that the log runs full, or events are lost.

        What is folded into an event that waits is told with it, and needs no line.
        """
        level = _TOLD_BY_NOBODY_ELSE.get(added.event.type)
        if level is not None and added.event.count == 1:
            self._tell(level, added.event)
        if added.nearly_full:
            capacity = events.statistics().capacity
            self._journal.record(
                JournalEvent.EVENT_STORE_APPROACHING_LIMIT,
                waiting=events.waiting,
                capacity=capacity,
                percent_full=100 * events.waiting // capacity,
            )
        if added.dropped:
            self._journal.record(
                JournalEvent.EVENT_STORE_EVICTION,
                waiting=events.waiting,
                evicted=added.evicted,
                dropped=added.dropped,
            )

    def _tell(self, level: Level, event: Event) -> None:
        """Names, and nothing of what a server or a model said; a flood is counted."""
        passed, over = self._flows.takes(event.server or "", self._clock.now())
        if over:
            self._journal.record(
                JournalEvent.SERVER_OUTPUT_DROPPED, server=event.server, count=over
            )
        if passed:
            self._journal.write(
                level,
                JournalEvent.EVENT_ADDED,
                server=event.server,
                type=event.type.value,
                **_named(event),
            )


def _named(event: Event) -> dict[str, str | int]:
    if isinstance(event.data, Excerpt):
        return {"bytes": event.data.size}
    data = {**event.data, "uri": mapping(event.data.get("params")).get("uri")}
    found = {name: data.get(name) for name in _NAMES}
    return {name: value for name, value in found.items() if isinstance(value, str | int)}


# Calls that wait for a place, in the order in which they came, each within its own time.
#
# A call that finds no place waits here, in the task that prepares it. Whoever gives up a place
# calls `let_in`, which begins the next call then and there: nobody else can take the place in
# between.


@dataclass(eq=False, slots=True, kw_only=True)
class _Waiting:
    call: Call
    begin: Callable[[], None]
    over: anyio.Event = field(default_factory=anyio.Event)


class CallQueue:
    """The calls of each server that wait for a place."""

    def __init__(self) -> None:
        self.by_server: dict[str, deque[_Waiting]] = {}

    async def wait(
        self, server: str, call: Call, begin: Callable[[], None], *, within: float
    ) -> None:
        """Until the call was begun or sent away, or its time is up."""
        waiting = _Waiting(call=call, begin=begin)
        self.by_server.setdefault(server, deque()).append(waiting)
        try:
            with on_leg(Leg.QUEUED), anyio.move_on_after(within):
                await waiting.over.wait()
        finally:
            self._remove(server, waiting)

    def let_in(self, has_room: Callable[[str], bool]) -> None:
        """Begin whatever there is room for now."""
        for server, queue in list(self.by_server.items()):
            while queue and has_room(server):
                waiting = queue.popleft()
                if not waiting.call.answered:  # else it was cancelled, and nobody wants it begun
                    waiting.begin()
                waiting.over.set()

    def send_away(self, server: str) -> None:
        """Nothing will be free before the client has been answered."""
        for waiting in self.by_server.pop(server, ()):
            waiting.over.set()

    def _remove(self, server: str, waiting: _Waiting) -> None:
        queue = self.by_server.get(server)
        if queue is not None:
            if waiting in queue:
                queue.remove(waiting)
            if not queue:
                del self.by_server[server]


def no_place(server: str, at_work: int, limits: Limits, *, asks: bool) -> TaskLimit:
    """What a call is told that waited for a place in vain."""
    full = (
        f"{server} has {at_work} calls and tasks at work, as many as one server may have"
        if at_work >= limits.server_calls
        else f"{limits.tasks} calls and tasks are at work, which is the limit"
    )
    return TaskLimit(
        f"{full}, and none of them ended in time.",
        hint="Answer its question first: its tasks may wait for that."
        if asks
        else "Wait for one with await_activity, or stop one with cancel_task.",
    )


class Session:
    """State, calls and events of the one client."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        ids: Ids,
        journal: Journal,
        client: ClientLink | None = None,
        trace: RequestLog | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.journal = journal
        self.client = client or ClientLink()
        self.trace = trace or RequestLog.silent(clock)
        self.secrets = self.trace.secrets
        self._calls: dict[str, dict[Call, None]] = {}  # those that wait on a server, by server
        # Those that wait for the answer to a question, by question.
        self._asking: dict[str, tuple[list[OpenRequest], Leg]] = {}
        self.state: SessionState[Notified, Logged, Call] = SessionState(
            settings, new_id=ids, began=clock.iso(clock.now()), on_closed=self.answered
        )
        self.questions = Questions(
            self.state.requests,
            settings,
            clock=clock,
            journal=journal,
            client=self.client,
            tell=self.tell,
            make_way=self.make_way,
            look=self._look,
        )
        self._written = SessionJournal(journal, clock, settings)
        self._queue = CallQueue()
        self._news = Wakeup()
        self.wake = self._news.wake
        self.ticker = Ticker(
            clock,
            [
                self.state.tasks.next_deadline,
                self.state.requests.next_deadline,
                self.state.timers.next_deadline,
                self.state.promotions.next,
            ],
            self._expire,
            on_bug=lambda error: journal.record(JournalEvent.UNEXPECTED_ERROR, error=repr(error)),
        )

    def __repr__(self) -> str:
        return f"<Session {self.state!r}>"

    def holds(self, server: str) -> bool:
        """Whether anything is open at this server."""
        return bool(
            self.waiting_on(server)
            or self.state.tasks.working(server=server)
            or self.state.requests.pending(server=server)
        )

    # Events

    def tell(
        self,
        kind: EventType,
        *,
        server: str | None = None,
        data: EventData | None = None,
        fold: Hashable = None,
    ) -> str:
        """Keep an event for the client, wake what waits for one, and return its id."""
        data, size = kept_data(data or {}, self.settings.fixed.event_data_bytes)
        added = self.state.events.add(
            kind, now=self.clock.now(), server=server, data=data, size=size, fold=fold
        )
        self._written.event_added(self.state.events, added)
        self.wake()
        return added.event.id

    def tell_added(self, server: str, *, by: str, target: str) -> None:
        data = {"by": by, "target": self.secrets.mask(target)}
        self.tell(EventType.SERVER_ADDED, server=server, data=data)

    async def until(self, condition: Callable[[], bool], *, within: float) -> bool:
        """Wait until something that happens makes the condition true; False when time is up."""
        with on_leg(Leg.WAITING), anyio.move_on_after(within):
            await self._news.wait_for(condition)
        return condition()

    # Calls

    def waiting_on(self, server: str) -> list[Call]:
        """The calls of a server that have not been answered yet."""
        return [call for call in self._calls.get(server, ()) if not call.answered]

    def begin(self, call: Call, run: ServerRun, *, within: float) -> None:
        """The call is about to wait on a server: it counts, and it will be answered in time.

        Its requests need no deadline of their own: it becomes a task, and that expires.
        """
        server = run.server
        if run.ttl is not None:
            self.state.tasks.check_ttl(run.ttl)
        calls = self._calls.get(server)
        if calls is None:
            calls = self._calls[server] = {}
        elif calls and not self._has_room(server):
            raise self._no_place(server)
        call.slot = self.state.tasks.admit(beyond=True)
        call.run = run
        call.trace.server, call.trace.server_tool = server, run.tool
        calls[call] = None
        now = call.began_at = self.clock.now()
        call.deadline = now + within
        if self.journal.debugs:
            self._written.call_began(call)
        if within <= 0:
            self.promote(call, "timeout")
            return
        waits = self.state.requests.open and self.state.requests.at_tools(server=server)
        if waits and self.settings.promote_on_input:
            within = min(within, self.settings.fixed.question_pending_s)
        self._promote_at(call, now + within)

    def has_place(self, server: str) -> bool:
        """Whether a call of this server may begin now: there is room, and nobody waits for it."""
        return self._has_room(server) and server not in self._queue.by_server

    async def begin_in_turn(self, call: Call, run: ServerRun, *, within: float) -> None:
        """Begin as soon as there is a place; the call's own time goes on meanwhile."""
        deadline = self.clock.now() + within
        server = run.server

        def begin() -> None:
            self.begin(call, run, within=deadline - self.clock.now())

        self.state.tasks.check_ttl(run.ttl)
        if self.has_place(server) or within <= 0:
            begin()
            return
        if self.settings.promote_on_input and self.state.requests.at_tools(server=server):
            within = min(within, self.settings.fixed.question_pending_s)
        await self._queue.wait(server, call, begin, within=within)
        if call.slot is None:
            raise self._no_place(server)

    def _has_room(self, server: str) -> bool:
        """One call is every server's own, beyond all limits; more are within both of them."""
        at_work = len(self._calls.get(server, ()))
        return not at_work or (
            at_work < self.settings.limits.server_calls and self.state.tasks.has_room()
        )

    def _no_place(self, server: str) -> TaskLimit:
        asks = bool(self.state.requests.at_tools(server=server))
        return no_place(server, len(self._calls.get(server, ())), self.settings.limits, asks=asks)

    def _let_in(self) -> None:
        if self._queue.by_server:
            self._queue.let_in(self._has_room)

    def finish(self, call: Call, reply: Reply) -> None:
        """The tool is done: answer the client, or keep the reply as the result of its task."""
        self._forget(call, "completed", bytes=len(reply.content), is_error=reply.is_error)
        if call.task is None:
            self._reply(call, reply)
            if self._queue.by_server:
                self._let_in()
            return
        now = self.clock.now()
        size = reply.size + len(memoryview(reply.structured or b""))
        task = self.state.tasks.complete(call.task, reply, now=now, size=size)
        self._let_in()
        if task is None:
            self.journal.record(JournalEvent.LATE_RESULT, server=call.server, task_id=call.task)
            return
        self._tell_task(EventType.TASK_COMPLETED, task)
        self._written.task(JournalEvent.TASK_COMPLETED, task)

    def fail(self, call: Call, error: ProxyError) -> None:
        """The tool failed: tell the client, or fail its task."""
        error = error.masked(self.secrets.mask)
        call.trace.error_code = error.code
        self.state.starting.discard(call.server or "")
        self._forget(call, "failed", error=error.code)
        if call.task is None:
            self._reply(call, Reply.error(error, native=call.request.native))
            self._let_in()
            return
        task = self.state.tasks.fail(call.task, str(error), now=self.clock.now())
        self._let_in()
        if task is not None:
            self._tell_failed(task, str(error))

    def fail_tasks(self, server: str, error: str, *, fact: str) -> Sequence[Task]:
        """Its server is gone: each task keeps the whole error, its event tells the fact."""
        failed = self.state.tasks.fail_server(server, error, now=self.clock.now())
        for task in failed:
            self._tell_failed(task, fact)
        return failed

    def end_calls_of(self, failed: Sequence[Task]) -> None:
        """No outcome of their requests comes after the loss, and nothing is sent anew."""
        for task in failed:
            self._stop(task.id, "failed", error=ServerDisconnected.code)

    def cancel(self, call: Call) -> None:
        """Stop the work on it, at its server too; nothing is answered."""
        call.cancel()
        self.abandon(call)

    def abandon(self, call: Call) -> None:
        """The client cancelled: nothing is answered, the place is free."""
        self._forget(call, "cancelled")
        call.answered = True
        self.release(call)
        self._let_in()

    def release(self, call: Call) -> None:
        """Its reply reports no events any more: others do."""
        leases, call.leases = call.leases, ()
        for lease in leases:
            self.state.events.release(lease)
        if leases:
            self.wake()

    def report_in(self, call: Call, lease: Lease) -> None:
        """These events are for the reply of this call."""
        call.leases = (*call.leases, lease)

    def _reply(self, call: Call, reply: Reply) -> None:
        """Answer the client, once; one that asks a question first has the reply kept."""
        if call.answered:
            self.release(call)
            return
        call.answered = True
        if call.is_paused:
            call.kept = reply
        else:
            call.client.end.answer(call, reply)

    def cancel_task(self, task_id: str, *, by: Call | None = None) -> Task:
        """Stop a working task, also at its server; the answer of `by` tells it."""
        task = self.state.tasks.cancel(task_id, now=self.clock.now())
        self._stop(task_id, "cancelled")
        event_id = self._tell_task(EventType.TASK_CANCELLED, task)
        if by is not None:
            self.report_in(by, self.state.events.take_these([event_id]))
        return task

    def note_progress(self, call: Call, params: Raw) -> None:
        """How far a call is that has become a task."""
        if call.task is not None and (text := progress_text(params)):
            self.state.tasks.report(call.task, self.secrets.mask(text), now=self.clock.now())

    def fetch(self, task_id: str) -> Task:
        """A task for the client to take; once it has ended, its outcome is kept a while longer."""
        task = self.state.tasks.fetch(task_id, now=self.clock.now())
        if (due := self.state.tasks.next_deadline()) is not None:
            self.ticker.look(due)
        return task

    def promote(self, call: Call, reason: str, *, why: str | None = None) -> None:
        """Answer with a task now; the call goes on."""
        run = call.run
        if call.answered or call.slot is None or run is None:
            return
        self.state.promotions.clear(call)
        now = self.clock.now()
        task = self.state.tasks.promote(
            call.slot,
            server=run.server,
            tool=run.tool,
            args=shown_arguments(run.args, mask=self.secrets.mask),
            now=now,
            ttl=run.ttl,
        )
        call.task = task.id
        self.ticker.look(task.expires_at)
        ttl_ms = round((task.expires_at - now) * 1000)
        created = self._tell_task(EventType.TASK_CREATED, task, reason=reason, ttl_ms=ttl_ms)
        self.report_in(call, self.state.events.take_these([created]))
        self._written.task(JournalEvent.TOOL_EXECUTION_TIMEOUT, task, reason=reason)
        open_questions = self.state.requests.pending(server=task.server)
        reply = promoted(
            task,
            reason,
            why=why or why_promoted(task, open_questions, call),
            note=run.note,
            working=self.state.tasks.working(server=task.server),
            questions=open_questions,
            word=self.client.word,
            clock=self.clock,
        )
        self._reply(call, reply)

    def pause(self, call: Call) -> float:
        """Its client asks a question first: its time stands still. How much it had in all."""
        self.state.promotions.clear(call)
        call.is_paused = True
        within = call.deadline - call.began_at
        call.deadline = call.promote_at = math.inf
        return within

    def resume(self, call: Call, request: ClientRequest, *, within: float) -> None:
        """Its client has made it again; it waits for a moment if a tool has to answer first."""
        call.request, call.is_paused = request, False
        if not call.answered:
            now = self.clock.now()
            call.deadline = now + within
            if self.settings.promote_on_input and self._has_asked(call):
                within = min(within, self.settings.fixed.promotion_grace_s)
            self._promote_at(call, now + within)

    def _promote_at(self, call: Call, deadline: float) -> None:
        call.promote_at = deadline
        self.state.promotions.set(call, deadline)
        if deadline < self.ticker.next:
            self.ticker.look(deadline)

    def _stop(self, task_id: str, outcome: str, **more: str | int) -> None:
        if call := self._of_task(task_id):
            call.cancel()
            self._forget(call, outcome, **more)
            self._let_in()

    def _of_task(self, task_id: str) -> Call | None:
        found = (call for calls in self._calls.values() for call in calls if call.task == task_id)
        return next(found, None)

    def _forget(self, call: Call, outcome: str, **more: str | int) -> None:
        """It is no longer in flight; the first time that this is said, it is journaled."""
        if call.slot is None or call.run is None:
            return
        call.cancel_request = None  # it refers to the call: garbage is freed at once without it
        self.state.promotions.clear(call)
        calls = self._calls.get(call.run.server)
        if calls is not None and call in calls:
            del calls[call]
            if not calls:
                del self._calls[call.run.server]
            if self.journal.debugs:
                self._written.call_ended(call, outcome, **more)
            if call.task is not None:
                self.trace.task_ended(call.trace, outcome, more)
        self.state.tasks.leave(call.slot)
        if self.state.requests.open:
            self.questions.end_call(call)

    def _tell_failed(self, task: Task, error: str) -> None:
        data = {"task_id": task.id, "tool": task.tool, "error": error}
        self.tell(EventType.TASK_FAILED, server=task.server, data=data)
        self._written.task(JournalEvent.TASK_FAILED, task, error=error)

    def _tell_task(self, kind: EventType, task: Task, **more: object) -> str:
        error = {} if task.error is None else {"error": task.error}
        data: dict[str, object] = {"task_id": task.id, "tool": task.tool, **more, **error}
        return self.tell(kind, server=task.server, data=data)

    # Questions

    def asked(self, request_id: str, server: str, asking_call: object) -> None:
        """Who waits for the answer: the call that asked, or, if it is not known, all calls."""
        waiting = [asking_call] if isinstance(asking_call, Call) else self._calls.get(server, {})
        traces = [call.trace for call in waiting]
        if isinstance(asking_call, OpenRequest):  # one that is no call
            traces = [asking_call]
        self._asking[request_id] = traces, Leg.PERSON
        for trace in traces:
            trace.ask()

    def answered(self, request_id: str) -> None:
        """The question is closed, whatever came of it."""
        traces, leg = self._asking.pop(request_id, ((), Leg.PERSON))
        for trace in traces:
            trace.answered(leg)

    def _look(self, at: float) -> None:
        self.ticker.look(at)

    def make_way(self, asked: PendingRequest, asking_call: object) -> None:
        """The model has it: a client that calls one tool at a time could not answer it.

        Its calls are let go, soon.
        """
        traces, leg = self._asking.get(asked.id, ([], Leg.MODEL))
        if leg is Leg.PERSON:
            self._asking[asked.id] = traces, Leg.MODEL
            for trace in traces:
                trace.enter(Leg.MODEL)
                trace.answered()
        self._queue.send_away(asked.server)
        grace = self.clock.now() + self.settings.fixed.promotion_grace_s
        for call in self.waiting_on(asked.server):
            if asking_call is call or (asking_call is None and self.settings.promote_on_input):
                call.questions = (call.questions | {asked.id}) & self.state.requests.open.keys()
                if self.settings.promote_on_input:
                    self._promote_at(call, min(grace, call.promote_at))

    def wait_for_person(self, call: Call) -> None:
        """The person has its question: it waits its own time, whatever else waits at the tools."""
        if call.promote_at < call.deadline and not self._has_asked(call):
            self._promote_at(call, call.deadline)

    def _has_asked(self, call: Call) -> bool:
        """Whether a question that it may have raised waits at the tools."""
        return bool(call.questions & self.state.requests.open.keys())

    def _expire(self, now: float) -> None:
        for call in self.state.promotions.pop_due(now=now):
            if now >= call.deadline or self.state.requests.at_tools(server=call.server):
                reason = "timeout" if now >= call.deadline else "question_pending"
                self.promote(call, "input_required" if self._has_asked(call) else reason)
            else:  # what was asked has been answered or taken back meanwhile
                self._promote_at(call, call.deadline)
        for task in self.state.tasks.expire(now=now).expired:
            self._stop(task.id, "expired")
            self._tell_task(EventType.TASK_EXPIRED, task)
        self.questions.expire(now)
        for fired in self.state.timers.expire(now=now):
            timer = fired.timer
            data: dict[str, object] = {"timer_id": timer.id, "message": timer.message}
            if timer.repeats:
                data |= {"fired": timer.fired, "missed": fired.missed}
            self.tell(EventType.TIMER_EXPIRED, data=data, fold=("timer", timer.id))
