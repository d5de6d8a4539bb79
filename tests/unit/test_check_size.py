"""The check that the package stays below its ceiling."""

from dataclasses import replace
from pathlib import Path

from scripts.check_size import ROOT, Size, ceiling, code_lines, measured, report

SOURCE = '''"""A docstring
of two lines."""

# A comment.
NAME = "a"  # another


def name() -> str:
    """What is not counted."""
    return (
        NAME

    )
'''
LIMIT = Size(files=2, code_lines=10, files_per_folder=1)


def test_the_package_is_below_its_ceiling() -> None:
    lines, within = report(measured(ROOT / "emceepee_stdio"), ceiling(ROOT / "pyproject.toml"))
    assert within, lines


def test_blank_lines_comments_and_docstrings_are_not_counted() -> None:
    assert code_lines(SOURCE) == 5


def test_a_text_of_many_lines_is_counted_whole() -> None:
    assert code_lines('TEXT = """one\n\nthree"""\n') == 3


def test_a_package_is_measured_with_its_folders(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("one.py", "inner/two.py", "inner/three.py"):
        (tmp_path / name).write_text(SOURCE)
    assert measured(tmp_path) == Size(files=3, code_lines=15, files_per_folder=2)


def test_a_size_at_the_ceiling_is_allowed() -> None:
    lines, within = report(LIMIT, LIMIT)
    assert within
    assert lines[1] == "code lines: 10, 0 below the ceiling"


def test_one_number_above_the_ceiling_is_a_failure() -> None:
    lines, within = report(replace(LIMIT, code_lines=12), LIMIT)
    assert not within
    assert lines == [
        "files: 2, 0 below the ceiling",
        "code lines: 12, 2 ABOVE the ceiling",
        "files per folder: 1, 0 below the ceiling",
    ]
