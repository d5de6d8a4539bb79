"""A bounded queue of lines, and the one thread that carries them away.

Whoever offers a line never waits: past the bound the line is dropped and counted. The thread starts
with the first line and hands over everything that is waiting at once. A line is whatever `carry`
makes one of.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BackgroundWriter"]

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Takes lines from any thread; `carry` gets them in order, and how many were dropped since.

    With `gather_s` the thread lets more lines come for so long, and is woken once for all of them.
    """

    def __init__(
        self,
        name: str,
        carry: Callable[[list[T], int], None],
        *,
        max_lines: int,
        max_bytes: int,
        gather_s: float = 0.0,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._carry = carry
        self._finish = finish
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._gather_s = gather_s
        self._flushing = 0
        self._lock = threading.Lock()  # taken by itself where nobody is waited for: much faster
        self._changed = threading.Condition(self._lock)
        self._lines: list[T] = []
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closing = False
        self._unreported = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<BackgroundWriter {self._name} {len(self._lines)} waiting {self.dropped} dropped>"

    @property
    def full(self) -> bool:
        return len(self._lines) >= self._max_lines or self._bytes >= self._max_bytes

    def offer(self, line: T, size: int) -> None:
        """`size` is what it takes of the bound on bytes."""
        with self._lock:
            waiting = len(self._lines)
            if self._closing or waiting >= self._max_lines or self._bytes >= self._max_bytes:
                self._count_drop()
                return
            self._lines.append(line)
            self._bytes += size
            if not waiting or self._thread is None:  # else it is awake, or about to be
                self._start()
                self._changed.notify_all()

    def refuse(self) -> None:
        """Count a line that was not worth making."""
        with self._changed:
            self._count_drop()

    def flush(self, timeout: float) -> bool:
        """Wait until everything offered so far was carried away; False when the time was up."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._idle, timeout)
            finally:
                self._flushing -= 1

    def close(self, timeout: float) -> bool:
        """Take no more lines, and wait for the rest; False when the time was up."""
        with self._changed:
            self._closing = True
            if self._lines:
                self._start()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def _count_drop(self) -> None:
        self.dropped += 1
        if not self._closing:
            self._unreported += 1
            self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread to be had now: the lines wait for one within the bound.
            return
        self._thread = thread

    def _idle(self) -> bool:
        return not (self._busy or self._lines or self._unreported)

    def _is_hurried(self) -> bool:
        return self._closing or self._flushing > 0

    def _has_work(self) -> bool:
        return bool(self._lines) or self._unreported > 0 or self._closing

    def _run(self) -> None:
        try:
            while self._carry_once():
                pass
            self._finish()
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _carry_once(self) -> bool:
        with self._changed:
            self._changed.wait_for(self._has_work)
            if self._gather_s:
                self._changed.wait_for(self._is_hurried, self._gather_s)
            lines, self._lines, self._bytes = self._lines, [], 0
            dropped, self._unreported = self._unreported, 0
            if not lines and not dropped:
                return False
            self._busy = True
        try:
            self._carry(lines, dropped)
        except Exception:  # noqa: BLE001 - the thread outlives whatever one batch runs into
            with self._changed:
                self.dropped += len(lines)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        return True
