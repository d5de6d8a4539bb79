"""The terminal: all output for people; results on stdout, everything else on stderr.

Nothing else in the package writes to either while a command runs. Colour, boxes and spinners are
for a terminal only; what goes into a pipe is plain, and looks the same tomorrow.
"""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from getpass import getpass
from itertools import takewhile
from types import FrameType
from typing import TYPE_CHECKING, ClassVar, TextIO, TypeVar, cast

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import SecretUnavailable
from emceepee_stdio.visible_text import harmless, harmless_json
from emceepee_stdio.wire import system

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.table import Table
    from rich.text import Text


# They do not change: docs/reference/cli.md names them.
class ExitCode(IntEnum):
    """What a command says to a script."""

    FAILED = 1
    USAGE = 2  # a mistake in the command line; mostly it is typer that gives it
    CREDENTIALS_REFUSED = 3  # a server wants other credentials
    SERVER_FAILED = 4


STDOUT_FD = 1


def abandon_stdout() -> None:
    """What is still buffered goes nowhere, so that the end of the process cannot fail on it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT_FD)
    os.close(nowhere)


# How long something took, as people say it.


_SECOND_MS, _MINUTE_MS, _HOUR_MS = 1_000, 60_000, 3_600_000


def duration_text(ms: float) -> str:
    """Three digits and a unit, as people say it."""
    if ms < _SECOND_MS:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"  # noqa: PLR2004 - two digits at least
    if ms < _MINUTE_MS:
        return f"{ms / _SECOND_MS:.2f} s" if ms < 10 * _SECOND_MS else f"{ms / _SECOND_MS:.1f} s"
    if ms < _HOUR_MS:
        return f"{ms // _MINUTE_MS:.0f} min {ms % _MINUTE_MS // _SECOND_MS:.0f} s"
    return f"{ms // _HOUR_MS:.0f} h {ms % _HOUR_MS // _MINUTE_MS:.0f} min"


# Ctrl-C: the first ends a command and lets it clear away, those right behind it change nothing.
#
# People press it twice, or hold it down. A second one in the middle of clearing away would leave a
# traceback, a hidden cursor or a process behind.


T = TypeVar("T")

_MAX_CLEANUP_S = 5.0  # longer than cleaning up should take; a later Ctrl-C ends the process at once


class Interrupts:
    """What Ctrl-C does while a command runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: float | None = None
        self._on_loop = False

    def listen(self) -> None:
        """From now on; a process that was started to ignore Ctrl-C still does."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run it on the event loop, where Ctrl-C cancels it instead of tearing it apart."""
        import anyio  # noqa: PLC0415 - only for commands that talk to servers or to the person

        self._on_loop = True
        try:
            return anyio.run(self._watched, main)
        finally:
            self._on_loop = False

    async def _watched(self, main: Callable[[], Awaitable[T]]) -> T:
        import anyio  # noqa: PLC0415 - see the caller

        failure: Exception | None = None
        results: list[T] = []
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch, watching.cancel_scope.cancel)
            try:
                results.append(await main())
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            finally:
                watching.cancel_scope.cancel()
        if results:
            return results[0]
        if failure is None or self._first is not None:
            raise KeyboardInterrupt from failure
        raise failure

    async def _watch(self, cancel: Callable[[], None]) -> None:
        """Woken by a socket: a loop just falling asleep would not notice the handler alone."""
        import socket  # noqa: PLC0415 - see the caller

        import anyio  # noqa: PLC0415 - see the caller

        woken, waker = socket.socketpair()
        with woken, waker:
            waker.settimeout(0)
            before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            try:
                while self._first is None:
                    await anyio.wait_readable(woken)
                    woken.recv(64)  # other signals write to it as well
            finally:
                signal.set_wakeup_fd(before)
        cancel()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = self._clock.now()
        if self._first is None:
            self._first = now
            if not self._on_loop:
                raise KeyboardInterrupt
        elif now - self._first > _MAX_CLEANUP_S:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)


interrupts = Interrupts(Clock())


PERSON_S = 86_400.0  # of a request in which a person may be asked; they take their time
COMMAND_INDENT = "  "  # of a line of a remedy that is a command, to be copied whole


def with_command(sentence: str, command: str, then: str = "") -> str:
    """A remedy with its command on a line of its own, where a person can copy it whole."""
    commands = [f"{COMMAND_INDENT}{line}" for line in command.split("\n")]
    return "\n".join([f"{sentence}:", *commands, *([then] if then else ())])


JSON_VERSION = 1  # of what --json prints: it grows when a reader has to change

