import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from emceepee_stdio.wire import pipes
from emceepee_stdio.wire.pipes import PipeReader, PipeWriter, open_reader, open_writer

pytestmark = pytest.mark.posix_only("descriptors of POSIX")


def run(main: Callable[[], Awaitable[Any]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(30):
            await main()
            await until(lambda: not threads())

    anyio.run(bounded, backend="asyncio")


def threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("read-", "write-"))]


class Sink:
    """A reader, what it was given, and an event for each thing that can be waited for."""

    def __init__(self, fd: int) -> None:
        self.chunks: list[bytes] = []
        self.ends = 0
        self.ended = anyio.Event()
        self._more = anyio.Event()
        self.reader: PipeReader = open_reader(fd, on_data=self._on_data, on_end=self._on_end)

    def _on_data(self, data: bytes) -> None:
        self.chunks.append(data)
        self._more.set()

    def _on_end(self) -> None:
        self.ends += 1
        self.ended.set()

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    async def until(self, size: int) -> bytes:
        while len(self.data) < size:
            self._more = anyio.Event()
            await self._more.wait()
        return self.data


class Source:
    """A writer, and how often it broke."""

    def __init__(self, fd: int) -> None:
        self.breaks = 0
        self.broke = anyio.Event()
        self.writer: PipeWriter = open_writer(fd, on_broken=self._on_broken)

    def _on_broken(self) -> None:
        self.breaks += 1
        self.broke.set()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@contextmanager
def descriptors() -> Iterator[None]:
    """Nothing may be left open, and nothing closed that is not ours."""

    def listed() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = listed()
    yield
    assert listed() == before


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """For what only a thread can tell: looks again until it is so."""
    while not condition():
        await asyncio.sleep(0)


def test_bytes_arrive_in_the_order_in_which_they_were_written():
    async def main() -> None:
        read, write = os.pipe()
        sink, source = Sink(read), Source(write)
        data = b"".join(b"%d\n" % number for number in range(20_000))
        for start in range(0, len(data), 7_001):
            source.writer.write(data[start : start + 7_001])
            if start % 3 == 0:
                await asyncio.sleep(0)
        await source.writer.drained()
        source.writer.close()
        await sink.ended.wait()
        assert sink.data == data

    with descriptors():
        run(main)


def test_twenty_megabytes_pass_a_slow_reader():
    async def main() -> None:
        read, write = os.pipe()
        source = Source(write)
        piece = bytes(range(256)) * 4096
        for size in (1, 100, len(piece) - 101):
            source.writer.write(piece[:size])
        for _ in range(19):
            source.writer.write(piece)
        total = 20 * len(piece)
        assert source.writer.pending == total
        got = bytearray()
        os.set_blocking(read, False)
        while len(got) < total:
            with suppress(BlockingIOError):
                got += os.read(read, 50_000)
            assert source.writer.pending <= total
            await asyncio.sleep(0)
        await source.writer.drained()
        assert source.writer.pending == 0
        expected = piece[:1] + piece[:100] + piece[: len(piece) - 101] + piece * 19
        assert bytes(got) == expected
        source.writer.close()
        os.close(read)

    with descriptors():
        run(main)


