"""Write the pages that are made from the code, or with `--check` say which of them are stale."""

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from msgspec import Raw
from typer.main import get_command

from emceepee_stdio.cli.command_line import app, command_help
from emceepee_stdio.errors import error_types
from emceepee_stdio.front.client_profile import PROFILES, UNKNOWN, ClientProfile
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.state.diagrams import Diagram, diagrams, further_diagrams
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.tools import TABLE
from emceepee_stdio.tools.registry import Tool

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "emceepee_stdio"
REFERENCE = ROOT / "docs" / "reference"
_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "from",
    "maxLength": "up to",
}
NOTICE = "<!-- Made by `make docs` from the code. Change the code, not this page. -->\n"


def _section(diagram: Diagram) -> str:
    return f"## {diagram.name}\n\n{diagram.description}\n\n```mermaid\n{diagram.mermaid}```\n"


def states_page() -> str:
    intro = (
        "The first five are what the resource `emceepee://diagrams` shows. Each state diagram is"
        " drawn from the table that the code obeys: a move that is not drawn here raises and"
        " changes nothing.\n"
    )
    sections = [_section(diagram) for diagram in (*diagrams(), *further_diagrams())]
    return "\n".join(["# States\n", NOTICE, intro, *sections])


def errors_page() -> str:
    rows = [f"| `{kind.code}` | {kind.hint} |" for kind in error_types()]
    intro = (
        "Every error is one text block: the fact, the code in brackets, the next step. Codes never"
        " change. The hint below is the usual next step; an error may carry a more precise one.\n"
    )
    return "\n".join(["# Errors\n", NOTICE, intro, "| code | next step |", "|---|---|", *rows, ""])


def journal_page() -> str:
    rows = [f"| `{event.value}` | {event.level} | {event.meaning} |" for event in JournalEvent]
    intro = (
        "The journal is a file of JSON lines for each running proxy. These are the names in the"
        " field `event`, and the level at which each is usually written.\n"
    )
    head = ["| event | level | meaning |", "|---|---|---|"]
    return "\n".join(["# Journal events\n", NOTICE, intro, *head, *rows, ""])


def _event_section(kind: EventType) -> str:
    rows = [
        f"| `{name}` | {'sometimes' if field.optional else 'always'} | {field.meaning} |"
        for name, field in kind.fields.items()
    ]
    head = ["| data | | |", "|---|---|---|"]
    return "\n".join([f"## {kind.value}\n", f"{kind.meaning}\n", *head, *rows, ""])


def events_page() -> str:
    intro = (
        "An event is told once: under `events_since_last_response` in the next answer of any tool,"
        " or by `await_activity`. Each has `id`, `type`, `server` (null where it belongs to none),"
        " `created_at` and `data`; `count` where it stands for several. Data that is too long is"
        " shown as a cut text, with `truncated`. These are all types with their data.\n"
    )
    return "\n".join(["# Events\n", NOTICE, intro, *map(_event_section, EventType)])


def _argument(name: str, schema: dict[str, Any], *, required: bool) -> str:
    kinds = schema.get("type", "any")
    kind = " or ".join(kinds) if isinstance(kinds, list) else kinds
    if "enum" in schema:
        kind = ", ".join(f"`{choice}`" for choice in schema["enum"])
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    default = "**required**" if required else ""
    if "default" in schema:
        default = f"`{json.dumps(schema['default'])}`"
    about = " ".join(
        [schema.get("description", ""), *([f"({', '.join(bounds)})"] if bounds else [])]
    )
    return f"| `{name}` | {kind} | {default} | {about} |"


def _shown(text: object) -> str:
    """A block of an answer as a person reads it."""
    if isinstance(text, str):
        try:
            value = json.loads(text)
        except ValueError:
            return text
        return json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict) else text
    return json.dumps(text, indent=2, ensure_ascii=False)


