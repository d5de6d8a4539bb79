"""Typed access to decoded JSON from outside, without trusting its shape.

Apart from `foreign_json`, because the first answer is sent before msgspec is loaded.
"""

from collections.abc import Callable, Mapping
from typing import cast


def mapping(value: object) -> Mapping[str, object]:
    """The object, or an empty one where it is something else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def elements(value: object) -> list[object]:
    """What is in the list, or nothing where it is something else."""
    return cast("list[object]", value) if isinstance(value, list) else []


def with_texts(value: object, change: Callable[[str], str], *, names: bool = False) -> object:
    """The same with every text in it changed, at any depth; with `names` those of members, too."""
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {
            change(name) if names else name: with_texts(one, change, names=names)
            for name, one in items
        }
    if isinstance(value, list):
        return [with_texts(one, change, names=names) for one in cast("list[object]", value)]
    return change(value) if isinstance(value, str) else value
