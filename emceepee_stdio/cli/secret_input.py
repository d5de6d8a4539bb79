"""Secrets from the person: at a hidden prompt, or on stdin; never from the command line."""

import sys
from collections.abc import Sequence
from getpass import getpass

from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.errors import SecretUnavailable

__all__ = ["read_secrets"]


def read_secrets(names: Sequence[str]) -> list[str]:
    """One for each name: typed twice, or on stdin, where several stand one on each line."""
    if sys.stdin.isatty():
        values = [_typed(name) for name in names]
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


def _typed(name: str) -> str:
    while True:
        value = getpass(f"{name}: ")
        if not value or value == getpass("The same again: "):
            return value
        Terminal().note("These are not the same; once more.")
