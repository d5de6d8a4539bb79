"""The front on stdio: reads stdin and writes stdout until the client leaves or a signal comes.

End of input, a closed stdout and a first signal all lead to the same orderly end; the same signal
once more ends at once.
"""

import faulthandler
import os
import signal

import anyio
from anyio.abc import TaskGroup

from emceepee_stdio.front.front import Front
from emceepee_stdio.front.hello import Handover
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.front.shutdown_signals import heed_signals
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.pipes import PipeReader, PipeWriter, open_reader, open_writer
from emceepee_stdio.wire.process import StopTimes

_STDERR_FD = 2  # also where Python found no stderr: something stands in its place
_MAX_UNREAD_BYTES = 16 << 20  # two of the longest lines: a client that leaves more does not read


class _Wire:
    """The open descriptors, from both ends to the front and back."""

    def __init__(self, runtime: Runtime, protocol: Protocol, tasks: TaskGroup) -> None:
        self.over = anyio.Event()
        self.reason = ""  # the first one for which it is over
        self.signalled = False
        self._queued = 0
        self.front = Front(
            runtime, protocol, tasks=tasks, write=self._write, queued=lambda: self._queued
        )
        self._reader: PipeReader | None = None
        self._writer: PipeWriter | None = None
        self._paused = False
        self._finishing = anyio.CancelScope()

    def open(self, wire_in: int, wire_out: int, unread: bytes, *, ended: bool) -> None:
        self._writer = open_writer(wire_out, on_broken=self._broken, on_written=self._written)
        self.front.peer.feed(unread)
        if ended:
            self._hung_up()
            os.close(wire_in)
        else:
            self._reader = open_reader(wire_in, on_data=self.front.peer.feed, on_end=self._hung_up)

    def stop_reading(self) -> None:
        """What comes from now on is for nobody."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def close(self) -> None:
        self.stop_reading()
        if self._writer is not None:
            self._writer.close()

    def on_signal(self, number: int) -> None:
        """We are told to end: nobody is waited for any more."""
        self.signalled = True
        self._finishing.cancel()
        self._end(f"a signal: {signal.Signals(number).name}")

    async def let_finish(self, within: float) -> None:
        """A client that only closed its end still reads: what is nearly done may be answered."""
        with self._finishing, anyio.move_on_after(within):
            await self.front.calls.idle()
            if self._writer is not None:
                await self._writer.drained()

    def _hung_up(self) -> None:
        """Its last line may have come without a newline."""
        self.front.peer.end()
        self._end("the client closed its end")

    def _broken(self) -> None:
        self._end("the client no longer reads")

    def _end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.over.set()

    def _write(self, data: bytes) -> None:
        """Write, and stop reading from a client that does not read."""
        if self._writer is None:
            return
        self._queued += len(data)
        self._writer.write(data)
        if self._writer.pending > _MAX_UNREAD_BYTES and self._reader and not self._paused:
            self._paused = True
            self._reader.pause()

    def _written(self, total: int) -> None:
        self.front.calls.written(total)
        if self._paused and self._writer and self._writer.pending < _MAX_UNREAD_BYTES:
            self._paused = False
            if self._reader is not None:
                self._reader.resume()


async def serve(runtime: Runtime, handover: Handover, wire_in: int, wire_out: int) -> None:
    """Serve this client to the end; nothing of the servers is left when it returns."""
    fixed = runtime.settings.fixed
    stop = StopTimes(term=fixed.eof_term_s, kill=fixed.eof_kill_s)
    async with anyio.create_task_group() as tasks:
        await tasks.start(runtime.run)
        wire = _Wire(runtime, handover.protocol, tasks)
        tasks.start_soon(heed_signals, wire.on_signal)
        if handover.stays and not handover.ended:
            wire.front.start()
        wire.open(wire_in, wire_out, handover.unread, ended=handover.ended)
        await wire.over.wait()
        # Threads and files may hang in ways that nobody foresaw: this needs neither loop nor lock.
        faulthandler.dump_traceback_later(fixed.last_resort_s, exit=True, file=_STDERR_FD)
        wire.stop_reading()
        await wire.let_finish(stop.term)
        if wire.signalled:
            stop = StopTimes(term=0.0, kill=fixed.signal_kill_s)
        await runtime.stop(stop, reason=wire.reason)
        wire.close()
        tasks.cancel_scope.cancel()
