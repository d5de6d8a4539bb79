"""Which records of requests a person wants to see."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from emceepee_stdio.trace.request_records import RequestRecord

__all__ = ["RequestFilter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """All that is set must hold.

    `session` begins an id; `slow_ms` is the shortest duration, without the time in which a tool
    waits because that is what it does; `matches` is given all of a record.
    """

    servers: frozenset[str] = frozenset()
    session: str = ""
    slow_ms: float = 0.0
    failed: bool = False
    matches: Callable[[str], object] | None = None

    def __call__(self, record: RequestRecord) -> bool:
        return (
            (not self.servers or record.server in self.servers)
            and record.session.startswith(self.session)
            and (not self.slow_ms or _spent_ms(record) >= self.slow_ms)
            and (record.failed or not self.failed)
            and (self.matches is None or bool(self.matches(_text(record))))
        )


def _spent_ms(record: RequestRecord) -> float:
    return record.duration_ms - sum(ms for leg, ms in record.legs if leg == "waiting")


def _text(record: RequestRecord) -> str:
    return msgspec.json.encode(record).decode()
