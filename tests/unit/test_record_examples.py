"""The recorder of the examples on the page of tools."""

from typing import Any

import pytest

from scripts.record_examples import merged


def examples(run: int, *tools: str) -> list[dict[str, Any]]:
    return [{"tool": tool, "arguments": {}, "answer": [f"of run {run}"]} for tool in tools]


def test_only_the_examples_that_are_wanted_change() -> None:
    kept = merged(examples(2, "a", "b", "c"), examples(1, "a", "b", "c"), ["b"])
    assert kept == [*examples(1, "a"), *examples(2, "b"), *examples(1, "c")]


def test_a_new_example_comes_to_its_place() -> None:
    kept = merged(examples(2, "a", "b", "c"), examples(1, "a", "c"), ["b"])
    assert kept == [*examples(1, "a"), *examples(2, "b"), *examples(1, "c")]


def test_the_example_of_a_tool_that_is_gone_goes() -> None:
    assert merged(examples(2, "b"), examples(1, "a", "b"), ["b"]) == examples(2, "b")


def test_a_tool_that_the_script_does_not_call_is_refused() -> None:
    with pytest.raises(SystemExit, match="no call of x is recorded"):
        merged(examples(2, "a"), examples(1, "a"), ["x"])
