"""The entry point of the command `emceepee`: greets the client before it loads anything else.

To serve is the common case, and the client is waiting: it is greeted before anything else is
loaded, and the command line is read right after.
"""

import io
import os
import signal
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emceepee_stdio.config.settings import FixedValues


_COMPLETION = "_EMCEEPEE_COMPLETE"  # set by a shell that completes a line, without a terminal


def main(*, fixed: "FixedValues | None" = None) -> None:
    """Serve, or hand over to the command line. Tests pass fixed values of their own."""
    arguments = sys.argv[1:]
    if _is_to_serve(arguments):
        sys.exit(_serve(arguments, fixed))
    sys.excepthook = _without_interrupts
    _write_any_text()
    if _is_to_serve_http(arguments):
        from emceepee_stdio.cli.serve_http import serve_http  # noqa: PLC0415 - see below

        sys.exit(serve_http(arguments[1:]))
    # Nothing is loaded before it is needed.
    from emceepee_stdio.cli.terminal import interrupts  # noqa: PLC0415 - see above

    interrupts.listen()
    from emceepee_stdio.cli.command_line import run  # noqa: PLC0415 - see above

    sys.exit(run())


def _write_any_text() -> None:
    """UTF-8 in every pipe and file; what an encoding that was chosen lacks is written escaped.

    A pipe has the code page of the machine on Windows, which lacks most characters.
    """
    encoding = "utf-8" if os.name == "nt" and "PYTHONIOENCODING" not in os.environ else None
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):  # noqa: TID251 - only set up here
        if isinstance(stream, io.TextIOWrapper):
            errors = None if stream is sys.__stdin__ else "backslashreplace"
            stream.reconfigure(encoding=encoding, errors=errors)


def _without_interrupts(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Whoever presses Ctrl-C knows why the command ended."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _is_to_serve(arguments: list[str]) -> bool:
    """A client starts us without arguments or with `serve`; a person at a terminal wants words."""
    if (arguments and arguments[0] != "serve") or _COMPLETION in os.environ:
        return False
    return not _asks_for_help(arguments) and not _names_http(arguments) and not os.isatty(0)


def _is_to_serve_http(arguments: list[str]) -> bool:
    is_serve = arguments[:1] == ["serve"]
    return is_serve and _names_http(arguments) and not _asks_for_help(arguments)


def _names_http(arguments: list[str]) -> bool:
    return any(word == "--http" or word.startswith("--http=") for word in arguments)


def _asks_for_help(arguments: list[str]) -> bool:
    return any(argument in ("--help", "-h") for argument in arguments)


def _serve(arguments: list[str], fixed: "FixedValues | None") -> int:
    from emceepee_stdio.front.hello import hello, take_over  # noqa: PLC0415 - see above
    from emceepee_stdio.greeting import read_greeting  # noqa: PLC0415 - see above

    _end_on_signals()
    try:
        wire_in, wire_out = take_over()
        handover = hello(wire_in, wire_out, read_greeting(arguments[1:], os.environ))
        if handover.ended and not handover.unread and not arguments[1:]:
            return 0
        from emceepee_stdio.cli.serve import serve_greeted  # noqa: PLC0415 - see above

        return serve_greeted(arguments[1:], handover, wire_in, wire_out, fixed=fixed)
    except KeyboardInterrupt:
        return 0


def _end_on_signals() -> None:
    """As long as nothing has been started, every signal to end is as good as Ctrl-C."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    main()
