"""`emceepee config edit`: the file in the person's editor, put in place only if it can be used.

The editor works on a copy beside the file, so a running proxy never reads half an edit. A copy that
cannot be used stays there, and the file stays as it was.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from emceepee_stdio.cli.config_change import carry_out, config_file
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.shared_options import ConfigOption
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, read_file, write_whole
from emceepee_stdio.config.jsonc import Unreadable
from emceepee_stdio.config.load import load_text
from emceepee_stdio.config.own_file import judge, places
from emceepee_stdio.config.regular_file import make_private
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["edit"]

_FALLBACKS = ("notepad",) if sys.platform == "win32" else ("sensible-editor", "nano", "vi")
_STREAMS = (0, 2)  # a person answers on the one what is asked on the other
_NEW_FILE = '{\n  "mcpServers": {\n  }\n}\n'


def edit(
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an edit that was not taken.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Edit the configuration in your editor: $VISUAL, else $EDITOR.

    You edit a copy. When the editor ends, the copy is checked. It takes the place of the file
    unless it cannot be read or a changed entry cannot be used; then it is kept, and --resume opens
    it again.

    Example: emceepee config edit
    """
    file, terminal = config_file(config), Terminal()
    copy = file.with_name(f"{file.stem}.edit{file.suffix}")
    text = read_file(file)
    command = _editor()
    _prepare(copy, text, resume=resume)
    while True:
        _run(command, copy, text or _NEW_FILE)
        edited = read_file(copy)
        if edited is None or edited == (text or _NEW_FILE):
            copy.unlink(missing_ok=True)
            terminal.line(f"Nothing was changed: {file}")
            return
        problems = list(_problems(edited, text, str(copy)))
        if not problems:
            break
        for problem in problems:
            terminal.note(problem)
        if not _again(terminal):
            terminal.note(_kept(copy))
            raise typer.Exit(FAILED)
    _put_in_place(Change(path=file, before=text, after=edited), copy, terminal)


def _prepare(copy: Path, text: str | None, *, resume: bool) -> None:
    there = read_file(copy) is not None
    if resume and not there:
        raise EditRefused(
            f"There is no edit to go on with: {copy} does not exist.",
            hint="Begin one: emceepee config edit",
        )
    if there and not resume:
        raise EditRefused(
            f"An edit that was not taken is still there: {copy}.",
            hint="Go on with it: emceepee config edit --resume; or remove that file to begin anew.",
        )
    if not there:
        make_private(copy.parent)
        write_whole(copy, text or _NEW_FILE)


def _editor() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    try:
        words = shlex.split(chosen) if chosen else []
    except ValueError:
        raise EditRefused(
            f"The name of the editor has a quote that does not end: {chosen}.",
            hint="Set EDITOR to a command, for example: EDITOR=nano",
        ) from None
    if not words and not all(map(os.isatty, _STREAMS)):
        raise EditRefused(
            "An editor needs a terminal.",
            hint="Run this at one, or set EDITOR to a command that needs none.",
        )
    found = next(filter(shutil.which, _FALLBACKS), None)
    if not words and found is None:
        raise EditRefused("No editor was found.", hint="Name one, for example: EDITOR=nano")
    return words or [str(found)]


def _run(command: list[str], copy: Path, text: str) -> None:
    """Wait for the editor; Ctrl-C in it is the editor's."""
    before = signal.signal(signal.SIGINT, _leave_to_the_editor)
    try:
        code = subprocess.run([*command, str(copy)], check=False).returncode  # noqa: S603 - theirs
        reason = f"its exit code is {code}" if code else None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
    finally:
        signal.signal(signal.SIGINT, before)
    if reason is None:
        return
    is_same = read_file(copy) == text
    if is_same:
        copy.unlink()
    raise EditRefused(
        f"The editor `{shlex.join(command)}` failed: {reason}.",
        hint="Nothing was changed; name another one, for example: EDITOR=nano"
        if is_same
        else f"The configuration is as it was; your edit is kept in {copy}.",
    )


def _leave_to_the_editor(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which the editor would inherit."""


def _problems(edited: str, before: str | None, source: str) -> Iterator[str]:
    """Why the edit cannot be used; what was wrong before is no obstacle."""
    try:
        load_text(edited, environ=os.environ, source=source)
    except ConfigInvalid as error:
        yield error.fact
        return
    known = _entries(before)
    for name, entry in _entries(edited):
        if (name, entry) in known:
            continue
        try:
            judge(name, entry, environ=os.environ)
        except ConfigInvalid as error:
            yield error.fact


def _entries(text: str | None) -> list[tuple[str, object]]:
    try:
        return [(place.name, place.entry) for place in places(text)]
    except Unreadable:
        return []


def _again(terminal: Terminal) -> bool:
    if not all(map(os.isatty, _STREAMS)):
        return False
    from emceepee_stdio.cli.prompt import ask_whether  # noqa: PLC0415 - needs an event loop

    return bool(interrupts.run(partial(ask_whether, "Edit it again?", terminal, usual=True)))


def _put_in_place(change: Change, copy: Path, terminal: Terminal) -> None:
    try:
        carry_out(change, "Changed the configuration", dry_run=False, show_secrets=False)
    except EditRefused:
        terminal.note(_kept(copy))
        raise
    copy.unlink()
    for warning in load_text(change.after or "", environ=os.environ, source="it").warnings:
        terminal.note(f"warning: {warning}")


def _kept(copy: Path) -> str:
    return (
        f"The configuration is as it was. Your edit is kept in {copy}. "
        "Go on with it: emceepee config edit --resume; drop it: remove that file."
    )
