"""Text that people see: from outside, made safe and cut; our own docstrings in their parts.

And command lines, as a person copies them into the shell of this system.
"""

import difflib
import heapq
import os
import re
import shlex
from collections.abc import Callable, Iterable

# Letters and marks that are printable by their category and show nothing: fillers, the empty
# Braille pattern, joiners, and selectors of variants.
_BLANK = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U0001d159\U000e0100-\U000e01ef"
)
_UNSEEN = re.compile(f"[{_BLANK}]")
_VARIANTS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_SPACES = re.compile(" {4,}")  # three are layout; more may push what follows out of sight
_FAR = re.compile(" {20,}")  # a table of somebody else has fewer
_SURROGATES_FROM = 0x10000


# The part of a docstring that says what each parameter or field is for.
_NAMED_TEXTS = re.compile(r"\n\n(?:Takes|Fields):\n(?P<texts>(?:  .*(?:\n|\Z))+)")
_NAMED_TEXT = re.compile(r"^  (\w+): (.*(?:\n {3,}.*)*)", re.MULTILINE)


def docstring_parts(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the whole, and what of each parameter or field."""
    found = _NAMED_TEXTS.search(doc)
    if found is None:
        return doc, {}
    texts = {name: " ".join(text.split()) for name, text in _NAMED_TEXT.findall(found["texts"])}
    return f"{doc[: found.start()]}\n{doc[found.end() :]}".rstrip(), texts


def cut(text: str, chars: int) -> str:
    """At most this many characters, the last one an ellipsis where some are left out."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def spelled_out(text: str) -> str:
    """On one line, with all that cannot be seen as escapes, and many spaces as their number."""
    return _SPACES.sub(_count, _seen(text))


def readable(text: str) -> str:
    """The same for prose: tables keep their spaces, and emoji lose what only chooses a glyph."""
    return _FAR.sub(_count, _seen(_VARIANTS.sub("", text)))


def harmless(text: str) -> str:
    """What would steer a terminal as escapes; lines and tabs stay."""
    return _printable(text, "\n\t", _escaped)


def on_one_line(text: str) -> str:
    """What would steer a terminal or break the line as escapes."""
    return _printable(text, "", _escaped)


def harmless_json(text: str) -> str:
    """The same JSON, with the characters that would steer a terminal escaped as JSON does."""
    return _printable(text, "\n", _escaped_in_json)


def marked_lines(text: str) -> str:
    """For the end of a sentence of ours: each further line has a mark, so none looks like ours."""
    return "\n> ".join(text.splitlines())


def _printable(text: str, kept: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else escape(char) for char in text)


def _seen(text: str) -> str:
    return "".join(
        char if char.isprintable() and not _UNSEEN.match(char) else _escaped(char) for char in text
    )


def _count(spaces: re.Match[str]) -> str:
    return f"[{len(spaces[0])} spaces]"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()


def _escaped_in_json(char: str) -> str:
    code = ord(char)
    if code < _SURROGATES_FROM:
        return f"\\u{code:04x}"
    high, low = divmod(code - _SURROGATES_FROM, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


# What to suggest to somebody who named a thing that is not there.


LISTED_NAMES = 20  # where nothing is close; a longer list is what the list tools are for
SHOWN_NAME_CHARS = 100  # names are shorter; the time of a comparison grows with the square

_SUGGESTIONS = 3  # the right one is mostly the first
_MIN_SIMILARITY = 0.5  # half of the letters: finds swapped words, leaves chance out
_COMPARED = 100  # a comparison takes up to 1 ms, and a server may list thousands of names


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """The few names that look most like it, the closest first."""
    name = name[:SHOWN_NAME_CHARS]
    letters = set(name)

    def strangeness(other: str) -> int:
        return len(letters.symmetric_difference(other)) + abs(len(other) - len(name))

    short = [other for other in known if len(other) <= SHOWN_NAME_CHARS]
    likely = heapq.nsmallest(_COMPARED, short, key=strangeness)
    return difflib.get_close_matches(name, likely, n=_SUGGESTIONS, cutoff=_MIN_SIMILARITY)


# Command lines

_IS_POSIX = os.name == "posix"  # tests try the rules of Windows elsewhere
_PLAIN = re.compile(r"[\w\-./\\:@+~#$]+")  # what cmd.exe leaves alone without quotes
_WINDOWS_WORD = re.compile(r'(?:[^\s"]|"[^"]*"?)+')  # a backslash is part of a path there


def shell_line(words: Iterable[str]) -> str:
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    if _IS_POSIX:
        return shlex.quote(word)
    return windows_word(word.replace('"', '\\"'))


def windows_word(word: str) -> str:
    """A word without quotes in it, as cmd.exe reads it."""
    if _PLAIN.fullmatch(word):
        return word
    ending = word[len(word.rstrip("\\")) :]  # the program reads them as an escape of the quote
    return f'"{word}{ending}"'


def shell_words(line: str) -> list[str]:
    """Its words; ValueError for a quote that does not end, which Windows takes as it is."""
    if _IS_POSIX:
        return shlex.split(line)
    return [word.replace('"', "") for word in _WINDOWS_WORD.findall(line)]
