"""Ctrl-C from the first to the last: what it ends, what it leaves alone, and when it is final."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import itertools, signal, sys, time
import anyio
from emceepee_stdio.cli.terminal import Interrupts
from emceepee_stdio.clock import Clock

step, where, work_seconds = float(sys.argv[1]), sys.argv[2], float(sys.argv[3])
clock = Clock(monotonic=itertools.count(0.0, step).__next__)
interrupts = Interrupts(clock)
interrupts.listen()

def clear_away():
    print("clearing away", flush=True)
    time.sleep(0.5)
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    print("cleared away", flush=True)

async def serve():
    try:
        print("begun", flush=True)
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep(work_seconds)
    finally:
        clear_away()

def work():
    try:
        print("begun", flush=True)
        signal.raise_signal(signal.SIGINT)
        time.sleep(work_seconds)
    finally:
        clear_away()

try:
    interrupts.run(serve) if where == "loop" else work()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

places = pytest.mark.parametrize("where", ["loop", "straight"])


def run(step: float, where: str, *, deaf: bool = False) -> "subprocess.CompletedProcess[str]":
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(step), where, "0.2" if deaf else "60"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=50,
        check=False,
        preexec_fn=ignore if deaf else None,
    )


@places
def test_those_right_behind_the_first_disturb_nothing(where: str):
    done = run(0.1, where)
    said = ["begun", "clearing away", "cleared away", "interrupted"]
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (0, said)


@places
def test_a_late_one_is_final(where: str):
    done = run(10, where)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "begun\nclearing away\n")


@places
def test_what_was_started_deaf_to_it_stays_so(where: str):
    done = run(0.1, where, deaf=True)
    assert (done.returncode, done.stdout) == (0, "begun\nclearing away\ncleared away\n")


def python(script: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_a_failure_on_the_loop_is_not_wrapped():
    script = (
        "from emceepee_stdio.cli.terminal import interrupts\n"
        "async def fail(): raise LookupError('as it is')\n"
        "interrupts.run(fail)\n"
    )
    done = python(script)
    assert done.stderr.endswith("\nLookupError: as it is\n")
    assert "ExceptionGroup" not in done.stderr


def test_a_failure_of_clearing_away_does_not_hide_that_it_was_interrupted():
    script = (
        "import signal, anyio\n"
        "from emceepee_stdio.cli.terminal import interrupts\n"
        "interrupts.listen()\n"
        "async def serve():\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    try:\n"
        "        await anyio.sleep(60)\n"
        "    finally:\n"
        "        raise OSError('while clearing away')\n"
        "try:\n"
        "    interrupts.run(serve)\n"
        "except KeyboardInterrupt as interrupted:\n"
        "    print(repr(interrupted.__cause__))\n"
    )
    done = python(script)
    assert (done.returncode, done.stdout) == (0, "OSError('while clearing away')\n")


def test_after_the_loop_it_interrupts_at_once_again():
    script = (
        "import signal, anyio.lowlevel\n"
        "from emceepee_stdio.cli.terminal import interrupts\n"
        "interrupts.listen()\n"
        "interrupts.run(anyio.lowlevel.checkpoint)\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = python(script)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")


def test_a_loop_that_sleeps_through_the_signal_is_woken():
    # Another thread receives it: the sleep of the loop is not cut short, as when the signal comes
    # just before that.
    script = (
        "import os, signal, threading, time, anyio\n"
        "from emceepee_stdio.cli.terminal import interrupts\n"
        "interrupts.listen()\n"
        "def press():\n"
        "    time.sleep(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "async def serve():\n"
        "    threading.Thread(target=press).start()\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "    await anyio.sleep(20)\n"
        "    print('slept')\n"
        "try:\n"
        "    interrupts.run(serve)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    done = python(script)
    assert (done.returncode, done.stdout) == (0, "interrupted\n")
