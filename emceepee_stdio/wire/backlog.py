"""How many bytes of answers wait for a side that does not read them.

A server whose answers cannot be got rid of is not read from until they are: whoever asks and does
not listen waits for itself. Only answers count. Requests of ours are written whether or not the
server is writing to us just then; not to read from it because of them could block both for ever.
"""

from collections import deque

__all__ = ["Backlog"]


class Backlog:
    """Counts along with a writer: what was queued in all, and what of it has left."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queued = 0
        # Runs of answers with nothing between them: where each ends, and its bytes.
        self._runs: deque[tuple[int, int]] = deque()
        self.answers = 0

    def __repr__(self) -> str:
        return f"<Backlog {self.answers}/{self._limit}>"

    @property
    def is_over(self) -> bool:
        return self.answers > self._limit

    def request(self, size: int) -> None:
        self._queued += size

    def answer(self, size: int) -> None:
        run = 0
        if self._runs and self._runs[-1][0] == self._queued:
            run = self._runs.pop()[1]
        self._queued += size
        self._runs.append((self._queued, run + size))
        self.answers += size

    def written(self, total: int) -> None:
        """So many bytes have left since the beginning."""
        while self._runs and self._runs[0][0] <= total:
            self.answers -= self._runs.popleft()[1]
        if self._runs:
            end, size = self._runs[0]
            left = min(size, end - total)
            self._runs[0] = (end, left)
            self.answers -= size - left
