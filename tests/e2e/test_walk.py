"""The script that prints the way of a call, run against a real proxy."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import walk


def printed(*options: str, cwd: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, walk.__file__, *options],
        cwd=cwd,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("options", [[], ["--http"]], ids=["stdio", "http"])
def test_a_walk_goes_from_the_request_to_the_answer_and_counts_what_it_lists(
    options: list[str], tmp_path: Path
) -> None:
    *listed, empty, coroutines, counts = printed(*options, cwd=tmp_path)
    modules = [line.strip().partition(":")[0] for line in listed]
    assert not empty
    assert counts == f"{len(listed)} function calls in {len(set(modules))} modules"
    assert coroutines.endswith("coroutine frames")
    for module in modules:
        assert Path(walk.PACKAGE, *module.split(".")).with_suffix(".py").is_file()
    assert not listed[0].startswith(" ")


@pytest.mark.slow
def test_two_walks_have_the_same_counts_and_only_these_are_printed(tmp_path: Path) -> None:
    first, second = (printed("--counts", cwd=tmp_path) for _ in range(2))
    assert first == second
    assert len(first) == 1
