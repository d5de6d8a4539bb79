"""The list of tests that do not run on Windows says what the marks say, and does not grow."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIST = TESTS / "not_on_windows.txt"
MARKS = ("posix_only", "not_under_wine")
MOST = 55  # lower it when a test runs there


def marks(path: Path) -> Iterator[tuple[str, str]]:
    """What is marked in a file, and with which mark and reason."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        target.id: found
        for node in tree.body
        if isinstance(node, ast.Assign) and (found := mark_of(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    place = path.relative_to(TESTS).as_posix()
    if whole := names.get("pytestmark"):
        yield place, whole
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                named = names.get(decorator.id) if isinstance(decorator, ast.Name) else None
                if found := named or mark_of(decorator):
                    yield f"{place}::{node.name}", found


def mark_of(node: ast.expr) -> str | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    name = node.func.attr
    return f"{name}: {ast.literal_eval(node.args[0])}" if name in MARKS else None


def test_the_list_says_what_the_marks_say():
    by_reason: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, reason in marks(path):
            by_reason.setdefault(reason, []).append(name)
    lines = [
        line
        for reason in sorted(by_reason)
        for line in (reason, *(f"  {name}" for name in by_reason[reason]))
    ]
    assert LIST.read_text(encoding="utf-8").splitlines() == lines
    assert sum(map(len, by_reason.values())) <= MOST
