"""Whether every module and every public class of the package has a name of its own.

Packages, `__init__` and `__main__` do not count, nor do names that begin with an underscore.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "emceepee_stdio"


def shared_names(package: Path) -> list[str]:
    """A line for each name that stands for two things."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        if not path.stem.startswith("__"):
            found[f"module {path.stem}"].append(where)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[f"class {node.name}"].append(where)
    return [f"{name}: {', '.join(places)}" for name, places in found.items() if len(places) > 1]


if __name__ == "__main__":
    shared = shared_names(PACKAGE)
    print("\n".join(shared) or "names: every one is used once")
    sys.exit(1 if shared else 0)
