import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio import visible_text as module
from emceepee_stdio.visible_text import (
    close_names,
    harmless,
    harmless_json,
    on_one_line,
    shell_line,
    spelled_out,
)

STEERING = [
    "\x1b[2J",
    "\x9b2J",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\U000e0041",
    "\x00",
]
ANY = st.text(st.characters(exclude_categories=[]))


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_nothing_steers_a_terminal(text: str):
    for show in (harmless, on_one_line, spelled_out):
        assert show(f"a{text}b").isprintable()
    assert harmless_json(json.dumps(text, ensure_ascii=False)).isprintable()


def test_lines_and_tabs_stay_where_they_may():
    assert harmless("a\n\tb") == "a\n\tb"
    assert on_one_line("a\n\tb") == "a\\n\\tb"


@given(ANY)
def test_json_stays_the_same_value(text: str):
    encoded = harmless_json(json.dumps({"a": [text]}, indent=2, ensure_ascii=False))
    assert json.loads(encoded) == json.loads(json.dumps({"a": [text]}))
    assert encoded.replace("\n", "").isprintable()
    encoded.encode()


@given(ANY)
def test_whatever_is_spelt_out_can_be_seen_on_one_line(text: str):
    assert spelled_out(text).isprintable()
    assert "    " not in spelled_out(text)


# Command lines


@pytest.mark.parametrize(
    "word", ["plain", "a b", "c&d", "x|y>z", "it's", "é", "C:\\a b\\", "a^b", "http://x/?a=1&b=2"]
)
def test_the_shell_of_this_system_reads_a_word_as_it_was(tmp_path: Path, word: str):
    show = tmp_path / "show it.py"
    show.write_text("import sys\nsys.stdout.buffer.write(sys.argv[1].encode())\n")
    line = shell_line([sys.executable, str(show), word])
    assert subprocess.run(line, shell=True, capture_output=True, check=True).stdout == word.encode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r"C:\windows\notepad.exe", [r"C:\windows\notepad.exe"]),
        (r'"C:\Program Files\an editor.exe" --wait', [r"C:\Program Files\an editor.exe", "--wait"]),
        (r"C:\Users\O'Brien\code.cmd -n", [r"C:\Users\O'Brien\code.cmd", "-n"]),
        (r'x --in="a b"', ["x", "--in=a b"]),
    ],
)
def test_a_backslash_is_part_of_a_path_on_windows(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_IS_POSIX", False)
    assert module.shell_words(line) == words


def test_of_thousands_of_names_only_likely_ones_are_compared(monkeypatch: pytest.MonkeyPatch):
    """A comparison of two long names takes a millisecond, and a server chooses their number."""
    compared: list[int] = []
    real = difflib.get_close_matches

    def counted(word: str, names: list[str], **more: Any) -> list[str]:
        compared.append(sum(map(len, names)))
        return real(word, names, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    hostile = [f"{number:013b}".translate({48: 97, 49: 98}) * 7 for number in range(8_000)]
    assert close_names("serach_issues", [*hostile, "search_issues"]) == ["search_issues"]
    assert close_names("ab" * 50, hostile)
    assert close_names("x", ["x" * 5_000]) == []
    assert max(compared) <= 100 * 100
