"""A relay that does nothing: it starts a command and copies its bytes to and fro.

Usage: relay.py blocking|asyncio|uvloop COMMAND...
"""

import asyncio
import os
import select
import subprocess
import sys

_CHUNK = 1 << 16


def blocking(child_in: int, child_out: int) -> None:
    """One poll for both directions, a read and a write for each chunk."""
    to = {0: child_in, child_out: 1}
    poll = select.poll()
    for source in to:
        poll.register(source, select.POLLIN)
    while True:
        for source, _ in poll.poll():
            chunk = os.read(source, _CHUNK)
            if not chunk:
                return
            while chunk:
                chunk = chunk[os.write(to[source], chunk) :]


async def looping(child_in: int, child_out: int) -> None:
    """The same on an event loop: a reader for each direction, a write for each chunk."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def copy(source: int, target: int) -> None:
        chunk = os.read(source, _CHUNK)
        if not chunk:
            over.set()
        while chunk:
            chunk = chunk[os.write(target, chunk) :]

    loop.add_reader(0, copy, 0, child_in)
    loop.add_reader(child_out, copy, child_out, 1)
    await over.wait()
    loop.remove_reader(0)
    loop.remove_reader(child_out)


def main() -> None:
    kind, *command = sys.argv[1:]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("no pipes")
        ends = child.stdin.fileno(), child.stdout.fileno()
        if kind == "blocking":
            blocking(*ends)
        elif kind == "asyncio":
            asyncio.run(looping(*ends))
        else:
            import uvloop  # noqa: PLC0415 - the other kinds do without

            uvloop.run(looping(*ends))
        child.stdin.close()


if __name__ == "__main__":
    main()
