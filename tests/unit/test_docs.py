"""What the pages say is so: what they point to is there, what they count and list is complete."""

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from emceepee_stdio.config.clients import CLIENTS
from emceepee_stdio.config.server import NamedEntry, OAuthConfig, RestartOverrides
from emceepee_stdio.front.client_profile import PROFILES
from emceepee_stdio.state.event_types import EventType

ROOT = Path(__file__).resolve().parents[2]
# As a client is listed them; `make docs-check` holds the file to the code.
TOOLS: list[Any] = json.loads((ROOT / "emceepee_stdio/front/tools.json").read_bytes())
NUMBERS = {word: n for n, word in enumerate(("five", "six", "seven", "eight", "nine"), start=5)}
FRONT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = sorted([*FRONT_PAGES, *(ROOT / "docs").rglob("*.md")])

_TEST = re.compile(r"`(test_[a-z0-9_]+)(?:\[[^\]]*\])?`")
_FUNCTION = re.compile(r"`([a-z_/]+):([A-Za-z_.]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def found(page: str, pattern: str) -> str:
    """What the one place of a page says that reads like this, whatever its line breaks."""
    (place,) = re.findall(pattern, " ".join(page_text(page).split()))
    return place


def rows_of(page: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with these."""
    table = page_text(page).split(f"| {head} |")[1].split("\n\n")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in table.splitlines()[2:]
        if line.startswith("|")
    ]


def spoken(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.fixture(scope="module")
def defined() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(re.findall(r"def (test_[a-z0-9_]+)\(", path.read_text(encoding="utf-8")))
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path, defined: set[str]) -> None:
    named = set(_TEST.findall(page.read_text(encoding="utf-8")))
    assert named - defined == set()


def test_each_promise_names_its_test() -> None:
    tables = page_text("docs/reference/promises.md").split("| guarantee | tests |")[1:]
    rows = [
        line
        for table in tables
        for line in table.split("\n\n")[0].splitlines()[2:]
        if line.startswith("|")
    ]
    assert len(rows) > 200
    assert [row for row in rows if not _TEST.search(row.strip("|").split(" |")[-1])] == []


def test_who_decides_reads_one_short_page_whose_claims_lead_to_the_promises() -> None:
    page = page_text("docs/security.md")
    assert 600 < len(page.split()) < 800
    claims = page.split("## What it does without any settings")[1].split("\n## ")[0]
    bullets = claims.split("\n- ")[1:]
    assert len(bullets) > 5
    assert [bullet for bullet in bullets if "reference/promises.md#" not in bullet] == []


def test_every_action_is_pinned_by_commit() -> None:
    used = [
        line.split("uses:")[1].split("#")[0].strip()
        for workflow in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in workflow.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 8
    assert [one for one in used if not re.fullmatch(r"\./.+|.+@[0-9a-f]{40}", one)] == []


def test_a_release_is_built_by_tested_versions_with_hashes() -> None:
    locked = [line for line in page_text("release.lock").splitlines() if not line.startswith("#")]
    tested = set(page_text("constraints.txt").split())
    assert [line for line in locked if not re.search(r" --hash=sha256:[0-9a-f]{64}$", line)] == []
    assert {line.split(" ")[0] for line in locked} - tested == set()
    assert any(line.startswith("hatchling==") for line in locked)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def functions(module: Path) -> set[str]:
    """What is defined in a module, as `name` and `Class.name`."""
    found: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_every_function_of_the_walks_exists() -> None:
    named = _FUNCTION.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    for module, function in named:
        path = ROOT / "emceepee_stdio" / f"{module}.py"
        assert path.exists(), module
        assert function in functions(path), (module, function)


def test_the_page_of_events_has_every_type_with_its_data() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    for kind in EventType:
        section = page.split(f"## {kind.value}\n")[1].split("\n## ")[0]
        assert kind.meaning in section
        for name, field in kind.fields.items():
            assert f"| `{name}` |" in section
            assert field.meaning in section


def test_every_difference_from_the_documents_of_origin_has_its_reason() -> None:
    rows = rows_of("docs/architecture.md", "document | there | here | why")
    assert len(rows) > 30
    assert all(len(row) == 4 and all(row) for row in rows)


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("README.md", r"through (\d+) tools that never change"),
        ("docs/reference/clients.md", r"There are always (\d+) tools"),
        ("docs/reference/clients.md", r"emceepee uses (\d+) of these"),
        ("docs/reference/clients.md", r"all (\d+) tools and the instructions"),
    ],
)
def test_the_number_of_tools_is_right(page: str, pattern: str) -> None:
    assert int(found(page, pattern)) == len(TOOLS)


def test_the_number_of_core_tools_and_the_longest_name_are_right() -> None:
    core = [tool for tool in TOOLS if tool.get("_meta", {}).get("anthropic/alwaysLoad")]
    assert NUMBERS[found("docs/reference/clients.md", r"the (\w+) core tools")] == len(core)
    longest = max(len(tool["name"]) for tool in TOOLS)
    said = found(
        "docs/reference/clients.md", r"the longest has (\d+ characters, \d+) with `emceepee`"
    )
    assert said == f"{longest} characters, {longest + len('emceepee')}"


def test_the_readme_has_every_tool_once() -> None:
    named = [name for _, names in rows_of("README.md", "for | tools") for name in names.split()]
    assert sorted(named) == sorted(f"`{tool['name']}`" for tool in TOOLS)


def test_lists_of_clients_are_complete() -> None:
    keys, quoted = list(CLIENTS), [f"`{key}`" for key in CLIENTS]
    assert found("README.md", r"install claude-desktop # or (.+?) emceepee") == ", ".join(keys[1:])
    assert found("docs/reference/configuration.md", r"The clients are (.+?)\. ") == spoken(quoted)


def test_the_page_of_clients_has_the_files_and_limits_of_each() -> None:
    files = rows_of(
        "docs/reference/clients.md",
        "client | `install` | file on Linux | section | other keys of the entry",
    )
    for row, client in zip(files, CLIENTS.values(), strict=True):
        beside = [*(f'"{key}": "{value}"' for key, value in client.marks.items()), *client.settings]
        file = client.places("linux", {}, Path("~"))[-1].as_posix()
        keys = ", ".join(f"`{key}`" for key in beside)
        assert row == [client.title, *(f"`{x}`" for x in (client.key, file, client.section)), keys]
    limits = rows_of(
        "docs/reference/clients.md",
        "client | waits for a call | size of a result | tools and their names | other",
    )
    assert [row[0] for row in limits] == [client.title for client in CLIENTS.values()]


def test_the_page_of_http_names_the_clients_that_it_is_for() -> None:
    titles = [client.title for client in CLIENTS.values() if client.remote]
    assert found("docs/reference/http.md", r"`install` supports (.+?)\. ") == spoken(titles)
    for client in CLIENTS.values():
        assert client.remote or found(
            "docs/reference/http.md", rf"{client.title}'s file (cannot|has no) "
        )


def test_the_readme_names_the_clients_that_cannot_ask() -> None:
    silent = {row.key for row in PROFILES if row.key and "form" not in row.declares}
    titles = sorted(CLIENTS[key].title for key in silent)
    assert found("README.md", r"clients that cannot ask \((.+?)\)") == ", ".join(titles)


def shown_default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return ""
    value = field.default
    if value is msgspec.NODEFAULT:
        value = msgspec.to_builtins(field.default_factory())
        value = {} if field.name in {"oauth", "restart"} else value
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value)}`"


def test_the_page_of_the_configuration_has_every_key_of_a_server_with_its_default() -> None:
    rows = rows_of("docs/reference/configuration.md", "key | default | meaning")
    shown = {row[0]: row[1] for row in rows}
    fields = {f"`{field.encode_name}`": field for field in msgspec.structs.fields(NamedEntry)}
    assert shown.keys() == fields.keys()
    for key, default in shown.items():
        # A key that is not given is shown as an empty cell or as null.
        assert default in {shown_default(fields[key]), ""}, key
        assert default or shown_default(fields[key]) in {"", "`null`"}, key


@pytest.mark.parametrize(("key", "kind"), [("oauth", OAuthConfig), ("restart", RestartOverrides)])
def test_the_row_of_a_key_with_keys_has_all_of_them(key: str, kind: type[msgspec.Struct]) -> None:
    meaning = {
        row[0]: row[2]
        for row in rows_of("docs/reference/configuration.md", "key | default | meaning")
    }
    listed = re.findall(r"`(\w+)`", meaning[f"`{key}`"])
    assert listed == [field.encode_name for field in msgspec.structs.fields(kind)]


def test_the_number_of_import_contracts_is_right() -> None:
    contracts = tomllib.loads(page_text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    assert NUMBERS[found("CONTRIBUTING.md", r"(\w+) contracts, see below")] == len(contracts)
    listed = page_text("CONTRIBUTING.md").split("The contracts of import-linter")[1]
    assert len(re.findall(r"^\d\. \*\*", listed.split("`make fmt`")[0], re.MULTILINE)) == len(
        contracts
    )
