"""Shared by `trace` and `tail-logs`: the log directory, `--since`, patterns, following a file.

Whoever ends such a command, by Ctrl-C or by closing the pipe, ends it quietly and well.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.command_line import option
from emceepee_stdio.cli.terminal import STDOUT_FD, ExitCode, abandon_stdout, terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.load import load_file
from emceepee_stdio.errors import InvalidPattern, ProxyError
from emceepee_stdio.journal import default_directory
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.visible_text import on_one_line
from emceepee_stdio.wire import system

POLL_S = 0.1  # a person takes this for at once
# The person waits for their own pattern, so it may take a while; it must not hang.
_PATTERN_TIMEOUT_S = 2.0
_MAX_NAMES = 10  # of servers or sessions that there are; enough to see one's mistake

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.ASCII)
_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

GrepOption = Annotated[str | None, option("REGEX", about="Only lines in which this is found.")]


def log_directory(environ: Mapping[str, str], config: Path | None = None) -> Path:
    """Where the proxies write: as they are configured, if the configuration can be read."""
    try:
        configured = load_file(config, environ=environ).settings.logging.directory
    except ProxyError:
        configured = None
    return Path(configured) if configured else default_directory(environ)


def seconds_of(text: str) -> float | None:
    """Of a span like 500ms, 10m or 2h."""
    span = _SPAN.fullmatch(text.strip())
    return span and float(span[1]) * _SECONDS_PER_UNIT[span[2]]


def start_of(text: str | None) -> float:
    """What `--since` says, in seconds since 1970."""
    clock = Clock()
    if text is None:
        return -inf
    if (ago := seconds_of(text)) is not None:
        return clock.epoch(clock.now()) - ago
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # OSError: on Windows, before 1970
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


def unknown_name(
    what: str,
    seen: Iterable[tuple[str, str | None]],
    wanted: frozenset[str],
    session: str,
    is_of_session: Callable[[str], bool],
) -> typer.BadParameter | None:
    """Nothing was found: an error where the session, or a wanted server, is not on record at all.

    `seen` are the session and the server of each line or request, the last one first.
    """
    if not (wanted or session):
        return None
    pairs = dict.fromkeys(seen)
    sessions = dict.fromkeys(one for one, _ in pairs)
    servers = dict.fromkeys(server for _, server in pairs if server is not None)
    if sessions and not any(map(is_of_session, sessions)):
        kind, name, known = "session", session, sessions
    elif sessions and (missing := wanted - servers.keys()):
        kind, name, known = "server", min(missing), servers
    else:
        return None
    *first, last = [on_one_line(one) for one in known][:_MAX_NAMES] or ["none"]
    there = f"{', '.join(first)} and {last}" if first else last
    text = f"no {what} of {kind} {name!r} is on record. Last seen: {there}."
    return typer.BadParameter(text, param_hint=f"--{kind}")


def local_time(at: float) -> datetime:
    return datetime.fromtimestamp(at, tz=UTC).astimezone()


@contextmanager
def ending_quietly(directory: Path, cannot: str = "cannot be read") -> Generator[None]:
    """Ctrl-C and a closed pipe end the command without a word, a file that fails with its name."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):
        abandon_stdout()
    except OSError as error:
        why = error.strerror or type(error).__name__
        fact = f"{error.filename or directory} {cannot}: {why}."
        step = "Fix its permissions, or say with --log-dir where the logs are."
        terminal.failure(fact, step, code="system")
        raise typer.Exit(ExitCode.FAILED) from None


def write_line(text: str, *, flush: bool = True) -> None:
    """Write a line that a program behind the pipe has at once, or when it is flushed."""
    try:
        terminal.verbatim(text)
    except UnicodeEncodeError:
        terminal.verbatim(text.encode("ascii", "backslashreplace").decode())
    if flush:
        terminal.flush()


def reader_leaves_within(seconds: float) -> bool:
    """Wait so long; sooner and True when nobody reads the pipe behind stdout any more."""
    return system.reader_leaves_within(seconds, STDOUT_FD)
