"""`make bench`: print the figures as a table and write them down as JSON."""

import json
from pathlib import Path

from bench import wire

RESULTS = Path(__file__).with_name("results")


def main() -> None:
    figures = wire.run()
    floor = figures["bare pipe"]
    print(
        f"{'':14}{'call p50':>12}{'ratio':>8}{'10 MB result':>15}{'ratio':>8}{'calls/s at 16':>16}"
    )
    for name, row in figures.items():
        rate = row.get("calls_per_s_at_16")
        print(
            f"{name:14}{row['call_ms']:9.3f} ms{row['call_ms'] / floor['call_ms']:8.2f}"
            f"{row['large_ms']:12.1f} ms{row['large_ms'] / floor['large_ms']:8.2f}"
            f"{'' if rate is None else format(rate, '16,.0f')}"
        )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "wire.json"
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
