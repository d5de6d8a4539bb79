"""Draw `docs/performance.svg`: latency against load, from what `python -m bench` wrote down.

Usage: python scripts/plot_performance.py [FIGURES] [PICTURE]
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "bench" / "results" / "figures.json"
PICTURE = ROOT / "docs" / "performance.svg"

_WIDTH, _HEIGHT = 760, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 150, 64, 64
_PLAIN, _DIM, _GRID, _BACKGROUND = "#e6edf3", "#8b949e", "#30363d", "#0d1117"
_COLOURS = {"direct": "#7ee787", "emceepee": "#79c0ff"}
_LABEL_GAP = 17


class Line(NamedTuple):
    """One percentile of one way, at each load."""

    way: str
    percentile: str
    points: Sequence[tuple[int, float]]


class Scale(NamedTuple):
    """Where a load and a latency lie in the picture; both axes are logarithmic."""

    loads: tuple[int, int]
    decades: tuple[int, int]

    def x(self, load: float) -> float:
        low, high = map(math.log2, self.loads)
        return _LEFT + (math.log2(load) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, latency_ms: float) -> float:
        low, high = self.decades
        share = (math.log10(latency_ms) - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def lines_of(load: Mapping[str, Any]) -> list[Line]:
    """The lines to draw; what is no load, such as notes on the run, is passed over."""
    loads = sorted(int(key) for key in load if key.isdigit())
    return [
        Line(way, percentile, [(at, load[str(at)][way][f"{percentile}_ms"]) for at in loads])
        for way in _COLOURS
        for percentile in ("p99", "p50")
    ]


def picture(figures: Mapping[str, Any]) -> str:
    lines = lines_of(figures["sections"]["load"])
    loads = [at for at, _ in lines[0].points]
    values = [value for line in lines for _, value in line.points]
    decades = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    scale = Scale((loads[0], loads[-1]), decades)
    about = figures["machine"]
    note = f"{about['cores']} cores, Python {about['python']}, commit {about['commit']}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"',
            '  font-family="system-ui, -apple-system, Segoe UI, sans-serif" font-size="13">',
            "<title>Latency of a call against calls in flight, direct and through emceepee</title>",
            f'<rect width="100%" height="100%" rx="10" fill="{_BACKGROUND}"/>',
            _text(_LEFT, 30, "Latency of a call against load", size=16),
            _text(_LEFT, 49, note, fill=_DIM, size=12),
            *_axes(scale, loads),
            *(_drawn(line, scale) for line in lines),
            *_labels(lines, scale),
            "</svg>",
            "",
        ]
    )


def _axes(scale: Scale, loads: Sequence[int]) -> list[str]:
    left, right, foot = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    drawn: list[str] = []
    for decade in range(scale.decades[0], scale.decades[1] + 1):
        at = scale.y(10.0**decade)
        drawn.append(_rule(left, at, right, at))
        drawn.append(_text(left - 10, at + 4, f"{10.0**decade:g} ms", fill=_DIM, anchor="end"))
    for load in loads:
        drawn.append(_rule(scale.x(load), foot, scale.x(load), foot + 5))
        drawn.append(_text(scale.x(load), foot + 21, str(load), fill=_DIM, anchor="middle"))
    middle = (left + right) / 2
    return [*drawn, _text(middle, foot + 44, "calls in flight", fill=_DIM, anchor="middle")]


def _drawn(line: Line, scale: Scale) -> str:
    points = " ".join(f"{scale.x(at):.1f},{scale.y(value):.1f}" for at, value in line.points)
    dashes = ' stroke-dasharray="5 4"' if line.percentile == "p99" else ""
    colour = _COLOURS[line.way]
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'


def _labels(lines: Sequence[Line], scale: Scale) -> list[str]:
    """The name of each line at its end, moved down where two would overlap."""
    drawn: list[str] = []
    lowest = -math.inf
    for line in sorted(lines, key=lambda line: -line.points[-1][1]):
        load, value = line.points[-1]
        at = max(scale.y(value) + 4, lowest + _LABEL_GAP)
        lowest = at
        words = f"{line.way} {line.percentile}"
        drawn.append(_text(scale.x(load) + 10, at, words, fill=_COLOURS[line.way]))
    return drawn


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_GRID}"/>'


def _text(
    x: float, y: float, words: str, *, fill: str = _PLAIN, anchor: str = "start", size: int = 13
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="{fill}">{escape(words)}</text>'


def main() -> None:
    given = [Path(argument) for argument in sys.argv[1:]]
    source, target = [*given, *(FIGURES, PICTURE)[len(given) :]][:2]
    figures = json.loads(source.read_text(encoding="utf-8"))
    target.write_text(picture(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
