"""Damage to lines: a seeded random source and seed lines in, other lines out.

The same seed gives the same lines, in any process: whatever fails can be made again. Nothing of the
proxy and nothing of the tests is imported, so that a fixture server starts fast.
"""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")

HUGE = (
    b"1e999",
    b"-1e999",
    b"1e-999",
    b"9" * 19,
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1" + b"0" * 400,
    b"1" * 4_301,
    b"0.1e1",
    b"-0",
    b"00",
    b"NaN",
    b"-Infinity",
)
INVALID = (
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\x00",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\\ud800",
    b"\\u0000",
    b"\x1b[31m",
    b"\r",
    b"\x85",
    b"\xc2\x9b2J",
    b"\xe2\x80\xae",
    b"\xe3\x85\xa4",
    b"\xe2\xa0\x80",
    b"-----BEGIN PRIVATE KEY-----",
)
VALUES = (
    *(b"null", b"true", b"[]", b"{}", b'""', b"0", b"-1", b"1.5", b'"x"', b"[null]", b'{"":{}}'),
    *(b'{"a":1,"a":2}', b'"\\ud800"', b"1e400", b"[[[[[[[[[[]]]]]]]]]]"),
    *(b'"javascript:alert(1)"', b'"file:///etc/passwd"', b'"http://[::1"'),
)
# Depths around the one at which readers of JSON give up are tried one by one elsewhere.
DEPTHS = (2, 30, 250, 480, 900, 940, 1_010, 5_000, 60_000)
IDS = (
    *(b"0", b"-7", b"4000000000", b'""', b'"x"', b"null", b"true", b"1.5", b"[]", b"{}", b"1e3"),
    *(
        b'"4000000001"',
        b"99999999999999999999",
        b'"\\ud800"',
        b'"\\u0000"',
        b'"' + b"i" * 999 + b'"',
    ),
)
_ID = re.compile(rb'"(?:id|requestId|progressToken)":\s*("(?:[^"\\]|\\.)*"|[^,}\]\s]+)')
_SCALAR = re.compile(rb'(?<=:)("(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)')
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"(?=:)')
_DIGITS = re.compile(rb"\d+")
_NUMBER = re.compile(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def load(folder: str, corpus: Path = CORPUS) -> list[bytes]:
    """The seed lines of one direction, in a fixed order."""
    files = sorted((corpus / folder).glob("*.lines"))
    lines = [line for file in files for line in file.read_bytes().split(b"\n")]
    return [line for line in lines if line]


def names_a_number_between(line: bytes, low: int, high: int) -> bool:
    """Whether the line could mean a request with such an id, however it is repaired when read."""
    found = [*_DIGITS.findall(line), *_NUMBER.findall(line)]
    return any(low <= float(number) <= high for number in found if len(number) < 300)


class Mutator:
    """Makes lines from seeds; each call takes the next step of the same random walk."""

    def __init__(self, seeds: Sequence[bytes], *, seed: int | str) -> None:
        self.random = random.Random(seed)
        self._seeds = list(seeds)
        self._ways: list[Callable[[bytes], bytes]] = [
            self._flip,
            self._truncate,
            self._splice,
            self._repeat,
            self._invalid,
            self._huge,
            self._deep,
            self._duplicate_key,
            self._swap_id,
            self._swap_value,
            self._drop,
            self._batch,
            self._break_line,
        ]

    def line(self) -> bytes:
        """One or several lines, each with its end: a seed as it is, or damaged up to four times."""
        line = self.pick()
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 2, 3, 4))):
            line = self.random.choice(self._ways)(line)
        return line[:200_000] + self.random.choice((b"\n", b"\n", b"\n", b"\r\n", b"\n\n"))

    def pick(self) -> bytes:
        return self.random.choice(self._seeds)

    def damaged(self, line: bytes, *, after: int) -> bytes:
        """The line with one change, and none before that place."""
        ways = (self._flip, self._truncate, self._invalid, self._huge, self._drop, self._swap_value)
        rest = self.random.choice(ways)(line[after:])
        return line[:after] + rest.replace(b"\n", b" ")

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes as they may come out of a pipe."""
        if len(data) < 2 or self.random.random() < 0.5:
            return [data]
        cuts = sorted(self.random.sample(range(1, len(data)), min(len(data) - 1, 3)))
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _place(self, line: bytes) -> int:
        return self.random.randint(0, len(line))

    def _insert(self, line: bytes, what: bytes) -> bytes:
        at = self._place(line)
        return line[:at] + what + line[at:]

    def _replace(self, line: bytes, pattern: re.Pattern[bytes], value: bytes, group: int) -> bytes:
        """One of the places that match; the end of the line when there is none."""
        found = list(pattern.finditer(line))
        if not found:
            return line + value
        match = self.random.choice(found)
        return line[: match.start(group)] + value + line[match.end(group) :]

    def _flip(self, line: bytes) -> bytes:
        changed = bytearray(line or b"x")
        for _ in range(self.random.randint(1, 3)):
            changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    def _truncate(self, line: bytes) -> bytes:
        at = self._place(line)
        return line[:at] if self.random.random() < 0.7 else line[at:]

    def _splice(self, line: bytes) -> bytes:
        other = self.pick()
        return line[: self._place(line)] + other[self._place(other) :]

    def _repeat(self, line: bytes) -> bytes:
        start, end = sorted((self._place(line), self._place(line)))
        times = self.random.choice((2, 3, 50))
        return line[:start] + line[start:end][:500] * times + line[end:]

    def _invalid(self, line: bytes) -> bytes:
        return self._insert(line, self.random.choice(INVALID))

    def _huge(self, line: bytes) -> bytes:
        return self._replace(line, _SCALAR, self.random.choice(HUGE), 1)

    def _deep(self, line: bytes) -> bytes:
        depth = self.random.choice(DEPTHS)
        opening, closing = self.random.choice(((b"[", b"]"), (b'{"a":', b"}")))
        inside = self.random.choice((b"1", b"", b'"x"')) if opening == b"[" else b"1"
        ends = depth if self.random.random() < 0.8 else self.random.randint(0, depth)
        return self._replace(line, _SCALAR, opening * depth + inside + closing * ends, 1)

    def _duplicate_key(self, line: bytes) -> bytes:
        found = list(_KEY.finditer(line))
        if not found:
            return line
        match = self.random.choice(found)
        again = match.group() + b":" + self.random.choice(VALUES + IDS) + b","
        return line[: match.start()] + again + line[match.start() :]

    def _swap_id(self, line: bytes) -> bytes:
        return self._replace(line, _ID, self.random.choice(IDS), 1)

    def _swap_value(self, line: bytes) -> bytes:
        return self._replace(line, _SCALAR, self.random.choice(VALUES), 1)

    def _drop(self, line: bytes) -> bytes:
        start, end = sorted((self._place(line), self._place(line)))
        return line[:start] + line[min(end, start + 40) :]

    def _batch(self, line: bytes) -> bytes:
        others = [self.pick() for _ in range(self.random.randint(0, 3))]
        return b"[" + b",".join([line, *others]) + b"]"

    def _break_line(self, line: bytes) -> bytes:
        return self._insert(line, b"\n")
