"""Whether the package stays below its ceiling: files, lines of code, and files in one folder.

The ceiling stands in pyproject.toml under `[tool.emceepee.size]`. Blank lines, comments and
docstrings are no lines of code.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_WITHOUT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    files: int
    code_lines: int
    files_per_folder: int


def _docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(source: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _WITHOUT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(source))


def measured(package: Path) -> Size:
    paths = sorted(package.rglob("*.py"))
    folders = Counter(path.parent for path in paths)
    return Size(
        files=len(paths),
        code_lines=sum(code_lines(path.read_text(encoding="utf-8")) for path in paths),
        files_per_folder=max(folders.values(), default=0),
    )


def ceiling(pyproject: Path) -> Size:
    return Size(**tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["emceepee"]["size"])


def report(size: Size, limit: Size) -> tuple[list[str], bool]:
    """A line for each number, and whether all of them are within the limit."""
    lines: list[str] = []
    within = True
    for field in fields(Size):
        have: int = getattr(size, field.name)
        room: int = getattr(limit, field.name) - have
        within = within and room >= 0
        distance = f"{room} below the ceiling" if room >= 0 else f"{-room} ABOVE the ceiling"
        lines.append(f"{field.name.replace('_', ' ')}: {have}, {distance}")
    return lines, within


if __name__ == "__main__":
    lines, within = report(measured(ROOT / "emceepee_stdio"), ceiling(ROOT / "pyproject.toml"))
    print("\n".join(lines))
    sys.exit(0 if within else 1)
