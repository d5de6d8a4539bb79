"""Long runs: `python -m tests.fuzz [front|child|http|hostile-server …] --minutes N --seed S`.

Episodes with the seeds S, S+1, … take turns between the kinds until the time is over. Whatever does
not hold is printed with its seed, and what was said is kept. `--flood N` sends N lines from either
side instead, and `--replay FILE` says the lines of a file, to the front or by a child.
"""

import argparse
import itertools
import sys
import tempfile
import traceback
from pathlib import Path

import anyio

from tests.fuzz.episodes import FLOODS, KINDS, Seen, replay_child, replay_front, run_episode
from tests.fuzz.rig import MEGABYTE


def say(words: str) -> None:
    sys.stderr.write(words + "\n")


async def fuzz(options: argparse.Namespace) -> int:
    """The number of episodes in which something did not hold."""
    failures = 0
    totals = {kind: Seen() for kind in options.kinds}
    counts = dict.fromkeys(options.kinds, 0)
    end = anyio.current_time() + options.minutes * 60
    for number in itertools.count():
        kind = options.kinds[number % len(options.kinds)]
        seed = options.seed + number // len(options.kinds)
        if anyio.current_time() >= end or 0 < options.episodes <= seed - options.seed:
            break
        counts[kind] += 1
        try:
            totals[kind].add(await run_episode(kind, seed, steps=options.steps, keep=options.keep))
        except Exception as error:  # noqa: BLE001 - the other episodes go on
            failures += 1
            say(f"{kind} {seed} failed\n{''.join(traceback.format_exception(error))[-3_000:]}")
    for kind, seen in totals.items():
        say(
            f"{kind}: {counts[kind]} episodes, {seen.lines} lines of garbage, {seen.calls} calls "
            f"answered ({seen.failed} with an error), grew by {seen.growth / MEGABYTE:.0f} MiB "
            "at most"
        )
    return failures


async def flood(options: argparse.Namespace) -> int:
    for kind in options.kinds:
        if kind in FLOODS:
            with tempfile.TemporaryDirectory() as place:
                seen = await FLOODS[kind](options.flood, Path(place) / "home")
            say(
                f"{kind}: {seen.lines} lines in {seen.seconds:.1f} s, {seen.calls} calls answered "
                f"meanwhile, grew by {seen.growth / MEGABYTE:.0f} MiB at most"
            )
    return 0


async def replay(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as place:
        again = replay_front if options.kinds == ["front"] else replay_child
        say(str(await again(options.replay.resolve(), Path(place) / "home")))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("kinds", nargs="*", metavar="front|child|http")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100, help="calls of the client in an episode")
    parser.add_argument(
        "--episodes", type=int, default=0, help="seeds to try, however long it takes"
    )
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "emceepee-fuzz")
    parser.add_argument("--flood", type=int, metavar="LINES")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.kinds = options.kinds or list(KINDS)
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    job = replay if options.replay else flood if options.flood else fuzz
    return 1 if anyio.run(job, options) else 0


if __name__ == "__main__":
    sys.exit(main())
