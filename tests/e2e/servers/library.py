"""A server with two tools that only read, `long_text` and `wait_for`, and two that do not."""

import time
from pathlib import Path

import dual
import rpc
from calls import Call, Tool
from novel import japanese
from rpc import Message, text

READS = {"annotations": {"readOnlyHint": True}}


def long_text(_: Call, *, chars: int) -> Message:
    """A Japanese text of that length, after a notification."""
    rpc.notify("notifications/fixture", {"said": "before the text"})
    return text(japanese(chars))


def wait_for(call: Call, *, file: str) -> Message:
    """Wait until there is such a file."""
    while not Path(file).exists() and not call.stopped.is_set():
        time.sleep(0.01)
    return text("it is there")


def complain(_: Call, *, lines: list) -> Message:
    """Write these lines to stderr."""
    for line in lines:
        rpc.complain(line)
    return text(f"{len(lines)} lines")


def write_note(_: Call, *, words: str) -> Message:
    """Write something down."""
    return text(f"written: {words}")


def main(_argv: list[str] | None = None) -> None:
    server = dual.Server("library", era="both")
    reading = {f.__name__: Tool(f, **READS) for f in (long_text, wait_for)}
    server.tools.update(reading | {f.__name__: Tool(f) for f in (complain, write_note)})
    server.run()


if __name__ == "__main__":
    main()
