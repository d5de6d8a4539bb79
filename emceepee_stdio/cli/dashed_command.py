"""Commands that take another command after two dashes: what to type when the dashes are missing.

An option behind the other command may be meant for either, so it is not guessed.
"""

import shlex
from collections.abc import Mapping, Sequence

import typer

from emceepee_stdio.cli.exit_codes import USAGE
from emceepee_stdio.cli.help_text import HelpCommand
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.journal.redact import redact_argv

__all__ = ["DashedCommand", "with_dashes"]

_DASHES = "--"
_COMMAND_PLACE = 1  # of the words that are no options: the name comes first


class DashedCommand(HelpCommand):
    """Tells where the dashes belong, before an option of the other command is refused as ours."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.get_params(ctx)
            for name in param.opts
        }
        line = with_dashes(args, takes_value)
        if line is not None:
            _, *command = ctx.command_path.split()  # without the file that was started
            # Not in a box, which would break the line that the person is to copy.
            terminal = Terminal()
            terminal.note("emceepee: Two dashes are missing before the command to start. Type:")
            terminal.note(f"  {shlex.join(['emceepee', *command, *redact_argv(line)])}")
            raise typer.Exit(USAGE)
        return super().parse_args(ctx, args)


def with_dashes(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str] | None:
    """The words with two dashes before the command; None where none are missing.

    `takes_value` has the options that are ours, and whether a value follows each.
    """
    plain: list[int] = []
    place = 0
    while place < len(words) and words[place] != _DASHES:
        word = words[place]
        name = word.partition("=")[0]
        if not word.startswith("-"):
            plain.append(place)
        elif name in takes_value:
            place += takes_value[name] and name == word
        elif word[:2] not in takes_value:
            break
        place += 1
    else:
        return None
    if len(plain) <= _COMMAND_PLACE:
        return None
    begin = plain[_COMMAND_PLACE]
    return [*words[:begin], _DASHES, *words[begin:]]
