"""Timers of the client: once or repeated, without drift, within bounds.

A repeating timer fires at most ten times a second; the rounds in between are counted as missed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from emceepee_stdio.clock import DAY_S
from emceepee_stdio.errors import InvalidArguments, TimerLimit, TimerNotFound
from emceepee_stdio.state.machine import Deadlines, Machine, Move

_MIN_DURATION_S = 0.001  # duration_ms is a whole number, and 0 would be due at once
_MIN_PAUSE_S = 0.1  # of a repeating timer: a client that reads its events is slower than that
MAX_DURATION_S = DAY_S  # a session rarely lives longer than a day
_MAX_MESSAGE_CHARS = 500  # a reminder, not a document


class TimerStatus(StrEnum):
    """Where a timer stands."""

    ACTIVE = "active"
    EXPIRED = "expired"
    DELETED = "deleted"


TIMER_STATES = Machine(
    "timer_states",
    TimerStatus,
    [
        Move(source=None, target=TimerStatus.ACTIVE, cause="set_timer"),
        Move(source=TimerStatus.ACTIVE, target=TimerStatus.ACTIVE, cause="an interval fires"),
        Move(source=TimerStatus.ACTIVE, target=TimerStatus.EXPIRED, cause="a one-shot timer fires"),
        Move(source=TimerStatus.ACTIVE, target=TimerStatus.DELETED, cause="delete_timer"),
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A view of one timer. `fired` counts its events; `due_at` is the next one."""

    id: str
    message: str
    duration: float
    repeats: bool
    status: TimerStatus
    created_at: float
    due_at: float
    fired: int = 0

    def __repr__(self) -> str:
        every = "every" if self.repeats else "once"
        return f"<Timer {self.id} {self.status.value} {every} {self.duration}s fired={self.fired}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """One firing; `missed` counts the rounds of an interval that passed unseen before it."""

    timer: Timer
    missed: int


@dataclass(eq=False, repr=False, kw_only=True)
class Timers:
    """All timers of the session, and the last inactive ones."""

    new_id: Callable[[], str]
    limit: int = 100
    keep_inactive: int = 100
    _active: dict[str, Timer] = field(init=False, default_factory=dict[str, Timer])
    _inactive: dict[str, Timer] = field(init=False, default_factory=dict[str, Timer])
    _deadlines: Deadlines[str] = field(init=False, default_factory=Deadlines[str])

    def __repr__(self) -> str:
        return f"<Timers active={len(self._active)} limit={self.limit}>"

    def set(self, *, duration: float, message: str, repeats: bool = False, now: float) -> Timer:
        if not _MIN_DURATION_S <= duration <= MAX_DURATION_S:
            raise InvalidArguments(
                f"duration_ms was {duration * 1000:g}; "
                f"it must be from 1 to {MAX_DURATION_S * 1000:.0f}."
            )
        if not 1 <= len(message) <= _MAX_MESSAGE_CHARS:
            raise InvalidArguments(
                f"message had {len(message)} characters; it must have 1 to {_MAX_MESSAGE_CHARS}."
            )
        if len(self._active) >= self.limit:
            raise TimerLimit(f"{self.limit} timers are active, which is the limit.")
        timer = Timer(
            id=self.new_id(),
            message=message,
            duration=duration,
            repeats=repeats,
            status=TimerStatus.ACTIVE,
            created_at=now,
            due_at=now + duration,
        )
        self._active[timer.id] = timer
        self._deadlines.set(timer.id, timer.due_at)
        return timer

    def get(self, timer_id: str) -> Timer:
        timer = self._active.get(timer_id) or self._inactive.get(timer_id)
        if timer is None:
            raise TimerNotFound(f"There is no timer {timer_id!r}.")
        return timer

    def delete(self, timer_id: str) -> Timer:
        """Stop an active timer; IllegalMove when it has ended already."""
        timer = self.get(timer_id)
        TIMER_STATES.check(timer.status, TimerStatus.DELETED)
        return self._retire(replace(timer, status=TimerStatus.DELETED))

    def all(self, *, include_inactive: bool = False) -> list[Timer]:
        timers = list(self._active.values())
        return timers + list(self._inactive.values()) if include_inactive else timers

    def next_deadline(self) -> float | None:
        return self._deadlines.next()

    def expire(self, *, now: float) -> list[Fired]:
        """Fire what is due, earliest first; an interval that slept fires once, then in step."""
        return [
            self._fire(self._active[timer_id], now=now)
            for timer_id in self._deadlines.pop_due(now=now)
        ]

    def _fire(self, timer: Timer, *, now: float) -> Fired:
        if not timer.repeats:
            TIMER_STATES.check(timer.status, TimerStatus.EXPIRED)
            done = replace(timer, status=TimerStatus.EXPIRED, fired=timer.fired + 1)
            return Fired(timer=self._retire(done), missed=0)
        # The first round that is still to come, and not too soon.
        earliest = now + _MIN_PAUSE_S if timer.duration < _MIN_PAUSE_S else now
        missed = max(int((earliest - timer.due_at) / timer.duration), 0)
        due_at = timer.due_at + (missed + 1) * timer.duration
        if due_at <= earliest:  # the division was rounded down to a step that has passed as well
            missed += 1
            due_at += timer.duration
        timer = replace(timer, due_at=due_at, fired=timer.fired + 1)
        self._active[timer.id] = timer
        self._deadlines.set(timer.id, due_at)
        return Fired(timer=timer, missed=missed)

    def _retire(self, timer: Timer) -> Timer:
        del self._active[timer.id]
        self._deadlines.clear(timer.id)
        self._inactive[timer.id] = timer
        if len(self._inactive) > self.keep_inactive:
            del self._inactive[next(iter(self._inactive))]
        return timer
