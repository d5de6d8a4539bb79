"""Private keys in PEM form that come one line at a time, as programs print them.

Such a key is known by its first line only. So each source of lines has a `PrivateKeyLines`, which
remembers that a key has begun. It forgets that after the last line of the
key, after more lines than any key has, and after some lines in which there is nothing of a key: the
words "-----BEGIN PRIVATE KEY-----" in a message must not hide the log that follows.
"""

import re

from emceepee_stdio.journal.secret_patterns import MARKER

__all__ = ["PrivateKeyLines"]

_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
# What a line of a key consists of. Its last line may be short: alone on its line, or padded.
_BODY = re.compile(r"[A-Za-z0-9+/]{12,}+={0,2}|[A-Za-z0-9+/]+={1,2}(?![A-Za-z0-9])")
_WHOLE_LINE = re.compile(r"[A-Za-z0-9+/]++={0,2}")
_LONGEST_KEY_LINES = 400  # an RSA key of 16,384 bits has about 200
_FOREIGN_LINES = 20  # lines of others in between: blank ones, headers, another thread's


class PrivateKeyLines:
    """Hides private keys in the lines of one source."""

    def __init__(self) -> None:
        self._lines_left = 0
        self._foreign_left = 0

    def __repr__(self) -> str:
        return f"<PrivateKeyLines {'inside a key' if self.is_inside else 'outside'}>"

    @property
    def is_inside(self) -> bool:
        return self._lines_left > 0

    def hide(self, line: str) -> str:
        """The line, without what belongs to a key."""
        if not self._lines_left and "-----BEGIN" not in line:
            return line
        shown: list[str] = []
        position = 0
        while position < len(line):
            if self._lines_left and (end := _END.search(line, position)):
                self._lines_left = 0
                shown.append(MARKER)
                position = end.end()
            elif self._lines_left:
                return "".join([*shown, self._inside(line[position:])])
            elif begin := _BEGIN.search(line, position):
                self._lines_left, self._foreign_left = _LONGEST_KEY_LINES, _FOREIGN_LINES
                shown.append(line[position : begin.start()])
                position = begin.end()
                if not _END.search(line, position):
                    return "".join([*shown, MARKER])
            else:
                return "".join([*shown, line[position:]])
        return "".join(shown)

    def _inside(self, text: str) -> str:
        self._lines_left -= 1
        is_body = bool(_WHOLE_LINE.fullmatch(text.strip()))
        shown = MARKER if is_body else _BODY.sub(MARKER, text)
        self._foreign_left = _FOREIGN_LINES if shown != text else self._foreign_left - 1
        if not self._foreign_left:
            self._lines_left = 0
        return shown
