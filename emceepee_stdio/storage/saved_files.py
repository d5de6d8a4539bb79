"""Files that a model has results written to: in directories that a person chose, and nowhere else.

A path is taken apart before anything is opened. Then each directory on the way is opened in the one
before it, and none of them by a link, so that nothing that is changed meanwhile leads elsewhere.
A file is a new one; only one that was written here before may be replaced, if nobody changed it.
"""

import errno
import os
import re
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from emceepee_stdio.visible_text import spelled_out

_MODE = 0o666  # less the umask: never executable
_FOLLOWS_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_INHERITED_BY_NONE = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _INHERITED_BY_NONE
_FILE = (
    os.O_WRONLY
    | _FOLLOWS_NO_LINK
    | _INHERITED_BY_NONE
    | getattr(os, "O_NONBLOCK", 0)  # a pipe in its place holds nobody up
    | getattr(os, "O_BINARY", 0)
)
_HAS_DIRECTORY_FDS = os.open in os.supports_dir_fd
_MAX_NAME_BYTES = 255
# On Windows these lead elsewhere: to devices, streams and short names. A path means the same there.
_NOT_IN_NAMES = frozenset('<>:"|?*\\/')
_SHORT_NAME = re.compile(r"~\d")
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[\d¹²³])\s*(?:\..*)?", re.IGNORECASE
)


class NotSavedError(Exception):
    """Why not, in a sentence without its end."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file in one of the directories, by the names that lead to it."""

    root: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.root.joinpath(*self.names))


def place_of(path: str, roots: Sequence[Path]) -> Place:
    """Where a path of a model leads, if that may be written to."""
    if not roots:
        raise NotSavedError("there is no directory to save in: the client gives none (roots)")
    given = PurePath(path)
    if given.is_absolute():
        inside = [root for root in roots if given.is_relative_to(root)]
        if not inside:
            raise NotSavedError(f"it is in none of {', '.join(map(str, roots))}")
        root = max(inside, key=lambda one: len(one.parts))
        names = given.relative_to(root).parts
    elif given.anchor:
        raise NotSavedError("it is neither absolute nor relative to a directory")
    elif len(roots) > 1:
        raise NotSavedError(f"it begins with none of {', '.join(map(str, roots))}")
    else:
        root, names = roots[0], given.parts
    if not names:
        raise NotSavedError("it names no file")
    for name in names:
        _check(name)
    return Place(root, names)


def _check(name: str) -> None:
    if name.startswith("."):
        raise NotSavedError("a part of it begins with a dot")
    if (
        spelled_out(name) != name
        or not _NOT_IN_NAMES.isdisjoint(name)
        or name.endswith((" ", "."))
        or _SHORT_NAME.search(name)
        or _DEVICE.fullmatch(name)
        or len(name.encode(errors="replace")) > _MAX_NAME_BYTES
    ):
        raise NotSavedError(f"{spelled_out(name)[:_MAX_NAME_BYTES]!r} is no name for a file")


class SavedFiles:
    """What was written in this session."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], tuple[int, int]] = {}

    def check(self, place: Place, *, overwrite: bool) -> None:
        """Raise if it could not be written now."""
        with _refusals(), _parent(place) as (name, directory):
            try:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return
            self._check_replaced(found, overwrite=overwrite)

    def write(self, place: Place, data: bytes, *, overwrite: bool) -> None:
        with _refusals(), _parent(place) as (name, directory):
            is_new = True
            try:
                file = os.open(name, _FILE | os.O_CREAT | os.O_EXCL, _MODE, dir_fd=directory)
            except FileExistsError:
                is_new = False
                self._check_replaced(None, overwrite=overwrite)
                file = os.open(name, _FILE, dir_fd=directory)
            try:
                try:
                    self._fill(file, data, is_new=is_new)
                finally:
                    os.close(file)  # first: Windows takes no open file away
            except BaseException:
                if is_new:
                    with suppress(OSError):
                        os.unlink(name, dir_fd=directory)
                raise

    def _fill(self, file: int, data: bytes, *, is_new: bool) -> None:
        if not is_new:
            self._check_replaced(os.fstat(file), overwrite=True)
            os.ftruncate(file, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        found = os.fstat(file)
        self._written[found.st_dev, found.st_ino] = (found.st_size, found.st_mtime_ns)

    def _check_replaced(self, found: os.stat_result | None, *, overwrite: bool) -> None:
        if not overwrite:
            raise NotSavedError("it is there already, and overwrite is not true")
        if found is None:
            return
        seen = (found.st_size, found.st_mtime_ns)
        is_ours = self._written.get((found.st_dev, found.st_ino)) == seen
        if not is_ours or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise NotSavedError("what is there was not written by save_to, or was changed since")


@contextmanager
def _parent(place: Place) -> Generator[tuple[str, int | None]]:
    """The file's name, and its directory, opened; else its path, in which there was no link."""
    *above, name = place.names
    if not _HAS_DIRECTORY_FDS:
        path = place.root.resolve().joinpath(*above)
        if os.path.normcase(path.resolve()) != os.path.normcase(path):
            raise NotSavedError("a link leads there")
        if (path / name).is_symlink():
            raise NotSavedError("it is a link")
        yield str(path / name), None
        return
    directory = os.open(place.root, _DIRECTORY)
    try:
        for one in above:
            below = os.open(one, _DIRECTORY | _FOLLOWS_NO_LINK, dir_fd=directory)
            directory, before = below, directory
            os.close(before)
        yield name, directory
    finally:
        os.close(directory)


@contextmanager
def _refusals() -> Generator[None]:
    """What the system refuses, in words."""
    try:
        yield
    except FileNotFoundError:
        raise NotSavedError("its directory does not exist; none is made") from None
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
        why = "a part of it is a link, or no directory" if is_link else error.strerror
        raise NotSavedError(str(why)) from None
