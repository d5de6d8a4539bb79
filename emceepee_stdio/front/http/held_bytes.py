"""Memory that a token takes in the front: bodies that arrive, and answers that are not written yet.

Each token has a budget, and each exchange an account in it, which is empty when the exchange ends.
"""

from collections import Counter
from typing import Self

__all__ = ["ByteBudget", "HeldBytes"]


class ByteBudget:
    """`most` is for each token."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ByteBudget {self.held.total()} bytes held>"


class HeldBytes:
    """What one exchange holds of the budget, until the end of its context."""

    __slots__ = ("_budget", "_owner", "_size")

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self._size = 0

    def __repr__(self) -> str:
        return f"<HeldBytes {self._size} of {self._owner}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, size: int) -> bool:
        """So much more, if its token may hold it."""
        held = self._budget.held[self._owner] + size
        if held > self._budget.most:
            return False
        self._budget.held[self._owner] = held
        self._size += size
        return True

    def release(self) -> None:
        """All of it."""
        if self._size:
            self._budget.held[self._owner] -= self._size
            self._size = 0
