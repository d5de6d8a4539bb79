"""Edits of files that belong to people: shown before, written atomically, with a backup.

A file is either as it was or as it was meant to be, whatever happens in between; what it was is
kept beside it, and what it was before that a few times more. A file that cannot be understood is
not touched.
"""

import errno
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from emceepee_stdio.config.jsonc import CannotEdit, Unreadable
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.storage.file_lock import file_lock
from emceepee_stdio.storage.private_file import (
    make_private,
    read_regular,
    state_directory,
    write_whole,
)

# One command at a time changes files of people, and what the keyring holds for them.


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


_OLDER_BACKUPS = 5  # a few edits back; the file may hold tokens, so not more copies than that
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class EditRefused(ConfigInvalid):
    """A file that was left as it is."""

    hint = "Nothing was changed; fix the file, or move it away, and run the command again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file as it is and as it is to be; None is a file that does not exist."""

    path: Path
    before: str | None
    after: str | None
    backs_up: bool = True

    def __repr__(self) -> str:
        return f"<Change {self.path} {self.kind}>"

    @property
    def kind(self) -> str:
        if self.before == self.after:
            return "unchanged"
        if self.before is None:
            return "made"
        return "removed" if self.after is None else "changed"

    def facts(self, backup: Path | None) -> dict[str, object]:
        """What was done, for programs."""
        made = None if backup is None else str(backup)
        return {"path": str(self.path), "change": self.kind, "backup": made}

    def diff(self) -> str:
        """The change as a unified diff, as `patch` takes it."""
        from difflib import unified_diff  # noqa: PLC0415 - only asked for by a dry run

        old, new = _lines(self.before), _lines(self.after)
        parts: list[str] = []
        for line in unified_diff(
            old,
            new,
            "/dev/null" if self.before is None else str(self.path),
            "/dev/null" if self.after is None else str(self.path),
        ):
            parts.append(line)
            if not line.endswith("\n"):
                parts.append("\n\\ No newline at end of file\n")
        return "".join(parts)

    def apply(self) -> Path | None:
        """Write it; the backup, where one was made."""
        if self.before == self.after:
            return None
        with alone(), _naming(self.path):
            return self._apply()

    def _apply(self) -> Path | None:
        # A link stays a link: what it points to is written.
        target = Path(os.path.realpath(self.path))
        backup: Path | None = None
        self._check()
        if self.before is not None and self.backs_up:
            backup = backup_path(self.path)
            _keep_older(backup, self.before)
            write_whole(backup, self.before.encode())
        if self.after is None:
            target.unlink()
        else:
            make_private(target.parent)
            like = None if self.before is None else target.stat()
            # Programs that know no lock may have written it while the backup was.
            write_whole(target, self.after.encode(), like=like, check=self._check)
        return backup

    def _check(self) -> None:
        if read_file(self.path) != self.before:
            raise EditRefused(
                f"{self.path} was changed by another program in this moment.",
                hint="Nothing was changed; run the command again.",
            )


def apply_all(changes: Sequence[Change]) -> list[Path]:
    """Write all of them or none; the backups that were made."""
    done: list[tuple[Change, Path | None]] = []
    with alone():
        try:
            for change in changes:
                done.append((change, change.apply()))  # noqa: PERF401 - before a failure, too
        except BaseException:
            for change, backup in reversed(done):
                _take_back(change, backup)
            raise
    return [backup for _, backup in done if backup is not None]


def _take_back(change: Change, backup: Path | None) -> None:
    try:
        Change(path=change.path, before=change.after, after=change.before, backs_up=False).apply()
    except EditRefused as error:
        was = f"; the file as it was: {backup}" if backup else ""
        raise EditRefused(
            f"{error.fact} It was changed already, and could not be put back{was}.",
            hint="Look at that file, and run the command again.",
        ) from None
    if backup is not None:
        with suppress(OSError):
            backup.unlink()


def backup_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def _keep_older(backup: Path, text: str) -> None:
    """What a backup held before moves on to .1, .2 and so on, unless it says the same."""
    if not backup.is_file() or readable_text(backup) == text:
        return
    for newer, older in reversed(list(pairwise(_names(backup)))):
        if newer.is_file():
            newer.replace(older)


def _names(backup: Path) -> list[Path]:
    older = (backup.with_name(f"{backup.name}.{n}") for n in range(1, _OLDER_BACKUPS + 1))
    return [backup, *older]


def readable_text(path: Path) -> str | None:
    """The text of a file, or None where there is none that can be read."""
    try:
        return read_file(path)
    except EditRefused:
        return None


def read_file(path: Path) -> str | None:
    """The text of a file to the last byte, or None where there is no file."""
    with _naming(path):
        try:
            return read_regular(path).decode("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise EditRefused(f"{path} is not UTF-8 text at byte {error.start}.") from None


def read_backup(path: Path) -> str | None:
    """What the backup beside a file holds, if there is one to be read."""
    return readable_text(backup_path(path))


def backup_files(path: Path) -> list[Path]:
    """The backups beside a file, the newest first."""
    return [backup for backup in _names(backup_path(path)) if backup.is_file()]


@contextmanager
def guard(path: Path) -> Generator[None]:
    """Say which file it is that cannot be read or changed."""
    try:
        yield
    except Unreadable as error:
        raise EditRefused(
            f"{path} is broken at line {error.line}, column {error.column}: {error.reason}."
        ) from None
    except CannotEdit as error:
        raise EditRefused(
            f"{path} was left as it is: {error}.",
            hint="Nothing was changed; edit this file by hand.",
        ) from None


@contextmanager
def _naming(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "input/output error").lower()
        where = error.filename if isinstance(error.filename, str) else path
        raise EditRefused(
            f"{path} cannot be read or written: {reason} ({where}).",
            hint="Nothing was changed; check the permissions of the file and of its directory, "
            "close programs that hold it open, and run the command again.",
        ) from None


def _lines(text: str | None) -> list[str]:
    return [] if text is None else _LINE.findall(text)