_MARK = "x"  # stands where text goes between two codes
# What is in backticks is one word, and so is a command of ours with which a line ends.
_WORD = re.compile(r"\s*(?:`[^`]*`\S*|(?<=: )emceepee (?!.*[.;,] ).*|\S+)")
_PLAIN_WORD = re.compile(r"\s*\S+")
_USUAL_COLUMNS = 80  # of a terminal that does not tell
_DIFF_STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}
_TABLE_GAP = 3  # columns between two cells
_TABLE_EDGES = 2  # columns left and right of a table
_MIN_CELL = 10  # less than this tells nothing: the other cells are broken instead


def asks_for_json() -> bool:
    """Whether the person typed --json, also where the rest of the command line is wrong."""
    return "--json" in takewhile(lambda word: word != "--", sys.argv[1:])


def versioned(line: str) -> str:
    """A JSON object on one line, with the version of its shape."""
    return f'{{"schema_version":{JSON_VERSION},{line.lstrip()[1:]}'


class Terminal:
    """The two streams of a command."""

    # One of each, whoever writes: a program reads one document, a terminal has one spinner.
    _has_answered: ClassVar[bool] = False
    _status: ClassVar["Status | None"] = None

    @property
    def columns(self) -> int | None:
        """How wide the result may be; None in a pipe, where nothing is cut."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def line(self, text: str = "", *, style: str = "") -> None:
        """One line of the result, as sentences are written; a style is for a terminal only."""
        self.verbatim(_prose(text, sys.stdout), style=style)

    def verbatim(self, text: str, *, style: str = "") -> None:
        """What is no sentence, such as JSON, a log or a command: only the terminal breaks it."""
        if style and sys.stdout.isatty():
            self.spans([(text, style)])
        else:
            sys.stdout.write(f"{text}\n")

    def spans(self, spans: Sequence[tuple[str, str]]) -> None:
        """One line of the result in parts, each with its style; only for a terminal."""
        _console(sys.stdout).print(_text(spans), soft_wrap=True)

    @contextmanager
    def live(self) -> Generator[Callable[[Sequence[Sequence[tuple[str, str]]]], None]]:
        """Lines that are drawn again and again in the same place; only for a terminal."""
        from rich.live import Live  # noqa: PLC0415 - costs start-up, only for a terminal
        from rich.text import Text  # noqa: PLC0415 - see above

        console = _console(sys.stdout)
        with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:

            def draw(lines: Sequence[Sequence[tuple[str, str]]]) -> None:
                text = Text("\n", no_wrap=True, overflow="crop").join(map(_text, lines))
                live.update(text, refresh=True)

            yield draw

    @property
    def is_utf8(self) -> bool:
        return sys.stdout.encoding.lower().replace("-", "") == "utf8"

    def flush(self) -> None:
        """Let whoever reads the result have it now."""
        sys.stdout.flush()

    def codes(self, style: str) -> tuple[str, str]:
        """What switches a style on and off at this terminal; nothing where there are no colours."""
        if not sys.stdout.isatty():
            return "", ""
        console = _console(sys.stdout)
        if console.no_color or console.color_system is None:
            return "", ""
        with console.capture() as captured:
            console.print(_text([(_MARK, style)]), end="")
        before, _, after = captured.get().partition(_MARK)
        return before, after

    def data(self, value: object) -> None:
        """A result for programs: JSON, indented."""
        self.verbatim(harmless_json(json.dumps(value, indent=2, ensure_ascii=False)))

    def document(self, value: Mapping[str, object]) -> None:
        """The answer to --json: one object, with the version of its shape."""
        Terminal._has_answered = True
        # First, and ours: a server's result may have a field of this name.
        self.data({"schema_version": None, **value} | {"schema_version": JSON_VERSION})

    def failure(self, message: str, next_step: str, *, code: str, text: str = "") -> None:
        """Why there is no result; `text` says it to people, where that differs."""
        if asks_for_json() and not Terminal._has_answered:
            error = {"code": code, "message": message, "next_step": next_step}
            self.document({"error": error})
            return
        for line in [text] if text else filter(None, (f"emceepee: {message}", next_step)):
            self.note(line)

    def said(self, text: str) -> None:
        """What somebody else worded: to the letter in a pipe, harmless on a terminal."""
        self.verbatim(harmless(text) if sys.stdout.isatty() else text)

    def raw(self, data: bytes) -> None:
        """The bytes of somebody else, as they are; only for a pipe."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def note(self, text: str) -> None:
        """A word beside the result: a warning, an error, a sign of life."""
        self._settle()
        sys.stderr.write(f"{_prose(harmless(text), sys.stderr)}\n")

    def ask(self, question: str) -> None:
        """A question to the person, who answers on the same line."""
        self._settle()
        sys.stderr.write(f"{_prose(harmless(question), sys.stderr)} ")
        sys.stderr.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        styles: Mapping[str, str] | None = None,
        one_line: bool = False,
    ) -> None:
        """Rows under headings; in a pipe one line for each, its cells parted by tabs.

        `styles` colours those cells that are one of its words. With `one_line`, a row is one line
        at a terminal too, and its last cell is cut.
        """
        rows = [[harmless(cell) for cell in row] for row in rows]
        if not sys.stdout.isatty():
            self._tabbed([columns, *rows])
            return
        console = _console(sys.stdout)
        table = _table(columns, [None] * len(columns))
        if one_line:
            last = table.columns[-1]
            last.overflow, last.no_wrap = "ellipsis", True
            last.max_width = _room_of_last([columns, *rows], console.width)
        for row in rows:
            table.add_row(*(_text([(cell, (styles or {}).get(cell, ""))]) for cell in row))
        console.print(table)

    def _tabbed(self, rows: Iterable[Sequence[str]]) -> None:
        for row in rows:
            self.line("\t".join(" ".join(cell.split()) for cell in row))

    def growing_table(
        self, columns: Sequence[str], widths: Sequence[int], *, styles: Mapping[str, str]
    ) -> Callable[[Sequence[str]], None]:
        """A table whose rows are shown as they come; `widths` are of all columns but the last."""
        heads = [columns]

        def add(row: Sequence[str]) -> None:
            rows = [*heads, [harmless(cell) for cell in row]]
            if not sys.stdout.isatty():
                self._tabbed(rows)
                self.flush()
            else:
                table = _table(columns, [*widths, None])
                table.show_edge, table.show_header = False, bool(heads)
                table.add_row(*(_text([(cell, styles.get(cell, ""))]) for cell in rows[-1]))
                with self._paused():
                    _console(sys.stdout).print(table)
            heads.clear()

        return add

    def rule(self, title: str = "") -> None:
        """A line across the terminal, with a title for what follows; in a pipe only the title."""
        if not sys.stdout.isatty():
            if title:
                self.line(harmless(title))
            return
        from rich.rule import Rule  # noqa: PLC0415 - costs start-up, only for a terminal

        _console(sys.stdout).print(Rule(_text([(harmless(title), "")]), align="left"))

    def paragraph(self, text: str) -> None:
        """A line under a title, broken between words; in a pipe it is indented and stays whole.

        What is in backticks is not broken. A line that is indented is somebody else's, and folded.
        """
        if not sys.stdout.isatty():
            self.line(f"  {harmless(text)}".rstrip())
        elif text.startswith(" "):
            _console(sys.stdout).print(_text([(harmless(text), "")]), overflow="fold")
        else:
            self.line(harmless(text))

    def command(self, text: str) -> None:
        """A command for the person to copy: on a line of its own, which only the terminal breaks.

        In a pipe it is indented; on a terminal it is not, so that it can be marked as a whole.
        """
        if sys.stdout.isatty():
            self.verbatim(harmless(text), style="bold")
        else:
            self.line(f"    {harmless(text)}".rstrip())

    def diff(self, text: str) -> None:
        """A unified diff: to the letter in a pipe, harmless and coloured on a terminal."""
        if not sys.stdout.isatty():
            sys.stdout.write(text)
            return
        for line in harmless(text).removesuffix("\n").split("\n"):
            style = next((s for mark, s in _DIFF_STYLES.items() if line.startswith(mark)), "")
            self.spans([(line, style)])

    def _settle(self) -> None:
        """A spinner would write over it."""
        if self._status is not None:
            self._status.stop()

    @contextmanager
    def _paused(self) -> Generator[None]:
        """Without the spinner, which goes on afterwards."""
        self._settle()
        yield
        if self._status is not None:
            self._status.start()

    @contextmanager
    def waiting(self, text: str) -> Generator[None]:
        """A spinner while something takes its time; in a pipe, silence."""
        if not sys.stderr.isatty():
            yield
            return
        with _console(sys.stderr).status(harmless(text)) as status:
            Terminal._status = status
            try:
                yield
            finally:
                Terminal._status = None


