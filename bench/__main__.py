"""`make bench`: print the figures as tables and write them down as JSON.

Only the ratios within one run mean something: machines are noisy.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from bench import proxy, wire

RESULTS = Path(__file__).with_name("results")

Rows = Mapping[str, Mapping[str, float]]


def table(title: str, rows: Rows, floor: str) -> None:
    """One line per figure, one column per way, and how each compares with the first."""
    names = list(rows)
    print(f"\n{title}")
    print(f"  {'':22}" + "".join(f"{name:>24}" for name in names))
    figures = list(dict.fromkeys(key for row in rows.values() for key in row))
    for figure in figures:
        cells = [_cell(rows[name].get(figure), rows[floor].get(figure)) for name in names]
        print(f"  {figure:22}" + "".join(f"{cell:>24}" for cell in cells))


def _cell(value: float | None, floor: float | None) -> str:
    if value is None:
        return ""
    shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"
    return f"{shown} ({value / floor:.2f}×)" if floor else shown


def main() -> None:
    of_wire = wire.run()
    of_proxy = proxy.run()
    table("The wire against a bare pipe", of_wire, "bare pipe")
    table("The proxy against its backend", of_proxy, "direct")
    RESULTS.mkdir(exist_ok=True)
    figures = {"wire": of_wire, "proxy": of_proxy}
    path = RESULTS / "figures.json"
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"\nWritten to {path.name} in bench/results.")


if __name__ == "__main__":
    main()
