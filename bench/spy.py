"""Where the time of a call goes inside the proxy: a sampling profile under load.

Usage: python -m bench.spy [--in-flight N] [--seconds S] [--py-spy PATH]

Needs py-spy, which is no dependency of the project (`pip install py-spy`).
"""

import argparse
import collections
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.ways import BACKEND, OURS, ready

_LINE = re.compile(r":\d+\)")
_MAIN = "<module> (emceepee_stdio/__main__.py)"
_WRITE = "_LoopWriter._write_some"
_READ = "_LoopReader._readable"


def part_of(frame: str) -> str:
    """What the innermost frame of a sample was doing."""
    if frame.startswith(_WRITE):
        return "writing to a pipe"
    if frame.startswith(_READ):
        return "reading from a pipe"
    if "(asyncio/" in frame or "(selectors.py" in frame:
        return "the event loop: polling and waiting"
    if "(emceepee_stdio/" in frame or "<string>" in frame:
        return "emceepee's own code"
    return "libraries"


def sampled(spy: str, in_flight: int, seconds: int) -> tuple[list[tuple[list[str], int]], int]:
    """The stacks of the main thread with how often each was seen, and how many calls were made."""
    made = OURS.call(bytes=2)
    calls = 0
    with OURS.start({"raw": BACKEND}) as client, tempfile.TemporaryDirectory() as directory:
        client.open()
        ready(client, made)
        client.loaded(made, 2_000, in_flight)
        found = Path(directory) / "stacks"
        options = ["--duration", str(seconds), "--rate", "500", "--format", "raw"]
        command = [spy, "record", "--pid", str(client.process.pid), *options, "-o", str(found)]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as recorder:
            while recorder.poll() is None:
                client.loaded(made, 500, in_flight)
                calls += 500
        stacks: list[tuple[list[str], int]] = []
        for line in found.read_text().splitlines():
            stack, count = line.rsplit(" ", 1)
            frames = [_LINE.sub(")", frame) for frame in stack.split(";")]
            if _MAIN in frames:
                stacks.append((frames, int(count)))
    return stacks, calls


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spy", description=__doc__)
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--py-spy", default=shutil.which("py-spy"))
    given = parser.parse_args()
    if given.py_spy is None:
        parser.error("py-spy is not on PATH: pip install py-spy, or name it with --py-spy")
    stacks, calls = sampled(given.py_spy, given.in_flight, given.seconds)
    parts: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    for frames, count in stacks:
        parts[part_of(frames[-1])] += count
        functions[frames[-1]] += count
    samples = parts.total()
    print(f"{calls:,} calls, {given.in_flight} in flight, {samples:,} samples of the main thread\n")
    for counted, title in ((parts, "by part"), (functions, "by function")):
        print(title)
        for name, count in counted.most_common(15):
            print(f"  {count / samples:6.1%}  {name}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