def test_small_writes_of_one_turn_go_out_together(monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    real = os.write

    def counted(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return real(fd, data)

    async def main() -> None:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = Source(left.detach())
        monkeypatch.setattr(pipes.os, "write", counted)
        for number in range(100):
            source.writer.write(b"%03d" % number)
        assert sizes == []
        await source.writer.drained()
        monkeypatch.undo()
        assert sizes == [300]
        assert right.recv(10_000) == b"".join(b"%03d" % number for number in range(100))
        source.writer.write(b"later")
        await source.writer.drained()
        assert right.recv(10_000) == b"later"
        source.writer.close()
        right.close()

    with descriptors():
        run(main)


def test_a_large_piece_is_not_copied_to_join_it(monkeypatch: pytest.MonkeyPatch):
    written: list[Any] = []
    real = os.write

    def kept(fd: int, data: Any) -> int:
        written.append(data)
        return real(fd, data)

    async def main() -> None:
        read, write = os.pipe()
        sink, source = Sink(read), Source(write)
        large = b"x" * (1 << 20)
        monkeypatch.setattr(pipes.os, "write", kept)
        source.writer.write(large)
        source.writer.write(b"small")
        await sink.until(len(large) + 5)
        monkeypatch.undo()
        assert written[0] is large
        source.writer.close()
        await sink.ended.wait()

    run(main)


def test_everybody_who_waits_for_the_last_byte_is_woken():
    async def main() -> None:
        read, write = os.pipe()
        source = Source(write)
        source.writer.write(b"x" * (1 << 20))
        woken: list[int] = []

        async def wait(number: int) -> None:
            await source.writer.drained()
            assert source.writer.pending == 0
            woken.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(wait, number)
                await settle()
            assert woken == []
            sink = Sink(read)
        assert sorted(woken) == [0, 1, 2, 3, 4]
        await source.writer.drained()
        source.writer.write(b"again")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 5)
            tasks.start_soon(wait, 6)
        source.writer.close()
        await sink.ended.wait()
        assert len(sink.data) == (1 << 20) + 5

    with descriptors():
        run(main)


def test_a_broken_pipe_is_reported_once_and_later_writes_are_nothing():
    async def main() -> None:
        read, write = os.pipe()
        source = Source(write)
        os.close(read)
        source.writer.write(b"x")
        source.writer.write(b"y")
        await source.broke.wait()
        assert source.writer.broken
        assert source.writer.pending == 0
        source.writer.write(b"z")
        await source.writer.drained()
        source.writer.close()
        await settle()
        assert (source.breaks, source.writer.pending) == (1, 0)

    with descriptors():
        run(main)


def test_a_pipe_that_breaks_while_it_is_full_wakes_who_waits():
    async def main() -> None:
        read, write = os.pipe()
        source = Source(write)
        source.writer.write(b"x" * (1 << 20))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.writer.drained)
            tasks.start_soon(source.writer.drained)
            await settle()
            assert source.writer.pending > 0
            os.close(read)
        assert (source.breaks, source.writer.pending, source.writer.broken) == (1, 0, True)

    with descriptors():
        run(main)


def test_closing_a_full_pipe_wakes_who_waits_and_breaks_nothing():
    async def main() -> None:
        read, write = os.pipe()
        source = Source(write)
        source.writer.write(b"x" * (1 << 20))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.writer.drained)
            await settle()
            source.writer.close()
        assert (source.breaks, source.writer.pending) == (0, 0)
        os.close(read)

    with descriptors():
        run(main)


def test_closing_gives_away_what_there_is_room_for():
    async def main() -> None:
        read, write = os.pipe()
        sink, source = Sink(read), Source(write)
        source.writer.write(b"last ")
        source.writer.write(b"words")
        source.writer.close()
        source.writer.close()
        source.writer.write(b"nothing")
        await sink.ended.wait()
        assert sink.data == b"last words"
        assert source.breaks == 0

    with descriptors():
        run(main)


def test_an_empty_write_is_nothing():
    async def main() -> None:
        read, write = os.pipe()
        source = Source(write)
        source.writer.write(b"")
        await source.writer.drained()
        assert source.writer.pending == 0
        source.writer.close()
        os.close(read)

    run(main)


def test_the_end_of_input_is_told_once_and_closes_the_descriptor():
    async def main() -> None:
        read, write = os.pipe()
        sink = Sink(read)
        os.write(write, b"all")
        os.close(write)
        await sink.ended.wait()
        await settle()
        sink.reader.close()
        sink.reader.close()
        assert (sink.data, sink.ends) == (b"all", 1)
        assert not is_open(read)

    with descriptors():
        run(main)


def test_a_reader_that_is_closed_calls_nobody():
    async def main() -> None:
        read, write = os.pipe()
        sink = Sink(read)
        os.write(write, b"unheard")
        sink.reader.close()
        sink.reader.close()
        await settle()
        assert (sink.chunks, sink.ends) == ([], 0)
        assert not is_open(read)
        os.close(write)

    with descriptors():
        run(main)


def test_a_reader_may_be_closed_from_its_own_callback():
    async def main() -> None:
        read, write = os.pipe()
        received: list[bytes] = []

        def on_data(data: bytes) -> None:
            received.append(data)
            reader.close()

        reader = open_reader(read, on_data=on_data, on_end=lambda: received.append(b"end"))
        os.write(write, b"one")
        await until(lambda: bool(received))
        await settle()
        assert received == [b"one"]
        os.close(write)

    with descriptors():
        run(main)


def test_whoever_shares_a_descriptor_finds_it_as_it_was():
    async def main() -> None:
        for blocking in (True, False):
            read, write = os.pipe()
            shared = os.dup(read), os.dup(write)
            for fd in (read, write):
                os.set_blocking(fd, blocking)
            sink, source = Sink(read), Source(write)
            assert not os.get_blocking(shared[0])
            assert not os.get_blocking(shared[1])
            sink.reader.close()
            source.writer.close()
            assert [os.get_blocking(fd) for fd in shared] == [blocking, blocking]
            for fd in shared:
                os.close(fd)

    with descriptors():
        run(main)


# What the loop cannot watch


