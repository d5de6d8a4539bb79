"""Questions to the person at the terminal: yes or no, a line, a secret.

A line is read through the event loop, which a Ctrl-C always wakes: `input` misses one that comes
after its last look at the signals and before it begins to read.
"""

import sys
from collections.abc import Sequence
from getpass import getpass

from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.errors import SecretUnavailable


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
    import anyio  # noqa: PLC0415 - most commands that load this ask nothing
    import anyio.to_thread  # noqa: PLC0415

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
        Terminal().note("These are not the same; once more.")
