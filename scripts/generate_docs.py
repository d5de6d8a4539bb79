"""Write the pages that are made from the code, or with `--check` say which of them are stale."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from emceepee_stdio.errors import error_types
from emceepee_stdio.journal.events import journal_events
from emceepee_stdio.state.diagrams import Diagram, diagrams, further_diagrams

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTICE = "<!-- Made by `make docs` from the code. Change the code, not this page. -->\n"


def _section(diagram: Diagram) -> str:
    return f"## {diagram.name}\n\n{diagram.description}\n\n```mermaid\n{diagram.mermaid}```\n"


def states_page() -> str:
    intro = (
        "The first five are what the resource `emceepee://diagrams` shows. Each state diagram is"
        " drawn from the table that the code obeys: a move that is not drawn here raises and"
        " changes nothing.\n"
    )
    sections = [_section(diagram) for diagram in (*diagrams(), *further_diagrams())]
    return "\n".join(["# States\n", NOTICE, intro, *sections])


def errors_page() -> str:
    rows = [f"| `{kind.code}` | {kind.hint} |" for kind in error_types()]
    intro = (
        "Every error is one text block: the fact, the code in brackets, the next step. Codes never"
        " change. The hint below is the usual next step; an error may carry a more precise one.\n"
    )
    return "\n".join(["# Errors\n", NOTICE, intro, "| code | next step |", "|---|---|", *rows, ""])


def journal_page() -> str:
    rows = [f"| `{e.name}` | {e.level} | {e.meaning} |" for e in journal_events()]
    intro = (
        "The journal is a file of JSON lines for each running proxy. These are the names in the"
        " field `event`, and the level at which each is written.\n"
    )
    head = ["| event | level | meaning |", "|---|---|---|"]
    return "\n".join(["# Journal events\n", NOTICE, intro, *head, *rows, ""])


PAGES: dict[str, Callable[[], str]] = {
    "states.md": states_page,
    "errors.md": errors_page,
    "journal.md": journal_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when stale")
    check: bool = parser.parse_args().check
    stale: list[str] = []
    for name, build in PAGES.items():
        path = DOCS / name
        text = build()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"docs/ is stale: {', '.join(stale)}. Run `make docs`.", file=sys.stderr)
        return 1
    print("docs/: " + ("up to date" if not stale else "wrote " + ", ".join(stale)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
