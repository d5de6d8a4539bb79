"""Commands that messages and pages name: each of them exists, with the options that it is given."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import typer
from typer.main import get_command

from emceepee_stdio.cli.command_line import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "emceepee_stdio"
COMMAND = get_command(app)
COMMANDS = "|".join(getattr(COMMAND, "commands", {}))
# In backticks and in a block of code it is a command for certain; else by its first word.
QUOTED = re.compile(r"`(emceepee [^`]+)`")
IN_CODE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ON_A_LINE = re.compile(r"^\$? *(emceepee (?!serves )[^#\n]+)", re.MULTILINE)
IN_PROSE = re.compile(rf"(?<!`)(emceepee (?:{COMMANDS})(?![\w:<])[^`;.\n]*(?:\.\w[^`;.\n]*)*)")
PLACEHOLDER = "PLACEHOLDER"


def problem_of(line: str) -> str | None:
    """What is wrong with a command line; its arguments are not looked at."""
    try:
        words = shlex.split(re.sub(r"[\[\]]|\||…|<|>", " ", line))[1:]
    except ValueError:
        words = line.replace("'", "").split()[1:]
    command, context = COMMAND, typer.Context(COMMAND)
    while words and isinstance(found := getattr(command, "commands", None), Mapping):
        if words[0].startswith("-") or words[0].isupper():
            words = words[1:]
            continue
        if words[0] not in found:
            return f"there is no {words[0]}"
        command, words = found[words[0]], words[1:]
    known = {name for param in command.get_params(context) for name in param.opts}
    own = words[: words.index("--")] if "--" in words else words
    options = [word.partition("=")[0].rstrip(".,;:)") for word in own if word.startswith("-")]
    options = [option for option in options if option.strip("-")]
    unknown = [option for option in options if option not in {*known, "-h", "--debug"}]
    return f"no option {unknown[0]}" if unknown else None


def named_in(text: str) -> Iterator[str]:
    yield from QUOTED.findall(text)
    for block in IN_CODE.findall(text):
        yield from ON_A_LINE.findall(block)
    yield from IN_PROSE.findall(IN_CODE.sub("", text))


def messages(module: Path) -> Iterator[str]:
    """The strings of a module, with a word in the place of each value."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) for part in values_of(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in parts:
            yield re.sub(r"(?<!\n)\n *(?=\S)", " ", str(node.value))


def values_of(node: ast.AST) -> list[ast.expr]:
    return node.values if isinstance(node, ast.JoinedStr) else []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    text = re.sub(r"`([^`\n]*)\n *([^`\n]*)`", r"`\1 \2`", page.read_text(encoding="utf-8"))
    wrong = {line: problem for line in named_in(text) if (problem := problem_of(line))}
    assert wrong == {}


def test_every_command_that_a_message_names_exists() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    named = [line for module in modules for text in messages(module) for line in named_in(text)]
    assert len(named) > 100  # else it looks in the wrong place
    wrong = {line: problem for line in named if (problem := problem_of(line))}
    assert wrong == {}


def test_no_message_sends_a_person_to_a_page_that_is_not_installed() -> None:
    found = {
        module.name: text
        for module in sorted(PACKAGE.rglob("*.py"))
        for text in messages(module)
        if re.search(r"\bdocs/[\w/]+\.md", text) and not is_docstring(module, text)
    }
    assert found == {}


def is_docstring(module: Path, text: str) -> bool:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    shown = ast.get_docstring(tree, clean=False) or ""
    return re.sub(r"(?<!\n)\n *(?=\S)", " ", shown) == text


@pytest.mark.parametrize(
    "line",
    ["emceepee confg show", "emceepee config shw", "emceepee doctor --desktop", "emceepee ls -x"],
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    assert problem_of(line)
