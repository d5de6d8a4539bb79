"""The clock: the only reader of time.

Inside the proxy an instant is a `float` of monotonic seconds. It is turned into wall time once,
where somebody outside is to read it. A clock that was set, or a machine that slept, moves the wall
against the monotonic clock: the anchor follows as soon as the two differ by more than a second, and
until then the same instant always reads the same.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
DAY_S = 24 * HOUR_S

_MAX_DRIFT_S = 1.0  # less than this is slewing, and stamps of one event would differ


class Clock:
    """Monotonic seconds, and what they were on the wall."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.now = monotonic  # taken as it is: this is called a thousand times a second
        self._wall = wall
        self._anchor = wall() - monotonic()

    def __repr__(self) -> str:
        return f"<Clock {self.iso(self.now())}>"

    def epoch(self, instant: float) -> float:
        """Seconds since 1970 of a monotonic instant."""
        anchor = self._wall() - self.now()
        if abs(anchor - self._anchor) > _MAX_DRIFT_S:
            self._anchor = anchor
        return instant + self._anchor

    def iso(self, instant: float) -> str:
        """ISO 8601 in UTC with milliseconds, as every answer and journal line shows it."""
        return iso_time(self.epoch(instant))


def iso_time(at: float) -> str:
    """The same of seconds since 1970."""
    moment = datetime.fromtimestamp(at, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
