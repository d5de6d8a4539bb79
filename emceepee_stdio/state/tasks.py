"""Tasks: calls that were answered before their result, from promotion to expiry.

One limit counts the calls in flight and the working tasks together, so that a promotion can never
be refused. A finished task keeps its outcome for the session until it was fetched once, and a while
after that; when an outcome has to go, the reason and the time stay known.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from emceepee_stdio.errors import InvalidArguments, ResultExpired, TaskLimit, TaskNotFound
from emceepee_stdio.state.machine import Deadlines, Machine, Move, Tombstones


class TaskStatus(StrEnum):
    """Where a task stands."""

    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TASK_STATES = Machine(
    "proxy_task_states",
    TaskStatus,
    [
        Move(source=None, target=TaskStatus.WORKING, cause="a call outlives its answer"),
        Move(source=TaskStatus.WORKING, target=TaskStatus.COMPLETED, cause="the result arrives"),
        Move(source=TaskStatus.WORKING, target=TaskStatus.FAILED, cause="an error arrives"),
        Move(source=TaskStatus.WORKING, target=TaskStatus.FAILED, cause="the server is lost"),
        Move(source=TaskStatus.WORKING, target=TaskStatus.CANCELLED, cause="cancel_task"),
        Move(
            source=TaskStatus.WORKING, target=TaskStatus.EXPIRED, cause="its time to live is over"
        ),
    ],
    ends=dict.fromkeys(
        (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED),
        "forgotten 5 min after it was fetched",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A view of one task. `result` is whatever the caller stored; `error` says what went wrong.

    `args` is what may be shown of its arguments, `status_message` the last that it said of itself.
    """

    id: str
    server: str
    tool: str
    status: TaskStatus
    created_at: float
    updated_at: float
    expires_at: float
    args: object = None
    status_message: str | None = None
    result: object = None
    error: str | None = None
    size: int = 0
    fetched_at: float | None = None

    def __repr__(self) -> str:
        age = self.updated_at - self.created_at
        return f"<Task {self.id} {self.status.value} {self.server}/{self.tool} age={age:.1f}s>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What a tick did: tasks whose time is over, and finished ones that were forgotten."""

    expired: tuple[Task, ...]
    forgotten: tuple[str, ...]


class Slot:
    """The place of one call within the limit: given up when the call ends or becomes a task."""

    held = True


