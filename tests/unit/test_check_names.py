"""The check that no two modules and no two public classes share a name."""

from pathlib import Path

from scripts.check_names import PACKAGE, shared_names


def test_every_name_of_the_package_is_used_once() -> None:
    assert shared_names(PACKAGE) == []


def test_a_name_that_is_used_twice_is_found_with_its_places(tmp_path: Path) -> None:
    for package in ("one", "two"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
        (tmp_path / package / "tasks.py").write_text(
            "class Task:\n    pass\n\n\nclass _Own:\n    pass\n"
        )
    assert shared_names(tmp_path) == [
        "module tasks: one/tasks.py, two/tasks.py",
        "class Task: one/tasks.py, two/tasks.py",
    ]
