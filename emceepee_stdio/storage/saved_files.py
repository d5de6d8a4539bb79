"""Files that a model has results written to: in directories that a person chose, and nowhere else.

A path is taken apart before anything is opened. Then each directory on the way is opened in the one
before it, and none of them by a link, so that nothing that is changed meanwhile leads elsewhere;
the first one has to be the directory that it was when it was first seen. A file is a new one; only
one that was written here before may be replaced, if nothing of it was changed. Nothing is written
where emceepee itself reads.
"""

import errno
import os
import re
import stat
import unicodedata
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
    """What was written in this session. `ours` are files and directories that emceepee reads."""

    def __init__(self, ours: Sequence[Path] = ()) -> None:
        self._ours = ours
        self._roots: dict[Path, tuple[int, int]] = {}
        self._written: dict[tuple[int, int], tuple[int, ...]] = {}

    def check(self, place: Place, *, overwrite: bool) -> None:
        """Raise if it could not be written now."""
        with _refusals(), self._parent(place) as (name, directory):
            try:
                found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return
            self._check_replaced(found, overwrite=overwrite)

    def write(self, place: Place, data: bytes, *, overwrite: bool) -> None:
        with _refusals(), self._parent(place) as (name, directory):
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
        self._written[found.st_dev, found.st_ino] = _seen(found)

    def _check_replaced(self, found: os.stat_result | None, *, overwrite: bool) -> None:
        if not overwrite:
            raise NotSavedError("it is there already, and overwrite is not true")
        if found is None:
            return
        is_ours = self._written.get((found.st_dev, found.st_ino)) == _seen(found)
        if not is_ours or not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise NotSavedError("what is there was not written by save_to, or was changed since")

    @contextmanager
    def _parent(self, place: Place) -> Generator[tuple[str, int | None]]:
        """The file's name, and its directory, opened; else its path, in which there was no link."""
        *above, name = place.names
        self._refuse_ours(place)
        if not _HAS_DIRECTORY_FDS:
            self._recognise(place.root, place.root.stat())
            path = place.root.resolve().joinpath(*above)
            if os.path.normcase(path.resolve()) != os.path.normcase(path):
                raise NotSavedError("a link leads there")
            if (path / name).is_symlink():
                raise NotSavedError("it is a link")
            yield str(path / name), None
            return
        directory = os.open(place.root, _DIRECTORY)
        try:
            self._recognise(place.root, os.fstat(directory))
            for one in above:
                below = os.open(one, _DIRECTORY | _FOLLOWS_NO_LINK, dir_fd=directory)
                directory, before = below, directory
                os.close(before)
            yield name, directory
        finally:
            os.close(directory)

    def _recognise(self, root: Path, found: os.stat_result) -> None:
        """A root that is first seen before a tool runs stays that directory."""
        seen = found.st_dev, found.st_ino
        if self._roots.setdefault(root, seen) != seen:
            raise NotSavedError(f"{root} is another directory than before")

    def _refuse_ours(self, place: Place) -> None:
        """A configuration that appears would count, whoever wrote it."""
        wanted = _folded(place.root.resolve().joinpath(*place.names))
        for path in self._ours:
            for one in (path.parent.resolve() / path.name, path.resolve()):
                if (wanted + os.sep).startswith(_folded(one) + os.sep):
                    raise NotSavedError("emceepee itself reads what is there")


def _folded(path: Path) -> str:
    """In one spelling, also where systems take capitals for small letters."""
    return unicodedata.normalize("NFC", str(path)).casefold()


def _seen(found: os.stat_result) -> tuple[int, ...]:
    """What a change of content, name or mode changes; a time of content alone can be put back."""
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


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
