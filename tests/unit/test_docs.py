"""What the pages point to is there: tests that they name, files and headings that they link to."""

import ast
import re
from pathlib import Path

import pytest

from emceepee_stdio.state import EventType

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])

_TEST = re.compile(r"`(test_[a-z0-9_]+)(?:\[[^\]]*\])?`")
_FUNCTION = re.compile(r"`([a-z_/]+):([A-Za-z_.]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.fixture(scope="module")
def defined() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"def (test_[a-z0-9_]+)\(", path.read_text(encoding="utf-8")))
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path, defined: set[str]) -> None:
    named = set(_TEST.findall(page.read_text(encoding="utf-8")))
    assert named - defined == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def functions(module: Path) -> set[str]:
    """What is defined in a module, as `name` and `Class.name`."""
    found: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_every_function_of_the_walks_exists() -> None:
    named = _FUNCTION.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    for module, function in named:
        path = ROOT / "emceepee_stdio" / f"{module}.py"
        assert path.exists(), module
        assert function in functions(path), (module, function)


def test_the_page_of_events_has_every_type_with_its_data() -> None:
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    for kind in EventType:
        section = page.split(f"## {kind.value}\n")[1].split("\n## ")[0]
        assert kind.meaning in section
        for name, field in kind.fields.items():
            assert f"| `{name}` |" in section
            assert field.meaning in section


def test_every_place_where_we_differ_from_the_seeds_has_its_reason() -> None:
    page = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 35
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)
