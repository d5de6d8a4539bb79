"""Pipes: bytes read and written on file descriptors by the event loop or a thread.

Pipes, sockets and terminals are watched by the event loop, without a thread. What it cannot watch
(files, /dev/null, anything on Windows) gets a thread behind the same interface.
"""

import asyncio
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

import anyio

from emceepee_stdio.wire import system
from emceepee_stdio.wire.framing import TURN_BYTES, turns

# What a pipe holds; a larger buffer is only more to clear away.
_CHUNK_BYTES = 1 << 16
_JOIN_BELOW_BYTES = 1 << 16  # copying less than a pipe holds is cheaper than one more write


class _Turn:
    """While bytes are being taken in, what is written waits, and then goes out at once, together.

    Outside of that the loop is asked to come back for it, which costs it one more round.
    """

    def __init__(self) -> None:
        self.is_open = False
        self.flushes: list[Callable[[], None]] = []

    def take_in(self, on_data: Callable[[bytes], None], data: bytes) -> None:
        self.is_open = True
        try:
            on_data(data)
        finally:
            self.is_open = False
            flushes, self.flushes = self.flushes, []
            for flush in flushes:
                flush()


_turn = _Turn()


class _LoopReader:
    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._readable)
        self._was_blocking = _unblock(fd)
        self._fd: int | None = fd
        self._on_data = on_data
        self._on_end = on_end
        self._paused = False
        self._turns: Iterator[bytes] | None = None  # of what was read, and not yet taken in

    def _readable(self) -> None:
        if self._fd is None:
            return
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_end()
            return
        if len(data) > TURN_BYTES:
            size, pieces = len(data), turns(data)
            data = next(pieces)
            if len(data) < size:
                self._loop.remove_reader(self._fd)
                self._turns = pieces
                self._loop.call_soon(self._go_on)
        _turn.take_in(self._on_data, data)

    def _go_on(self) -> None:
        """One more piece; the descriptor is looked at again when there is none."""
        if self._fd is None or self._paused or self._turns is None:
            return
        piece = next(self._turns, None)
        if piece is None:
            self._turns = None
            self._loop.add_reader(self._fd, self._readable)
            return
        self._loop.call_soon(self._go_on)
        _turn.take_in(self._on_data, piece)

    def pause(self) -> None:
        self._paused = True
        if self._fd is not None:
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if self._fd is None or not self._paused:
            return
        self._paused = False
        if self._turns is None:
            self._loop.add_reader(self._fd, self._readable)
        else:
            self._loop.call_soon(self._go_on)

    def close(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            _hand_back(self._fd, blocking=self._was_blocking)
            self._fd = None


class _Writer:
    """Counts what has left, and what has not."""

    def __init__(
        self, on_broken: Callable[[], None], on_written: Callable[[int], None] | None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_broken = on_broken
        self._on_written = on_written
        self._written = 0
        self._empty = anyio.Event()
        self.pending = 0
        self.broken = False

    async def drained(self) -> None:
        while self.pending and not self.broken:
            if self._empty.is_set():
                self._empty = anyio.Event()
            await self._empty.wait()


class _LoopWriter(_Writer):
    def __init__(
        self, fd: int, on_broken: Callable[[], None], on_written: Callable[[int], None] | None
    ) -> None:
        super().__init__(on_broken, on_written)
        self._loop.add_writer(fd, self._writable)  # refused here for what cannot be watched
        self._loop.remove_writer(fd)
        self._was_blocking = _unblock(fd)
        self._fd: int | None = fd
        self._queue: deque[bytes | memoryview] = deque()
        self._scheduled = False

    def write(self, data: bytes) -> None:
        if self._fd is None or not data:
            return
        self._queue.append(data)
        self.pending += len(data)
        if not self._scheduled:
            self._scheduled = True
            if _turn.is_open:
                _turn.flushes.append(self._flush)
            else:
                self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Close, after a last try: what the other side has room for still goes out."""
        if self._fd is None:
            return
        self._loop.remove_writer(self._fd)
        with suppress(OSError):
            while self._queue:
                self._write_some(self._fd)
        _hand_back(self._fd, blocking=self._was_blocking)
        self._fd = None
        self.broken = True
        self._queue.clear()
        self.pending = 0
        self._empty.set()

    def _flush(self) -> None:
        """Write all that fits; wait for room only when it does not."""
        if self._fd is None:
            return
        try:
            while self._queue:
                self._write_some(self._fd)
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._writable)
        except OSError:
            self.close()
            self._on_broken()
        else:
            self._scheduled = False
            self._empty.set()

    def _writable(self) -> None:
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            self._flush()

    def _write_some(self, fd: int) -> None:
        """Small pieces go out together; a large one goes as it is, without being copied."""
        piece = self._queue[0]
        if len(self._queue) > 1 and len(piece) < _JOIN_BELOW_BYTES:
            piece = b"".join(self._queue)
            self._queue.clear()
            self._queue.append(piece)
        written = os.write(fd, piece)
        self.pending -= written
        self._written += written
        if self._on_written is not None:
            self._on_written(self._written)
        if written == len(piece):
            self._queue.popleft()
        else:
            self._queue[0] = memoryview(piece)[written:]


class _ThreadReader:
    """Reads ahead by one chunk at most."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # a thread has none, and anyio needs it
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._taken = threading.Semaphore(1)
        self._closed = False
        self._paused = False
        self._waiting = False
        threading.Thread(target=self._read, name=f"read-{fd}", daemon=True).start()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._waiting:
            self._waiting = False
            self._taken.release()

    def close(self) -> None:
        # The thread may sit in a read that nothing can interrupt: it closes the descriptor itself.
        self._closed = True
        self._taken.release()

    def _read(self) -> None:
        data = b"-"
        while data and not self._closed:
            self._taken.acquire()
            try:
                data = b"" if self._closed else os.read(self._fd, _CHUNK_BYTES)
            except OSError:
                data = b""
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._deliver, data, context=self._context)
        os.close(self._fd)

    def _deliver(self, data: bytes) -> None:
        if self._closed:
            return
        if data:
            self._on_data(data)
            self._waiting = self._paused
            if not self._paused:
                self._taken.release()
        else:
            self._closed = True
            self._on_end()


class _ThreadWriter(_Writer):
    def __init__(
        self, fd: int, on_broken: Callable[[], None], on_written: Callable[[int], None] | None
    ) -> None:
        super().__init__(on_broken, on_written)
        self._context = contextvars.copy_context()  # a thread has none, and anyio needs it
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"write-{fd}", daemon=True).start()

    def write(self, data: bytes) -> None:
        if not self.broken and data:
            self.pending += len(data)
            self._queue.put(data)

    def close(self) -> None:
        if not self.broken:
            self.broken = True
            self._queue.put(None)

    def _work(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                self._write_all(data)
            except OSError:
                self._tell(self._break)
                break
            self._tell(self._left, len(data))
        os.close(self._fd)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def _tell(self, what: Callable[..., None], *args: int) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(what, *args, context=self._context)

    def _left(self, count: int) -> None:
        self.pending -= count
        self._written += count
        if self._on_written is not None:
            self._on_written(self._written)
        if not self.pending:
            self._empty.set()

    def _break(self) -> None:
        self.pending = 0
        self._empty.set()
        if not self.broken:
            self.broken = True
            self._on_broken()


# Both push what arrives to a callback, and say once when it is over.
PipeReader = _LoopReader | _ThreadReader
# Both take bytes at any time; `pending` of them have not left yet.
PipeWriter = _LoopWriter | _ThreadWriter


def open_reader(
    fd: int, *, on_data: Callable[[bytes], None], on_end: Callable[[], None]
) -> PipeReader:
    """Start reading; the reader owns the descriptor from now on."""
    if system.WATCHES_PIPES:
        with suppress(PermissionError):
            return _LoopReader(fd, on_data, on_end)
    return _ThreadReader(fd, on_data, on_end)


def open_writer(
    fd: int,
    *,
    on_broken: Callable[[], None],
    on_written: Callable[[int], None] | None = None,
) -> PipeWriter:
    """Start writing; the writer owns the descriptor from now on.

    `on_written` hears how many bytes have left in all, each time that some have.
    """
    if system.WATCHES_PIPES:
        with suppress(PermissionError):
            return _LoopWriter(fd, on_broken, on_written)
    return _ThreadWriter(fd, on_broken, on_written)


def _unblock(fd: int) -> bool:
    """Let reads and writes return at once; whether they waited before."""
    return system.set_blocking(fd, blocking=False)


def _hand_back(fd: int, *, blocking: bool) -> None:
    """Close it; whoever shares it finds it as it was before."""
    with suppress(OSError):
        system.set_blocking(fd, blocking=blocking)
    os.close(fd)
