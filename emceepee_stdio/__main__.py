"""Where the command `emceepee` and `python -m emceepee_stdio` begin.

To serve is the common case, and the client is waiting: it is greeted before anything else is
loaded, and the command line is read right after.
"""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Serve, or hand over to the command line."""
    arguments = sys.argv[1:]
    if _is_to_serve(arguments):
        sys.exit(_serve(arguments))
    from emceepee_stdio.cli.app import run  # noqa: PLC0415 - nothing is loaded before it is needed

    sys.exit(run())


def _is_to_serve(arguments: list[str]) -> bool:
    """A client starts us without arguments or with `serve`; a person at a terminal wants words."""
    if arguments and arguments[0] != "serve":
        return False
    asks_for_help = any(argument in ("--help", "-h") for argument in arguments)
    return not asks_for_help and not os.isatty(0)


def _serve(arguments: list[str]) -> int:
    from emceepee_stdio.front.hello import hello, take_over  # noqa: PLC0415 - see above

    wire_in, wire_out = take_over()
    try:
        handover = hello(wire_in, wire_out)
    except (KeyboardInterrupt, BrokenPipeError):
        return 0
    if handover.ended and not handover.unread.strip():
        return 0
    from emceepee_stdio.cli.serve import serve_greeted  # noqa: PLC0415 - see above

    return serve_greeted(arguments[1:], handover, wire_in, wire_out)


if __name__ == "__main__":
    main()
