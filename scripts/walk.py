"""Print the way of one plain call through `emceepee_stdio`, and count its functions and modules.

Usage: python scripts/walk.py [--http] [--legacy | --modern] [--counts]

A real proxy in an empty home serves a real backend. A profile hook writes down every entry into a
function of the package. The id of the call shows where its walk begins and ends: `os.read` brings
it from the client, `os.write` takes it back. The walk begins with the callback that reads the
request and ends when the answer is written. Nothing is timed.

An entry is a 'call' event of `sys.setprofile`: a function is called, or a coroutine or generator is
resumed. Each resumption counts. Only the thread of the event loop is walked. Functions that
dataclasses generate have no file and do not count. Comprehensions count before Python 3.12.
"""

import argparse
import dis
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.client import Call, Client  # noqa: E402 - found from any directory

PACKAGE = f"{ROOT / 'emceepee_stdio'}{os.sep}"
SERVERS = ROOT / "tests" / "e2e" / "servers"

_WARM_UP_CALLS = 20  # the first answers also tell the events of the start
_RECORDED_CALLS = 9  # a timer of the proxy may fall into one; the shortest walk has none
_WALK_ID = re.compile(rb'"id": ?"walk-(\d+)"')
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Entry(NamedTuple):
    """One entry into a function; the depth counts the functions of the package around it."""

    module: str
    function: str
    depth: int
    frame: int
    is_coroutine: bool
    is_start: bool


class Recorder:
    """Lives in the proxy: all entries so far, and where among them each walk begins and ends."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.bounds: dict[bytes, list[int]] = {}

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _is_ours(frame):
            self.entries.append(_entry(frame))

    def watched_read(self, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        def watched(fd: int, size: int) -> bytes:
            data = read(fd, size)
            for number in _WALK_ID.findall(data):
                reader = sys._getframe(1)  # noqa: SLF001 - it shows who calls
                self.bounds[number] = [self._entered(reader)]
            return data

        return watched

    def watched_write(self, write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        def watched(fd: int, data: Any) -> int:
            for number in _WALK_ID.findall(data):
                self.bounds.setdefault(number, []).append(len(self.entries))
            return write(fd, data)

        return watched

    def walks(self) -> list[list[Entry]]:
        return [self.entries[bounds[0] : bounds[-1]] for bounds in self.bounds.values()]

    def _entered(self, reader: FrameType) -> int:
        """Which entry began the reading: that of the function which the event loop called."""
        while reader.f_back and _is_ours(reader.f_back):
            reader = reader.f_back
        places = reversed(range(len(self.entries)))
        found = (place for place in places if self.entries[place].frame == id(reader))
        return next(found, len(self.entries))


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _entry(frame: FrameType) -> Entry:
    code, around, depth = frame.f_code, frame.f_back, 0
    while around:
        depth += _is_ours(around)
        around = around.f_back
    resumes = (each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")
    return Entry(
        module=code.co_filename.removeprefix(PACKAGE).removesuffix(".py").replace(os.sep, "."),
        function=code.co_qualname,
        depth=depth,
        frame=id(frame),
        is_coroutine=bool(code.co_flags & _COROUTINE),
        is_start=frame.f_lasti <= next(resumes),
    )


def serve_recorded(record: Path) -> None:
    """Do what `emceepee serve` does, and write down the walks at the end."""
    sys.argv = ["emceepee", "serve"]
    recorder = Recorder()
    os.read = recorder.watched_read(os.read)
    os.write = recorder.watched_write(os.write)
    from emceepee_stdio.__main__ import main  # noqa: PLC0415 - it must find the watched functions

    sys.setprofile(recorder.profile)
    try:
        main()
    finally:
        sys.setprofile(None)
        record.write_text(json.dumps(recorder.walks()), encoding="utf-8")


class PlainCall(Call):
    """A call whose id is not mistaken for another number."""

    def line(self, number: int) -> bytes:
        return super().line(number).replace(b'"id": %d,' % number, b'"id": "walk-%d",' % number)


def make_calls(client: Client) -> None:
    arguments = {"server": "plain", "tool": "echo", "args": {"message": "hi"}}
    made = PlainCall({"name": "execute_tool", "arguments": arguments})
    client.open()
    for _ in range(_WARM_UP_CALLS):
        client.answered(made)
    for _ in range(_RECORDED_CALLS):
        content = client.result(made)["content"]
        if content != [{"type": "text", "text": "hi"}]:
            raise SystemExit(f"walk: this is not the answer to a plain call: {content}")


def shortest_walk(server: Mapping[str, Any]) -> list[Entry]:
    """The walk of a call to a backend that is configured like this."""
    with tempfile.TemporaryDirectory() as home:
        config, record = Path(home, "config.json"), Path(home, "walks.json")
        config.write_text(json.dumps({"mcpServers": {"plain": server}}), encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if "XDG_" not in name}
        environ |= {"HOME": home, "EMCEEPEE_CONFIG": str(config)}
        with Client([sys.executable, __file__, "--serve", str(record)], environ) as client:
            make_calls(client)
        walks = json.loads(record.read_text(encoding="utf-8"))[-_RECORDED_CALLS:]
    if not walks or not all(walks):
        raise SystemExit("walk: the call did not pass os.read and os.write")
    return [Entry(*entry) for entry in min(walks, key=len)]


@contextmanager
def backend(*options: str, http: bool) -> Iterator[Mapping[str, Any]]:
    """How the proxy reaches the backend."""
    if not http:
        yield {"command": sys.executable, "args": [str(SERVERS / "plain.py"), *options]}
        return
    argv = [sys.executable, str(SERVERS / "plain_http.py"), *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        yield {"url": f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"}
        server.stdin.close()


def coroutine_frames(walk: Sequence[Entry]) -> int:
    """How many coroutines took part; where a frame starts twice, its memory was used again."""
    seen: set[int] = set()
    started = 0
    for entry in walk:
        if entry.is_coroutine:
            started += entry.is_start and entry.frame in seen
            seen.add(entry.frame)
    return started + len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", action="store_true", help="a backend behind a URL")
    eras = parser.add_mutually_exclusive_group()
    eras.add_argument("--legacy", action="store_true", help="the handshake era, usual on stdio")
    eras.add_argument("--modern", action="store_true", help="the era without, usual over HTTP")
    parser.add_argument("--counts", action="store_true", help="print only the counts")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve_recorded(given.serve)
        return
    is_modern = given.modern or (given.http and not given.legacy)
    with backend("--era", "modern" if is_modern else "legacy", http=given.http) as server:
        walk = shortest_walk(server)
    if not given.counts:
        least = min(entry.depth for entry in walk)
        print(*(f"{'  ' * (e.depth - least)}{e.module}:{e.function}" for e in walk), sep="\n")
        resumed = sum(entry.is_coroutine for entry in walk)
        print(f"\n{resumed} of these are entries into {coroutine_frames(walk)} coroutine frames")
    print(f"{len(walk)} function calls in {len({entry.module for entry in walk})} modules")


if __name__ == "__main__":
    main()
