"""Questions to the person at the terminal.

A line is read through the event loop, which a Ctrl-C always wakes: `input` misses one that comes
after its last look at the signals and before it begins to read.
"""

import sys

import anyio
import anyio.to_thread

from emceepee_stdio.cli.terminal import Terminal

__all__ = ["ask", "ask_whether"]


async def ask_whether(question: str, terminal: Terminal, *, usual: bool) -> bool | None:
    """Yes or no; `usual` for an empty line, None when the person closes the input."""
    while True:
        text = await ask(f"{question} [{'Y/n' if usual else 'y/N'}]:", terminal)
        if text is None:
            return None
        if not text:
            return usual
        if text.lower() in {"y", "yes", "n", "no"}:
            return text.lower().startswith("y")


async def ask(question: str, terminal: Terminal) -> str | None:
    """What the person types; None when they close the input."""
    terminal.ask(question)
    if sys.platform == "win32":
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    else:
        # A terminal has a whole line or none: no thread is left waiting when the command is ended.
        await anyio.wait_readable(sys.stdin)
        line = sys.stdin.readline()
    if not line:
        terminal.note("")  # ends the line of the question, as an answer would have
        return None
    return line.strip()