@dataclass(eq=False, repr=False, kw_only=True)
class Tasks:
    """All tasks of the session, and the count of calls in flight beside them."""

    new_id: Callable[[], str]
    limit: int = 100  # of calls in flight and working tasks together
    ttl: float = 1800.0
    max_ttl: float = 86_400.0
    retention: float = 300.0
    max_finished: int = 1000
    max_bytes: int = 64 << 20
    began: str = ""  # when this session did, in words
    in_flight: int = field(init=False, default=0)
    _working: dict[str, Task] = field(init=False, default_factory=dict[str, Task])
    _finished: dict[str, Task] = field(init=False, default_factory=dict[str, Task])
    _finished_bytes: int = field(init=False, default=0)
    _ended: Counter[TaskStatus] = field(init=False, default_factory=Counter[TaskStatus])
    _tombstones: Tombstones = field(init=False, default_factory=Tombstones)
    _deadlines: Deadlines[str] = field(init=False, default_factory=Deadlines[str])

    def __repr__(self) -> str:
        return (
            f"<Tasks in_flight={self.in_flight} working={len(self._working)}"
            f" finished={len(self._finished)} limit={self.limit}>"
        )

    def has_room(self) -> bool:
        return self.in_flight + len(self._working) < self.limit

    def admit(self, *, beyond: bool = False) -> Slot:
        """Take a place for a call that is about to be made; `beyond` the limit where it is due."""
        if not beyond and not self.has_room():
            raise TaskLimit(
                f"{self.in_flight} calls and {len(self._working)} tasks are running; "
                f"the limit is {self.limit} together.",
                hint=None if self._working else "Call again when one of them has returned.",
            )
        self.in_flight += 1
        return Slot()

    def leave(self, slot: Slot) -> None:
        """The call ended: its place is free. Leaving twice is harmless."""
        if slot.held:
            slot.held = False
            self.in_flight -= 1

    def check_ttl(self, ttl: float | None) -> float:
        """The time to live of a task: as asked for, if it may be so long, else the usual one."""
        ttl = self.ttl if ttl is None else ttl
        if not 0 < ttl <= self.max_ttl:
            raise InvalidArguments(
                f"task_ttl_ms was {ttl * 1000:g}; it must be 1 to {self.max_ttl * 1000:.0f}."
            )
        return ttl

    def promote(
        self,
        slot: Slot,
        *,
        server: str,
        tool: str,
        now: float,
        args: object = None,
        ttl: float | None = None,
    ) -> Task:
        """Turn a call in flight into a working task, in the same place."""
        ttl = self.check_ttl(ttl)
        if not slot.held:
            raise ValueError("this call has already ended")
        self.leave(slot)
        task = Task(
            id=self.new_id(),
            server=server,
            tool=tool,
            status=TaskStatus.WORKING,
            created_at=now,
            updated_at=now,
            expires_at=now + ttl,
            args=args,
        )
        self._working[task.id] = task
        self._deadlines.set(task.id, task.expires_at)
        return task

    def report(self, task_id: str, message: str, *, now: float) -> None:
        """A working task says how far it is; of one that has ended it no longer counts."""
        if task := self._working.get(task_id):
            self._working[task_id] = replace(task, status_message=message, updated_at=now)

    def complete(self, task_id: str, result: object, *, now: float, size: int = 0) -> Task | None:
        """Keep the result; None when it came too late to count."""
        task = self._working.get(task_id)
        return task and self._end(task, TaskStatus.COMPLETED, now=now, result=result, size=size)

    def fail(self, task_id: str, error: str, *, now: float) -> Task | None:
        """Keep the error; None when it came too late to count."""
        task = self._working.get(task_id)
        return task and self._end(task, TaskStatus.FAILED, now=now, error=error, size=len(error))

    def cancel(self, task_id: str, *, now: float) -> Task:
        """Stop a working task; IllegalMove when it has ended already."""
        task = self.get(task_id, now=now)
        return self._end(task, TaskStatus.CANCELLED, now=now, error="cancelled")

    def fail_server(self, server: str, error: str, *, now: float) -> list[Task]:
        """The server was lost: every working task of it fails, once."""
        ids = [task.id for task in self._working.values() if task.server == server]
        return [task for task_id in ids if (task := self.fail(task_id, error, now=now))]

    def get(self, task_id: str, *, now: float) -> Task:
        task = self._working.get(task_id) or self._finished.get(task_id)
        if task is not None:
            return task
        if gone := self._tombstones.describe(task_id, now=now):
            raise ResultExpired(f"Task {task_id} is no longer kept: {gone}.")
        began = f" This proxy began at {self.began} and knows nothing older."
        raise TaskNotFound(f"There is no task {task_id!r}.{began if self.began else ''}")

    def fetch(self, task_id: str, *, now: float) -> Task:
        """Like get; the first fetch of a finished task starts its retention."""
        task = self.get(task_id, now=now)
        if task.status is TaskStatus.WORKING or task.fetched_at is not None:
            return task
        task = replace(task, fetched_at=now)
        self._finished[task_id] = task
        self._deadlines.set(task_id, now + self.retention)
        return task

    def working(self, *, server: str | None = None) -> list[Task]:
        return [task for task in self._working.values() if server in (None, task.server)]

    def totals(self) -> dict[TaskStatus, int]:
        """How many are at work, and how many came to each end since the start."""
        return {s: self._ended[s] for s in TaskStatus} | {TaskStatus.WORKING: len(self._working)}

    def all(self) -> Iterator[Task]:
        """Working tasks first, then the finished ones, each oldest first."""
        yield from self._working.values()
        yield from self._finished.values()

    def next_deadline(self) -> float | None:
        return self._deadlines.next()

    def expire(self, *, now: float) -> Expiry:
        """End the tasks whose time is over and forget the outcomes whose retention is."""
        due = self._deadlines.pop_due(now=now)
        # What goes anyway goes first: a task that ends may need the room.
        forgotten = tuple(task_id for task_id in due if task_id in self._finished)
        for task_id in forgotten:
            self._forget(self._finished[task_id], "fetched, and its retention ended", now)
        working = [task for task_id in due if (task := self._working.get(task_id))]
        expired = tuple(self._expire(task, now=now) for task in working)
        return Expiry(expired=expired, forgotten=forgotten)

    def _expire(self, task: Task, *, now: float) -> Task:
        lived = task.expires_at - task.created_at
        error = f"no result within its time to live of {lived:g} s"
        return self._end(task, TaskStatus.EXPIRED, now=now, error=error)

    def _end(
        self,
        task: Task,
        status: TaskStatus,
        *,
        now: float,
        result: object = None,
        error: str | None = None,
        size: int = 0,
    ) -> Task:
        TASK_STATES.check(task.status, status)
        task = replace(task, status=status, updated_at=now, result=result, error=error, size=size)
        del self._working[task.id]
        self._ended[status] += 1
        self._deadlines.clear(task.id)
        self._finished[task.id] = task
        self._finished_bytes += size
        self._stay_within_bounds(newest=task)
        return task

    def _stay_within_bounds(self, *, newest: Task) -> None:
        """Oldest out; the newest outcome always stays, so that it can be fetched at all."""
        while len(self._finished) > 1 and (
            len(self._finished) > self.max_finished or self._finished_bytes > self.max_bytes
        ):
            oldest = next(iter(self._finished.values()))
            self._forget(oldest, "room was needed for newer results", newest.updated_at)

    def _forget(self, task: Task, reason: str, now: float) -> None:
        del self._finished[task.id]
        self._finished_bytes -= task.size
        self._deadlines.clear(task.id)
        self._tombstones.add(task.id, reason, now=now)
