"""What the record of a request costs, and how soon the last of many are shown."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Section, Table, at_most
from bench.ways import Way
from emceepee_stdio.clock import Clock
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.trace.request import Leg, OpenRequest, current_request
from emceepee_stdio.trace.request_log import RequestLog

_BATCH = 1_000  # requests that are written together, as in a busy moment; the fastest batch counts
_SERVER = Leg.SERVER
_TRACE = [sys.executable, "-m", "emceepee_stdio", "trace", "--no-follow", "--log-dir"]
_VERSION = [sys.executable, "-m", "emceepee_stdio", "--version"]


def recording(_ways: Sequence[Way], *, quick: bool) -> Section:
    cost = _cost_us(batches=50 if quick else 500)
    rows = {"start_ms": _least_ms(_VERSION), **_first_row_ms(10_000 if quick else 100_000)}
    costs = {"record": {"cpu_us": cost}}
    return Section(
        tables=[
            Table(title="The record of a request, made and written", columns=costs),
            Table(title="The first row of `emceepee trace`", columns={"trace": rows}),
        ],
        checks=[at_most("the record of a request", cost, 10, "µs of CPU")],
        data={"record_cpu_us": cost, **rows},
    )


def _cost_us(*, batches: int) -> float:
    """CPU of all threads, from the beginning of a request to its line in the file."""
    with tempfile.TemporaryDirectory() as directory:
        log = _log(directory)
        spent: list[float] = []
        for _ in range(batches):
            begin = time.process_time()
            for number in range(_BATCH):
                _request(log, number)
            log.flush(60)
            spent.append(time.process_time() - begin)
        log.close()
    return min(spent) / _BATCH * 1e6


def _log(directory: str, *, files: int = 5) -> RequestLog:
    clock = Clock()
    file = JournalFile(Path(directory), session="B", clock=clock, files=files, kind="requests")
    return RequestLog(file, session="B", clock=clock)


def _request(log: RequestLog, number: int) -> OpenRequest:
    """As a plain call goes."""
    request = log.begin("tools/call", number, tool="execute_tool", bytes_in=120)
    token = current_request.set(request)
    request.server, request.server_tool = "server", "echo"
    request.at("server")
    request.enter(_SERVER)
    current_request.reset(token)
    request.leave(_SERVER)
    log.answered(request, b"x" * 300, is_error=False)
    return request


def _first_row_ms(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        log = _log(directory, files=20)
        for number in range(count):
            _request(log, number)
            if number % 10_000 == 0:
                log.flush(60)
        log.close()
        shown = _least_ms([*_TRACE, directory])
        none = _least_ms([*_TRACE, directory, "--slow", "1h"])
    return {f"last_of_{count}_ms": shown, f"none_of_{count}_ms": none}


def _least_ms(command: Sequence[str]) -> float:
    """To the first line that it writes, in the fastest of some runs."""
    return min(_once_ms(command) for _ in range(3))


def _once_ms(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError(f"{command} says nothing")
        return (time.perf_counter() - begin) * 1000