def _tool_section(tool: Tool, example: dict[str, Any]) -> str:
    schema = cast("dict[str, Any]", tool.listed()["inputSchema"])
    given = json.dumps(example["arguments"], ensure_ascii=False)
    tool.decode(Raw(given.encode()))
    rows = [
        _argument(name, about, required=name in schema.get("required", ()))
        for name, about in schema["properties"].items()
    ]
    table = ["| argument | type | default | |", "|---|---|---|---|", *rows, ""] if rows else []
    answer = "\n\n".join(map(_shown, example["answer"]))
    return "\n".join(
        [
            f"## {tool.name}\n",
            f"{tool.description}\n",
            *table,
            f"```text\n{tool.name} {given}\n```\n",
            f"```text\n{answer}\n```\n",
        ]
    )


def tools_page() -> str:
    intro = (
        "What a client sees of emceepee, whatever is behind it. Below each tool stands one call of"
        " it and its answer, as `python -m scripts.record_examples` wrote them down. Beside these,"
        " a client is listed what you [expose](configuration.md#exposing-a-server) of a server.\n"
    )
    recorded = json.loads((REFERENCE / "examples.json").read_text(encoding="utf-8"))
    examples = {example["tool"]: example for example in recorded}
    missing = [name for name in TABLE if name not in examples]
    if missing:
        raise SystemExit(f"no example of {', '.join(missing)}: python -m scripts.record_examples")
    sections = [_tool_section(tool, examples[name]) for name, tool in TABLE.items()]
    return "\n".join(["# Tools\n", NOTICE, intro, *sections])


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _command_section(path: str, command: Any) -> str:
    help_text = command_help(command, path)
    options = [row for row in help_text.options if "--help" not in row.term]
    rows = [
        f"| `{_cell(term)}` | {_cell(text)} |" for term, text in (*help_text.arguments, *options)
    ]
    table = ["| | |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(
        [
            f"## {path}\n",
            f"```text\n{help_text.usage}\n```\n",
            *(f"{paragraph}\n" for paragraph in help_text.paragraphs),
            *table,
            "```sh\n" + "\n".join(help_text.examples) + "\n```\n",
        ]
    )


def cli_page() -> str:
    intro = (
        "Every command, as `emceepee COMMAND --help` tells it. Results go to stdout, everything"
        " else to stderr. On a terminal there are tables and colours (`NO_COLOR` is honoured); in a"
        " pipe the same rows are plain lines, their cells parted by tabs. A failure is one sentence"
        " with the next step; `emceepee --debug COMMAND` shows where it came from. Exit codes: 0"
        " well, 1 failed, 2 a mistake in the command line, and for commands that ask servers 3"
        " when a server wants other credentials, 4 when a server failed.\n\n"
        "`emceepee --install-completion` lets the Tab key complete commands, options and the names"
        " of servers, tools, prompts, events, sessions and clients, in bash, zsh, fish and"
        " PowerShell; open a new shell after it. `emceepee --show-completion` prints what it"
        " installs. No server is started for that: tools are those that the server listed when it"
        " ran last. Shells that show a text beside a name, such as zsh and fish, show there which"
        " servers are disabled or broken. Names with characters that a shell evaluates are not"
        " offered.\n"
    )
    sections = [_command_section(*found) for found in _commands(get_command(app), "emceepee")]
    return "\n".join(["# Command line\n", NOTICE, intro, *sections])


def _client_row(row: ClientProfile) -> str:
    def fact(field: str, text: str) -> str:
        return f"{text}*" if field in row.watched else text

    name = ", ".join(f"`{part}`" for part in row.names) or "–"
    version = f"{row.version}, " if row.version else ""
    cells = [
        row.title,
        name,
        "45 s, or `client_ceiling_ms`"
        if row.ceiling_s is None
        else fact("ceiling_s", f"{row.ceiling_s:g} s"),
        fact("message_chars", f"{row.message_lines} lines of {row.message_chars} characters"),
        fact("result_bytes", f"{row.result_bytes:,} bytes"),
        fact("defers_tools", "behind a search" if row.defers_tools else "all at once"),
        fact("declares", ", ".join(sorted(row.declares)) or "nothing"),
        fact("unshown", ", ".join(sorted(row.unshown)) or "–"),
        f"{version}{row.looked_up}" if row.looked_up else "",
    ]
    return f"| {' | '.join(cells)} |"