terminal = Terminal()


def _room_of_last(rows: Sequence[Sequence[str]], columns: int) -> int:
    """How wide the last cells may be beside the others, whose lines are not to be broken."""
    from rich.cells import cell_len  # noqa: PLC0415 - costs start-up, only for a terminal

    others = [max(map(cell_len, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    return max(columns - sum(others) - _TABLE_GAP * len(others) - _TABLE_EDGES, _MIN_CELL)


def _table(columns: Sequence[str], widths: Sequence[int | None]) -> "Table":
    from rich import box  # noqa: PLC0415 - costs start-up, only for a terminal
    from rich.table import Table  # noqa: PLC0415 - see above

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column, width=width, overflow="fold")
    return table


def _prose(text: str, stream: TextIO) -> str:
    """The text with its lines broken between words, at a terminal; those indented are left."""
    if not stream.isatty():
        return text
    width = _columns(stream)
    return "\n".join(
        line if line.startswith(" ") or len(line) <= width else _broken(line, width)
        for line in text.split("\n")
    )


def _columns(stream: TextIO) -> int:
    """How wide the terminal behind it is; the result may go into a pipe, and the notes not."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS


def _broken(text: str, width: int) -> str:
    """The lines of a paragraph; a word that is longer than a line stays whole."""
    lines: list[str] = []
    for word in _words(text, width):
        if lines and len(lines[-1]) + len(word) <= width:
            lines[-1] += word
        else:
            lines.append(word.lstrip())
    return "\n".join(lines)


def _words(text: str, width: int) -> Iterator[str]:
    """What stays together, each with the space before it; a command that fits no line does not."""
    for word in cast("list[str]", _WORD.findall(text)):
        yield from [word] if len(word.lstrip()) <= width else _PLAIN_WORD.findall(word)


def _text(spans: Sequence[tuple[str, str]]) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - costs start-up, only for a terminal

    return Text.assemble(*spans)


def _console(stream: TextIO) -> "Console":
    """A console: rich reads NO_COLOR, TERM and the width by itself."""
    from rich.console import Console  # noqa: PLC0415 - costs start-up, only for a terminal

    return Console(file=stream, highlight=False, markup=False, emoji=False)


# Questions to the person at the terminal.
#
# A line is read through the event loop, which a Ctrl-C always wakes: `input` misses one that comes
# after its last look at the signals and before it begins to read.


def is_person_there() -> bool:
    """Whether a person can see a question, on stderr, and answer it, on stdin."""
    return all(map(os.isatty, (0, 2)))


def confirm(question: str, *, usual: bool) -> bool | None:
    """The same as `ask_whether`, for a command that has no event loop."""
    return interrupts.run(partial(ask_whether, question, usual=usual))


async def ask_whether(question: str, *, usual: bool) -> bool | None:
    """Yes or no; `usual` for an empty line, None when the person closes the input."""
    while True:
        text = await ask(f"{question} [{'Y/n' if usual else 'y/N'}]:")
        if text is None:
            return None
        if not text:
            return usual
        if text.lower() in {"y", "yes", "n", "no"}:
            return text.lower().startswith("y")


async def ask(question: str) -> str | None:
    """What the person types; None when they close the input."""
    import anyio  # noqa: PLC0415 - most commands that load this ask nothing
    import anyio.to_thread  # noqa: PLC0415

    terminal.ask(question)
    if not (system.WATCHES_PIPES and sys.stdin.isatty()):
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    else:
        # A terminal has a whole line or none: no thread is left waiting when the command is ended.
        await anyio.wait_readable(sys.stdin)
        line = sys.stdin.readline()
    if not line:
        terminal.note("")  # ends the line of the question, as an answer would have
        return None
    return line.strip()


# Secrets from the person: at a hidden prompt, or on stdin; never from the command line.


def read_secrets(names: Sequence[str]) -> list[str]:
    """One for each name: typed twice, or on stdin, where several stand one on each line."""
    if sys.stdin.isatty():
        values = [_typed_secret(name) for name in names]
    elif len(names) == 1:
        values = [sys.stdin.read().removesuffix("\n").removesuffix("\r")]
    else:
        values = sys.stdin.read().splitlines()
    if len(values) != len(names):
        raise SecretUnavailable(
            f"{len(values)} values came for {', '.join(names)}.",
            hint="Send them on stdin, one on each line and nothing else.",
        )
    for name, value in zip(names, values, strict=True):
        if not value or "\0" in value:
            raise SecretUnavailable(
                f"There is no value for {name}.", hint="Type it at the prompt, or send it on stdin."
            )
    return values


def _typed_secret(name: str) -> str:
    while True:
        value = getpass(f"{name}: ")
        if not value or value == getpass("The same again: "):
            return value
        terminal.note("These are not the same; once more.")
