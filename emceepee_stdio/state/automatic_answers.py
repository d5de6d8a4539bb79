"""Whether an answer is the person's, or was given for them by a client that showed nothing.

Headless hosts declare elicitation and refuse each one at once. Such a refusal is nobody's decision.
One may have a reason of its own, in the form or in what it says; only several of them say something
about the host, and then for as long as the session lasts.
"""

__all__ = ["AutomaticAnswers"]

_REFUSALS = frozenset({"decline", "cancel", None})
_ENOUGH = 2  # one refusal may be about that one question


class AutomaticAnswers:
    """What one client answered, and how fast. `within` is faster than a person answers."""

    def __init__(self, *, within: float) -> None:
        self._within = within
        self._servers: set[str] = set()
        self._own = 0

    def __repr__(self) -> str:
        return f"<AutomaticAnswers {self._count} refusals>"

    @property
    def _count(self) -> int:
        return len(self._servers) + self._own

    @property
    def expected(self) -> bool:
        """Whether this host refuses by itself, so that nobody needs to be asked any more."""
        return self._count >= _ENOUGH

    def is_fast(self, *, took: float) -> bool:
        return took < self._within

    def is_automatic(
        self, action: str | None, *, took: float, server: str | None, plain: bool
    ) -> bool:
        """Judge one answer, and remember what it says about the host.

        `action` is None for an error; `server` asked, or we did where it is None; `plain` if every
        host could have shown the form. Where a person has answered, earlier refusals count no more.
        """
        if not self.is_fast(took=took):
            if action is not None:
                self._servers.clear()
                self._own = 0
            return False
        if action not in _REFUSALS:
            return False
        if plain and not self.expected:
            if server is None:
                self._own += 1
            else:
                self._servers.add(server)
        return True
