"""`python -m tests.faults`: one run, its figures, and on failure the command that repeats it."""

import argparse
import json
import sys
from pathlib import Path

from tests.faults.figures import figures, table
from tests.faults.run import Outcome, run
from tests.faults.steps import Step


def main() -> None:
    options = _options()
    steps = options.steps if options.minutes or options.steps else 300
    outcome = run(
        options.seed,
        steps=steps,
        minutes=options.minutes,
        on_step=_say_step if options.verbose else lambda _: None,
    )
    found = figures(outcome)
    sys.stdout.write(f"{table(found)}\n")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if outcome.model.violations:
        sys.stderr.write(complaint(outcome))
        sys.exit(1)


def complaint(outcome: Outcome) -> str:
    """What was wrong, and how to see it again."""
    wrong = "".join(f"  {violation}\n" for violation in outcome.model.violations[:20])
    again = f"python -m tests.faults --seed {outcome.seed} --steps {outcome.steps}"
    return f"Broken rules:\n{wrong}To see it again: {again}\n"


def _say_step(step: Step) -> None:
    sys.stderr.write(f"{step}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides every step")
    parser.add_argument("--steps", type=int, help="how many steps (300)")
    parser.add_argument("--minutes", type=float, help="or for how long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--verbose", action="store_true", help="say every step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
