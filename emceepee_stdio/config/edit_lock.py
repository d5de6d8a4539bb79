"""One command at a time changes files of people, and what the keyring holds for them."""

import errno
import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path

from emceepee_stdio.config.file_lock import file_lock
from emceepee_stdio.config.regular_file import make_private
from emceepee_stdio.config.state_directory import state_directory
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["alone", "edit_lock_file"]

_FILE = "edits.lock"
_WAIT_S = 30.0  # a keyring may ask its person to unlock it meanwhile
_held: ContextVar[bool] = ContextVar("held", default=False)


@contextmanager
def alone() -> Generator[None]:
    """Until the end of this, other commands of emceepee wait; a command waits for itself never."""
    with ExitStack() as stack:
        if not _held.get():
            _lock(stack)
            stack.callback(_held.reset, _held.set(True))
        yield


def edit_lock_file(environ: Mapping[str, str]) -> Path:
    return state_directory(environ) / _FILE


def _lock(stack: ExitStack) -> None:
    file = edit_lock_file(os.environ)
    try:
        make_private(file.parent)
        stack.enter_context(file_lock(file, within=_WAIT_S))
    except OSError as error:
        if error.errno != errno.ETIMEDOUT:
            return  # where nothing can be kept, files can be changed all the same
        raise ConfigInvalid(
            "Another emceepee command is changing files, and takes its time.",
            hint="Nothing was changed; run the command again when that one has ended.",
        ) from None