def test_a_regular_file_is_written_and_read_by_a_thread(tmp_path: Path):
    data = os.urandom(3 << 20)

    async def main() -> None:
        target = tmp_path / "data"
        source = Source(os.open(target, os.O_WRONLY | os.O_CREAT))
        for start in range(0, len(data), 100_000):
            source.writer.write(data[start : start + 100_000])
        assert source.writer.pending == len(data)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(source.writer.drained)
        assert source.writer.pending == 0
        source.writer.close()
        source.writer.close()
        source.writer.write(b"too late")
        assert target.read_bytes() == data
        sink = Sink(os.open(target, os.O_RDONLY))
        await sink.ended.wait()
        assert (sink.data, sink.ends) == (data, 1)
        sink.reader.close()
        assert (source.breaks, sink.ends) == (0, 1)

    run(main)


def test_the_null_device_takes_everything_and_gives_nothing():
    async def main() -> None:
        source = Source(os.open(os.devnull, os.O_WRONLY))
        source.writer.write(b"x" * 100_000)
        await source.writer.drained()
        assert (source.writer.pending, source.writer.broken) == (0, False)
        source.writer.close()
        assert source.writer.broken
        sink = Sink(os.open(os.devnull, os.O_RDONLY))
        await sink.ended.wait()
        await settle()
        assert (sink.data, sink.ends) == (b"", 1)

    run(main)


def test_threads_close_their_descriptors(tmp_path: Path):
    async def main() -> None:
        target = tmp_path / "data"
        write = os.open(target, os.O_WRONLY | os.O_CREAT)
        source = Source(write)
        source.writer.write(b"x" * 1000)
        source.writer.close()
        await until(lambda: not is_open(write))
        assert target.read_bytes() == b"x" * 1000
        read = os.open(target, os.O_RDONLY)
        sink = Sink(read)
        sink.reader.close()
        await until(lambda: not is_open(read))
        await settle()
        assert sink.ends == 0

    run(main)


def test_a_file_that_cannot_be_written_breaks_once_and_wakes_who_waits():
    async def main() -> None:
        source = Source(os.open("/dev/full", os.O_WRONLY))
        source.writer.write(b"x" * 10)
        source.writer.write(b"y" * 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.writer.drained)
            tasks.start_soon(source.writer.drained)
        await source.broke.wait()
        source.writer.write(b"z")
        await settle()
        assert (source.breaks, source.writer.pending, source.writer.broken) == (1, 0, True)
        source.writer.close()

    if Path("/dev/full").exists():
        run(main)
    else:
        pytest.skip("needs /dev/full")


def test_who_waits_is_woken_although_the_writer_is_closed_and_the_file_refuses():
    async def main() -> None:
        source = Source(os.open("/dev/full", os.O_WRONLY))
        source.writer.write(b"x" * 10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.writer.drained)
            await anyio.lowlevel.checkpoint()
            source.writer.close()
        await until(lambda: source.writer.pending == 0)
        assert source.breaks in (0, 1)

    if Path("/dev/full").exists():
        run(main)
    else:
        pytest.skip("needs /dev/full")


def test_a_thread_reads_one_chunk_ahead_at_most(tmp_path: Path):
    async def main() -> None:
        target = tmp_path / "data"
        target.write_bytes(b"x" * (pipes._CHUNK_BYTES * 5))
        seen: list[int] = []
        done = anyio.Event()
        open_reader(
            os.open(target, os.O_RDONLY),
            on_data=lambda data: seen.append(len(data)),
            on_end=done.set,
        )
        await done.wait()
        assert seen == [pipes._CHUNK_BYTES] * 5

    run(main)


def test_others_have_their_turn_while_many_short_lines_are_taken_in() -> None:
    async def main() -> None:
        read_end, write_end = os.pipe()
        os.write(write_end, b"\n" * 65_536)
        os.close(write_end)
        sink = Sink(read_end)
        sizes = [0]
        while not sink.ended.is_set():
            await anyio.lowlevel.checkpoint()
            sizes.append(len(sink.data))
        assert sink.data == b"\n" * 65_536
        assert max(after - before for before, after in pairwise(sizes)) <= 4_096

    run(main)


def test_a_reader_that_is_paused_amid_many_lines_takes_no_more_and_loses_none() -> None:
    async def main() -> None:
        read_end, write_end = os.pipe()
        os.write(write_end, b"\n" * 65_536)
        os.close(write_end)
        sink = Sink(read_end)
        await sink.until(1)
        sink.reader.pause()
        had = len(sink.data)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert len(sink.data) == had < 65_536
        sink.reader.resume()
        await sink.ended.wait()
        assert sink.data == b"\n" * 65_536

    run(main)
