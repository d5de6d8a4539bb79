"""The file that a server is started from, as a person saw it when they agreed.

What is started is the path that was shown, because a Python of a virtual environment needs it.
Right before the start that path must still lead to the same file: a link may have been swapped
while the person was reading.
"""

import os
from dataclasses import dataclass

from emceepee_stdio.errors import CannotConnect

__all__ = ["ProgramFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """A program: its path, where its links lead, and which file that is."""

    path: str
    file: str
    identity: tuple[int, ...]

    @classmethod
    def at(cls, path: str) -> "ProgramFile":
        """The one that is there now; without an identity where it cannot be looked at."""
        file = os.path.realpath(path)
        try:
            found = os.stat(file)  # noqa: PTH116 - as a string, like its path
        except OSError:
            return cls(path=path, file=file, identity=())
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return cls(path=path, file=file, identity=identity)

    def check(self) -> None:
        """Raise when the path leads to another file by now."""
        if ProgramFile.at(self.path) != self:
            raise CannotConnect(
                f"{self.path} was not started: it is not the file any more that was looked at when "
                "the server was added.",
                hint="If the change is wanted, remove the server and add it again.",
            )