def _filled(page: Path, made: str) -> str:
    """A page as it is, with what is made from the code between its two marks."""
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition("<!-- Begin: ")
    notice, _, rest = rest.partition("-->\n")
    tail = rest.partition("<!-- End. -->")[2]
    return f"{head}{begin}{notice}-->\n\n{made}\n\n<!-- End. -->{tail}"


def clients_page() -> str:
    """The page as it is, with the table of what hosts do as the code has it."""
    titles = (
        "| client | its name begins with | answered within | shown of a question |"
        " shown of an answer | tools are shown | declares |"
        " field types that emceepee asks for as text | version, looked up |"
    )
    table = [
        titles,
        "|---|---|---|---|---|---|---|---|---|",
        *map(_client_row, (*PROFILES, UNKNOWN)),
    ]
    notes = [
        "\n".join([f"- **{row.title}**", *(f"  - {note}" for note in row.notes)])
        for row in PROFILES
        if row.notes
    ]
    return _filled(REFERENCE / "clients.md", "\n".join([*table, "", *notes]))


def _about(path: Path) -> str:
    """The first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring")
    return text.splitlines()[0]


def _layers() -> list[str]:
    """The top-level names of the package in the order of the import contract, highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    rows: list[str] = next(row["layers"] for row in contracts if row["type"] == "layers")
    return [name.strip(" ()") for row in rows for name in row.split("|")]


def architecture_page() -> str:
    """The page as it is, with the layers and what each module is about."""
    layers: list[str] = []
    folders: list[str] = []
    for name in _layers():
        folder = PACKAGE / name
        if not folder.is_dir():
            layers.append(f"| `{name}` | {_cell(_about(PACKAGE / f'{name}.py'))} |")
            continue
        layers.append(f"| [`{name}/`](#{name}) | {_cell(_about(folder / '__init__.py'))} |")
        for init in sorted(folder.rglob("__init__.py")):
            inner = init.parent.relative_to(PACKAGE).as_posix()
            rows = [
                f"| `{path.stem}` | {_cell(_about(path))} |"
                for path in sorted(init.parent.glob("*.py"))
                if path != init
            ]
            title = f"### {inner}/\n\n{_about(init)}\n"
            folders += [title, "| module | about |", "|---|---|", *rows, ""]
    head = ["| layer | about |", "|---|---|"]
    return _filled(
        ROOT / "docs" / "architecture.md", "\n".join([*head, *layers, "", *folders]).rstrip()
    )


def tools_list() -> str:
    """Not a page: the answer to tools/list, prebuilt so that greeting a client costs nothing."""
    listed = [tool.listed() for tool in TABLE.values()]
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False) + "\n"


PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "states.md": states_page,
    REFERENCE / "errors.md": errors_page,
    REFERENCE / "journal.md": journal_page,
    REFERENCE / "events.md": events_page,
    REFERENCE / "tools.md": tools_page,
    REFERENCE / "cli.md": cli_page,
    REFERENCE / "clients.md": clients_page,
    ROOT / "docs" / "architecture.md": architecture_page,
    ROOT / "emceepee_stdio" / "front" / "tools.json": tools_list,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when stale")
    check: bool = parser.parse_args().check
    stale: list[str] = []
    for path, build in PAGES.items():
        text = build()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}. Run `make docs`.", file=sys.stderr)
        return 1
    print("generated pages: " + ("up to date" if not stale else "wrote " + ", ".join(stale)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
