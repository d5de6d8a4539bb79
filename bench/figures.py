"""Figures, the targets they are held against, and how both are shown.

A figure's name ends with its unit, and that decides how it reads.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What a noisy machine adds to a figure that does not grow.
_FLAT = 1.25

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One target and whether it was met."""

    what: str
    target: str
    figure: str
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One line per figure, one column per way; with a floor, how each compares with it."""

    title: str
    columns: Mapping[str, Figures]
    floor: str | None = None

    def lines(self) -> list[str]:
        names = list(self.columns)
        figures = list(dict.fromkeys(key for column in self.columns.values() for key in column))
        rows = [["", *names]]
        for figure in figures:
            floor = self.columns[self.floor].get(figure) if self.floor else None
            cells = [self._cell(name, figure, floor) for name in names]
            rows.append([_label(figure), *cells])
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        return [
            "  "
            + row[0].ljust(widths[0])
            + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ]

    def _cell(self, name: str, figure: str, floor: float | None) -> str:
        value = self.columns[name].get(figure)
        if value is None:
            return ""
        if not floor or name == self.floor:
            return shown(figure, value)
        return f"{shown(figure, value)} ({value / floor:.2f}×)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one measurement came to."""

    tables: Sequence[Table] = ()
    checks: Sequence[Check] = ()
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000

    return {"p50_ms": at(0.5), "p95_ms": at(0.95), "p99_ms": at(0.99)}


def medians(blocks: Sequence[Figures]) -> dict[str, float]:
    """Of each figure the median over the blocks, so that one disturbed block changes nothing."""
    return {key: statistics.median(block[key] for block in blocks) for key in blocks[0]}


def at_most(what: str, value: float, limit: float, unit: str, *, exactly: str = "") -> Check:
    """A figure that must not be above its limit."""
    return Check(
        what=what,
        target=f"≤ {limit:g} {unit}",
        figure=f"{value:.3g} {unit}{exactly}" if value < 1000 else f"{value:,.0f} {unit}{exactly}",
        met=value <= limit,
    )


def flat(what: str, columns: Mapping[str, Figures], key: str) -> Check:
    """The last column against the first: the cost must not grow with what they count."""
    names = list(columns)
    ratio = columns[names[-1]][key] / columns[names[0]][key]
    return Check(
        what=what,
        target=f"flat (≤ {_FLAT:g} ×)",
        figure=f"{ratio:.2f} × from {names[0]} to {names[-1]}",
        met=ratio <= _FLAT,
    )


def shown(figure: str, value: float) -> str:
    if figure.endswith("_ms"):
        return f"{value:.3f} ms" if value < 10 else f"{value:.1f} ms"
    if figure.endswith("_us"):
        return f"{value:.0f} µs"
    if figure.endswith("_mb"):
        return f"{value:.1f} MB"
    return f"{value:,.0f}"


def _label(figure: str) -> str:
    for unit in ("_ms", "_us", "_mb"):
        figure = figure.removesuffix(unit)
    return figure.replace("_per_s", "/s").replace("_", " ")
