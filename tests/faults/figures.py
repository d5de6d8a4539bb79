"""The figures of a run, as a table for people and as JSON."""

from typing import Any, cast

from tests.faults.run import Outcome
from tests.faults.steps import FAULTS


def figures(outcome: Outcome) -> dict[str, Any]:
    model = outcome.model
    held = model.resident_kb or [None]
    faults = {kind: n for kind, n in sorted(outcome.kinds.items()) if kind in FAULTS}
    return {
        "seed": outcome.seed,
        "steps": outcome.steps,
        "seconds": round(outcome.seconds, 1),
        "rests": outcome.kinds["rest"],
        "calls": sum(model.calls.values()),
        "calls_by_tool": dict(sorted(model.calls.items())),
        "errors_by_code": dict(sorted(model.errors.items())),
        "faults": sum(faults.values()),
        "faults_by_kind": faults,
        "events": sum(model.events.values()),
        "events_by_kind": dict(sorted(model.events.items())),
        "events_dropped": model.dropped,
        "tasks": sum(model.task_ends.values()),
        "tasks_by_end": dict(sorted(model.task_ends.items())),
        "questions_by_end": dict(sorted(model.question_ends.items())),
        "survivors": len(model.survivors),
        "descriptors_at_start": _held(model.first_quiet),
        "descriptors_at_end": _held(model.last_quiet),
        "resident_kb_at_start": held[0],
        "resident_kb_at_half": held[len(held) // 2],
        "resident_kb_at_end": held[-1],
        "resident_kb_by_rest": model.resident_kb,
        "violations": [str(violation) for violation in model.violations],
    }


def table(found: dict[str, Any]) -> str:
    """One line for each figure, those by kind indented below their sum."""
    lines: list[str] = []
    for name, value in found.items():
        words = name.replace("_", " ")
        if isinstance(value, dict):
            numbers = cast("dict[str, int]", value)
            lines += [f"  {words}"] if numbers else []
            lines += [f"    {key:<28}{number:>12,}" for key, number in numbers.items()]
        elif not isinstance(value, list):
            lines.append(f"  {words:<30}{value if value is not None else '-':>12}")
    return "\n".join(lines)


def _held(seen: dict[str, Any]) -> int | None:
    return sum(seen["descriptors"].values()) if seen else None
