"""Typed access to decoded JSON from outside, without trusting its shape.

Apart from `foreign_json`, because the first answer is sent before msgspec is loaded.
"""

from collections.abc import Mapping
from typing import cast


def mapping(value: object) -> Mapping[str, object]:
    """The object, or an empty one where it is something else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def elements(value: object) -> list[object]:
    """What is in the list, or nothing where it is something else."""
    return cast("list[object]", value) if isinstance(value, list) else []
