"""The help of every command, as a person reads it at 80 columns, and the page of commands."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from emceepee_stdio.cli.command_line import app
from tests.e2e.cli_harness import Cli

COLUMNS = 80
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
ENDS = (".", ":", ";", "?", "!")


def paths(group: Any, *words: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from paths(command, *words, name)
        else:
            yield (*words, name)


COMMANDS = list(paths(get_command(app)))


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    return Cli(tmp_path, monkeypatch, capsys)


def page_section(words: tuple[str, ...]) -> str:
    heading = f"## emceepee {' '.join(words)}\n"
    page = PAGE.read_text(encoding="utf-8")
    assert heading in page, "run `make docs`"
    return page.split(heading)[1].split("\n## ")[0]


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_and_its_page_say_the_same(cli: Cli, words: tuple[str, ...]):
    told = joined(cli.run(*words, "--help").well().out)
    section = page_section(words)
    rows = [
        line.strip("| ").replace("`", "", 2).replace("\\|", "|").split(" | ", 1)
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    usage, *examples = re.findall(r"```\w+\n(.*?)\n```", section, re.DOTALL)
    prose = [part for part in section.split("\n\n") if part.strip() and part[0] not in "|`\n"]
    titles = (
        "Arguments:" if any(not term.startswith("-") for term, _ in rows) else "",
        "Options:",
        *(("Examples:" if "\n" in one else "Example:") for one in examples),
    )
    # What only the terminal has: headings, and the option that every command has.
    rest = told.replace(" -h, --help Show this help and exit.", "", 1)
    for title in filter(None, titles):
        assert f" {title} " in f"{rest} ", title
        rest = f"{rest} ".replace(f" {title} ", " ", 1).strip()
    page = [f"Usage: {usage}", *prose, *(f"{term} {text}" for term, text in rows), *examples]
    assert rest == joined(" ".join(page))


@pytest.mark.parametrize("words", [(), ("config",), ("secrets",), *COMMANDS], ids=" ".join)
def test_help_reads_well_at_eighty_columns(cli: Cli, words: tuple[str, ...]):
    told = cli.run(*words, "--help").well().out
    assert told.startswith(f"Usage: {' '.join(('emceepee', *words))} [OPTIONS]")
    assert words not in COMMANDS or f":\n  emceepee {' '.join(words)}" in told, "has an example"
    # Placeholders are words of ours, each named once.
    assert not re.search(r"<|\[\[|[{}]", re.sub(r"\$\{keyring:NAME\}|'\{.*\}'", "", told))
    assert not re.search(r"\b(?:TEXT|BOOLEAN|INTEGER|FLOAT)\b", told)
    lines = told.splitlines()
    assert [line for line in lines if len(line) >= COLUMNS] == []
    # A line ends before the edge only where its sentence ends, or where the next word does not fit.
    for line, following in pairwise(lines):
        if line and following and line[0] != " " and not line.endswith(ENDS):
            assert len(line) + 1 + len(following.split()[0]) >= COLUMNS - 1, line


def test_a_mistake_shows_the_same_usage_as_the_help(cli: Cli):
    usage = cli.run("call", "--help").well().out.split("\n\n")[0]
    said = cli.run("call").said("Usage: emceepee call [OPTIONS] SERVER TOOL", "call --help")
    assert said.code == 2
    assert joined(usage) in joined(said.err)


def test_a_wrong_value_is_told_without_the_usage(cli: Cli):
    said = cli.run("config", "add", "x", "--url", "ftp://example.org")
    said.said("url must begin with http:// or https://", "See: emceepee config add --help")
    assert said.code == 2
    assert "Usage" not in said.err
    said = cli.run("install", "claude").said("'claude' is not one of 'claude-desktop'")
    assert "Value error" not in said.err


@pytest.mark.parametrize("group", ["config", "secrets"])
def test_a_group_without_a_command_shows_its_help_once(cli: Cli, group: str):
    ran = cli.run(group)
    assert ran.code == 2
    assert ran.err.startswith(f"Usage: emceepee {group} ")
    assert ran.err.count("Usage:") == 1


def test_help_is_a_command_as_well(cli: Cli):
    for words in ((), ("call",), ("config", "add")):
        assert cli.run("help", *words).well().out == cli.run(*words, "--help").well().out
