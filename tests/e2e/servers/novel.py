"""A long text in several scripts, the same every time, whose last word is known."""

LINE = "line {:07d}: naïve cafe\u0301 👨‍👩‍👧‍👦 日本語 🇵🇹 — a quiet sentence about nothing.\n"
LAST = "the very last word"


def novel(chars: int) -> str:
    """So many characters of it."""
    lines = "".join(map(LINE.format, range(chars // len(LINE.format(0)) + 1)))
    return lines[: chars - len(LAST)] + LAST
