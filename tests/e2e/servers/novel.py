"""A long text in several scripts, the same every time, whose last word is known."""

LINE = "line {:07d}: naïve cafe\u0301 👨‍👩‍👧‍👦 日本語 🇵🇹 — a quiet sentence about nothing.\n"
JAPANESE_LINE = "第{:05d}行、これは静かな文章です。\n"
NUMERALS = str.maketrans("0123456789", "〇一二三四五六七八九")  # three bytes each, as the rest
LAST = "the very last word"


def novel(chars: int) -> str:
    """So many characters of it."""
    lines = "".join(map(LINE.format, range(chars // len(LINE.format(0)) + 1)))
    return lines[: chars - len(LAST)] + LAST


def japanese(chars: int) -> str:
    """So many characters of Japanese, no two lines of it alike."""
    lines = map(JAPANESE_LINE.format, range(chars // len(JAPANESE_LINE.format(0)) + 1))
    return "".join(lines).translate(NUMERALS)[:chars]
