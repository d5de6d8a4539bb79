"""Shared by `trace` and `tail-logs`: the log directory, `--since`, patterns, following a file.

Whoever ends such a command, by Ctrl-C or by closing the pipe, ends it quietly and well.
"""

import os
import re
import select
import stat
import sys
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import typer

from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import load_file
from emceepee_stdio.errors import InvalidPattern, ProxyError
from emceepee_stdio.journal import default_directory
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.visible_text import on_one_line

POLL_S = 0.1  # a person takes this for at once
_STDOUT_FD = 1
# The person waits for their own pattern, so it may take a while; it must not hang.
_PATTERN_TIMEOUT_S = 2.0
_MAX_NAMES = 10  # of servers or sessions that there are; enough to see one's mistake

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def log_directory(environ: Mapping[str, str], config: Path | None = None) -> Path:
    """Where the proxies write: as they are configured, if the configuration can be read."""
    try:
        configured = load_file(config, environ=environ).settings.logging.directory
    except ProxyError:
        configured = None
    return Path(configured) if configured else default_directory(environ)


def instant_of(text: str, clock: Clock) -> float:
    """What `--since` says, in seconds since 1970."""
    if ago := _AGO.fullmatch(text.strip()):
        return clock.epoch(clock.now()) - float(ago[1]) * _SECONDS_PER_UNIT[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither a span like 10m, 2h or 1d nor a time like 2026-01-31T12:00.",
            param_hint="--since",
        ) from None


def pattern_of(text: str | None) -> Pattern | None:
    """What `--grep` says."""
    try:
        return None if text is None else Pattern(text, timeout=_PATTERN_TIMEOUT_S)
    except InvalidPattern as error:
        raise typer.BadParameter(error.fact, param_hint="--grep") from None


def not_on_record(what: str, name: str, known: Iterable[str]) -> str:
    """That nothing of this name was found; `what` is a request of a server, for example."""
    *first, last = [on_one_line(one) for one in known][:_MAX_NAMES] or ["none"]
    there = f"{', '.join(first)} and {last}" if first else last
    return f"no {what} {name!r} is on record. Last seen: {there}."


def write_line(text: str, *, flush: bool = True) -> None:
    """Write a line that a program behind the pipe has at once, or when it is flushed."""
    terminal = Terminal()
    try:
        terminal.verbatim(text)
    except UnicodeEncodeError:
        terminal.verbatim(text.encode("ascii", "backslashreplace").decode())
    if flush:
        terminal.flush()


def reader_leaves_within(seconds: float) -> bool:
    """Wait so long; sooner and True when nobody reads the pipe behind stdout any more."""
    if sys.platform == "win32" or not _goes_to_a_pipe():
        threading.Event().wait(seconds)
        return False
    poller = select.poll()
    poller.register(_STDOUT_FD, 0)
    return bool(poller.poll(seconds * 1000))


def _goes_to_a_pipe() -> bool:
    mode = os.fstat(_STDOUT_FD).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def abandon_stdout() -> None:
    """Let what is still buffered go nowhere, so that the end of the process cannot fail on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT_FD)
    os.close(nowhere)
