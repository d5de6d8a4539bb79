"""State machines as transition tables: allowed moves, and why.

A table is the single source of its state machine: the code asks it before every change, and the
diagrams are drawn from it. A move that is not in the table raises and changes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalMove(Exception):
    """The table has no such move; nothing was changed."""

    def __init__(self, machine: str, source: StrEnum, target: StrEnum) -> None:
        super().__init__(f"{machine}: no move from {source.value} to {target.value}")
        self.machine = machine
        self.source = source
        self.target = target


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Generic[S]):
    """One arrow. A source of None is the start; `cause` is what makes it happen."""

    source: S | None
    target: S
    cause: str


class Machine(Generic[S]):
    """A named table of moves over the states of one enum.

    `ends` says what follows a final state, `notes` what is worth knowing while in a state.
    """

    def __init__(
        self,
        name: str,
        states: type[S],
        moves: Iterable[Move[S]],
        *,
        ends: Mapping[S, str] | None = None,
        notes: Mapping[S, str] | None = None,
    ) -> None:
        self.name = name
        self.ends: Mapping[S, str] = ends or {}
        self.notes: Mapping[S, str] = notes or {}
        self.states: tuple[S, ...] = tuple(states)
        self.moves = tuple(moves)
        self._allowed = frozenset((move.source, move.target) for move in self.moves)
        self._left = frozenset(move.source for move in self.moves)

    def __repr__(self) -> str:
        return f"<Machine {self.name} {len(self.states)} states {len(self.moves)} moves>"

    def allows(self, source: S | None, target: S) -> bool:
        return (source, target) in self._allowed

    def check(self, source: S, target: S) -> None:
        """Raise IllegalMove unless the table has this move."""
        if (source, target) not in self._allowed:
            raise IllegalMove(self.name, source, target)

    def is_final(self, state: S) -> bool:
        return state not in self._left
