"""Regular expressions from outside: bounded in length, size and time.

The standard `re` has no time limit and freezes every thread on a catastrophic pattern; `regex` has
one. That limit does not cover compiling, which unrolls every `{n}`: a few nested ones would take
all memory, so they are weighed first. `regex` is imported on first use, because most sessions never
need it.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from emceepee_stdio.errors import InvalidPattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    import regex


_MAX_WEIGHT_STEPS = 200_000  # compiles in 0.1 s; more would hold the loop for longer
# A count on a single character, and one on a group. Spaces and comments may stand in either.
_COUNT = re.compile(r"(?<![)}\s])\{([^,}]*)")
_GROUP_COUNT = re.compile(r"(?<=[)}\s])\{([^,}]*)")


class Pattern:
    """One expression. Case is ignored unless the expression says otherwise."""

    def __init__(self, text: str, *, max_chars: int = 500, timeout: float = 0.1) -> None:
        if len(text) > max_chars:
            raise InvalidPattern(
                f"The pattern has {len(text)} characters; {max_chars} are allowed."
            )
        self.text = text
        self._timeout = timeout
        self._compiled = _compile(text)

    def __repr__(self) -> str:
        return f"<Pattern {self.text!r}>"

    def matches(self, text: str) -> bool:
        """Whether it is found anywhere in the text."""
        return next(self.spans(text), None) is not None

    def spans(self, text: str, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Where it is found between start and end, without overlaps."""
        stop = len(text) if end is None else end
        try:
            for match in self._compiled.finditer(text, start, stop, timeout=self._timeout):
                yield match.span()
        except TimeoutError:
            raise InvalidPattern(
                f"The pattern took longer than {self._timeout * 1000:.0f} ms."
            ) from None


def _compile(text: str) -> regex.Pattern[str]:
    import regex  # noqa: PLC0415 - most sessions never search

    if _weight(text) > _MAX_WEIGHT_STEPS:
        raise InvalidPattern("The pattern repeats too much: its {n} counts multiply.")
    try:
        compiled = regex.compile(text, regex.IGNORECASE)
    except (regex.error, ValueError) as error:
        raise InvalidPattern(f"The pattern is not a regular expression: {error}.") from None
    if compiled.flags & regex.REVERSE:
        raise InvalidPattern("The pattern searches backwards, which is not supported.")
    return compiled


def _weight(text: str) -> int:
    """At least as many steps as the expression compiles to: nested counts multiply."""
    return (
        len(text)
        * max(map(_number, _COUNT.findall(text)), default=1)
        * prod(map(_number, _GROUP_COUNT.findall(text)))
    )


def _number(text: str) -> int:
    return max(1, int("".join(filter(str.isdecimal, text)) or 1))
