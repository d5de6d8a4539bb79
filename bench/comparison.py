"""Ours against the fastest peer of the same run: a start, a call, and calls in a second.

Each is compared as "times as fast", so that more than 1 × is always in our favour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.figures import shown

_STARTS_OURS = "5 backends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure of ours beside that of the peer which is best at it."""

    what: str
    figure: str
    ours: float
    peer: str
    theirs: float

    @property
    def times_as_fast(self) -> float:
        is_rate = self.figure.endswith("_per_s")
        return self.ours / self.theirs if is_rate else self.theirs / self.ours

    def cells(self) -> tuple[str, str, str, str]:
        ours, theirs = (shown(self.figure, value) for value in (self.ours, self.theirs))
        return self.what, ours, f"{self.peer} {theirs}", f"{self.times_as_fast:.2f} × as fast"


def against_fastest(
    sections: Mapping[str, Any], ours: str, peers: Sequence[str]
) -> list[Comparison]:
    """What can be compared, of the sections that were run."""
    names = [ours, *peers]
    made: list[Comparison | None] = []
    if "startup" in sections:
        starts = _starts(sections["startup"], ours, peers)
        made.append(_compared("start to tools/list", "median_ms", starts, names))
    if "calls" in sections:
        made.append(_compared("p50 of a call", "p50_ms", sections["calls"], names))
    if "load" in sections:
        at_16 = sections["load"]["16"]
        made.append(_compared("calls/s at 16 in flight", "calls_per_s", at_16, names))
    return [comparison for comparison in made if comparison is not None]


def _starts(columns: Mapping[str, Any], ours: str, peers: Sequence[str]) -> dict[str, Any]:
    """A peer's column is named after it and its number of backends."""
    theirs = {
        peer: column
        for name, column in columns.items()
        for peer in peers
        if name.startswith(f"{peer}, ")
    }
    return {ours: columns[_STARTS_OURS], **theirs}


def _compared(
    what: str, figure: str, columns: Mapping[str, Any], names: Sequence[str]
) -> Comparison | None:
    ours, *peers = names
    made = [
        Comparison(
            what=what,
            figure=figure,
            ours=columns[ours][figure],
            peer=peer,
            theirs=columns[peer][figure],
        )
        for peer in peers
    ]
    return min(made, key=lambda comparison: comparison.times_as_fast, default=None)
