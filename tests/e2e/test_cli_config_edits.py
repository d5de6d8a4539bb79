"""`emceepee config get`, `enable`, `disable`, `edit` and `add-json`: what they show and write."""

import json
import shlex
import stat
import sys
from pathlib import Path

import pytest

from emceepee_stdio.config import jsonc
from emceepee_stdio.config.load import load_file
from tests.e2e.cli_harness import Cli, Home

SECRET = "ghp_9e3779b97f4a7c159e3779b97f4a7c15abcd"
FILE = """{
  // kept
  "mcpServers": {
    "github": {"command": "npx", "args": ["-y", "x"], "env": {"GITHUB_TOKEN": "%s"}},
    "off": {"command": "x", "isActive": false},
    "odd": 1
  }
}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capsys)
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    made.config.parent.mkdir(parents=True)
    made.config.write_text(FILE % SECRET)
    return made


def usable(cli: Cli) -> list[str]:
    return [server.name for server in load_file(cli.config, environ={}).servers]


def editor(cli: Cli, script: str) -> None:
    """An editor that does this to `text`, the text of the file that it is given."""
    program = cli.home / "editor.py"
    program.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[-1])\n"
        "text = path.read_text()\n"
        f"{script}\n"
        "path.write_text(text)\n"
    )
    cli.monkeypatch.setenv("EDITOR", shlex.join([sys.executable, str(program)]))


# One server


def test_one_server_is_shown_without_its_secrets(cli: Cli):
    shown = cli.run("config", "get", "github").well()
    assert shown.out.startswith(f"github is usable, in {cli.config}:\n")
    assert json.loads(shown.out.partition("\n")[2])["args"] == ["-y", "x"]
    found = json.loads(cli.run("config", "get", "github", "--json").well().out)
    assert (found["name"], found["state"], found["path"]) == ("github", "usable", str(cli.config))
    assert found["entry"]["env"].keys() == {"GITHUB_TOKEN"}
    assert SECRET not in shown.out + shown.err + json.dumps(found)


def test_a_server_that_is_not_used_is_shown_with_the_reason(cli: Cli):
    assert json.loads(cli.run("config", "get", "off", "--json").well().out)["state"] == "off"
    assert cli.run("config", "get", "off").well().out.startswith("off is disabled, in ")
    odd = cli.run("config", "get", "odd").well()
    assert odd.out.startswith("odd is broken, in ")
    assert "expected" in odd.err
    cli.run("config", "get", "githob").said("there is no server 'githob'", "Did you mean github?")


def test_a_server_is_switched_off_and_on_and_its_entry_stays(cli: Cli):
    before = cli.config.read_text()
    cli.run("config", "disable", "github").well()
    assert usable(cli) == []
    assert "Nothing to do" in cli.run("config", "disable", "github").well().out
    assert cli.run("config", "enable", "github", "--dry-run").well().out.startswith("---")
    assert usable(cli) == []
    cli.run("config", "enable", "github").well()
    assert cli.config.read_text() == before
    cli.run("config", "enable", "off").well()
    assert usable(cli) == ["github", "off"]
    cli.run("config", "disable", "off").well()
    cli.run("config", "disable", "odd").said("is no object")
    assert usable(cli) == ["github"]


def test_a_broken_server_is_not_enabled_but_led_to_what_is_wrong(cli: Cli):
    cli.config.write_text(json.dumps({"mcpServers": {"s": {"command": "x", "args": 1}}}))
    ran = cli.run("config", "enable", "s").said("s is not disabled, but broken.")
    assert ran.err.endswith("See why: emceepee config check\n")
    assert ran.out == ""


# An editor


def test_an_edit_is_checked_and_then_takes_the_place_of_the_file(cli: Cli):
    editor(cli, "text = text.replace('\"-y\", ', '')")
    before = cli.config.read_text()
    cli.run("config", "edit").well()
    assert cli.config.read_text() == before.replace('"-y", ', "")
    assert cli.config.with_name("config.json.bak").read_text() == before
    assert not cli.config.with_name("config.edit.json").exists()


def test_an_edit_that_changes_nothing_leaves_everything(cli: Cli):
    editor(cli, "pass")
    before = cli.files()
    assert "Nothing was changed" in cli.run("config", "edit").well().out
    assert cli.files() == before | {"editor.py": (cli.home / "editor.py").read_bytes()}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("text = text[:-3]", "is not valid JSON at line"),
        ("text = text.replace('\"-y\"', '5')", "args"),
    ],
    ids=["no JSON", "a broken entry"],
)
def test_a_broken_edit_is_kept_and_the_file_stays_as_it_was(cli: Cli, script: str, words: str):
    before = cli.config.read_text()
    editor(cli, script)
    copy = cli.config.with_name("config.edit.json")
    cli.run("config", "edit").said(words, "as it was", str(copy), "emceepee config edit --resume")
    assert cli.config.read_text() == before
    assert copy.read_text() != before
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    # The next one does not write over it, and goes on with it where that is asked for.
    cli.run("config", "edit").said("not taken", str(copy), "--resume")
    editor(cli, f"text = {before.replace('-y', '-yes')!r}")
    cli.run("config", "edit", "--resume").well()
    assert cli.config.read_text() == before.replace("-y", "-yes")
    assert not copy.exists()
    cli.run("config", "edit", "--resume").said("no edit to go on with")


def written_meanwhile(cli: Cli, text: str) -> str:
    """A line of an editor during which another program writes our file."""
    return f"pathlib.Path({str(cli.config)!r}).write_text({text!r})"


def test_an_edit_and_what_others_change_meanwhile_both_stay(cli: Cli):
    before = cli.config.read_text()
    late = jsonc.put(before, ("mcpServers", "late"), {"command": "late"})
    late = jsonc.put(late, ("emceepee", "start"), "auto")
    editor(cli, f"text = text.replace('-y', 'z'); {written_meanwhile(cli, late)}")
    cli.run("config", "edit").well()
    assert usable(cli) == ["github", "late"]
    assert cli.config.read_text() == late.replace("-y", "z")
    assert not list(cli.config.parent.glob("*.edit.*"))


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "from an earlier version"])
def test_an_edit_that_is_resumed_keeps_what_was_added_since(cli: Cli, *, is_lost: bool):
    before = cli.config.read_text()
    editor(cli, "text = text[:-3]")
    cli.run("config", "edit").said("is not valid JSON", "--resume")
    if is_lost:
        cli.config.with_name("config.edit.base").unlink()
    cli.run("config", "add", "late", "--", "late").well()
    cli.run("config", "remove", "github").well() if not is_lost else None
    editor(cli, f"text = {before.replace('{', '{ ', 1)!r}")
    cli.run("config", "edit", "--resume").well()
    assert usable(cli) == (["github", "late"] if is_lost else ["late"])


def test_an_edit_of_what_others_changed_otherwise_is_kept_with_one_next_step(cli: Cli):
    editor(cli, f"text = text.replace('-y', 'z'); {written_meanwhile(cli, '{}')}")
    copy = cli.config.with_name("config.edit.json")
    ran = cli.run("config", "edit").said(
        "mcpServers.github was changed in the file meanwhile, and otherwise in your edit.",
        f"Your edit is kept in {copy}",
        "emceepee config edit --resume",
    )
    assert "run the command again" not in ran.err
    assert cli.config.read_text() == "{}"
    assert '"z"' in copy.read_text()
    editor(cli, "text = '{}'")  # as it is in the file
    cli.run("config", "edit", "--resume").well()
    assert cli.config.read_text() == "{}"
    assert not copy.exists()


@pytest.mark.parametrize("name", ["no-such-editor", "false", "it's"])
def test_an_editor_that_fails_is_named_and_nothing_is_left(cli: Cli, name: str):
    cli.monkeypatch.setenv("EDITOR", "cat")
    cli.monkeypatch.setenv("VISUAL", name)
    before = cli.files()
    cli.run("config", "edit").said(name, "EDITOR=nano")
    assert cli.files() == before


def test_a_file_that_is_not_there_is_begun(cli: Cli):
    cli.config.unlink()
    editor(cli, 'text = text.replace(\'{\\n  }\', \'{"a": {"command": "b"}}\')')
    cli.run("config", "edit").well()
    assert usable(cli) == ["a"]


def test_a_person_may_mend_a_broken_edit_at_once(tmp_path: Path):
    home = Home(tmp_path / "home")
    home.write({"a": {"command": "b"}})
    program = tmp_path / "editor.py"
    program.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "path.write_text('{}' if path.read_text() == '{' else '{')\n"
    )
    with home.screen("config", "edit", EDITOR=f"{sys.executable} {program}") as screen:
        screen.until_said("Edit it again? [Y/n]:")
        screen.type("y\n")
        assert screen.wait() == 0
    assert home.config.read_text() == "{}"


# JSON


ENTRY = {"command": "uvx", "args": ["mcp-time"], "env": {"A": "b"}}


@pytest.mark.parametrize(
    "document",
    [
        ENTRY,
        {"mcpServers": {"time": ENTRY}},
        {"mcpServers": {"other": {"url": "https://example.com"}, "new": ENTRY}},
        {"mcp": {"servers": {"time": {**ENTRY}}}},
        {"time": ENTRY},
        {"context_servers": {"time": ENTRY}},
        {"mcpServers": {"env": ENTRY}},
        {"mcpserver": {"time": ENTRY}, "_note": "as for other clients"},
    ],
    ids=["entry", "mcpServers", "by name", "VS Code", "bare name", "Zed", "a key's name", "typo"],
)
def test_an_entry_is_added_in_whatever_it_is_wrapped(cli: Cli, document: object):
    cli.run("config", "add-json", "new", json.dumps(document)).well()
    assert usable(cli) == ["github", "new"]
    assert "// kept" in cli.config.read_text()
    found = json.loads(cli.run("config", "get", "new", "--json").well().out)["entry"]
    assert found == ENTRY


def test_a_name_that_is_taken_is_replaced_only_where_that_is_asked_for(cli: Cli):
    new = json.dumps(ENTRY)
    before = cli.config.read_text()
    cli.run("config", "add-json", "github", new).said("another server of this name", "--replace")
    assert cli.config.read_text() == before
    cli.run("config", "add-json", "github", new, "--replace").well()
    assert json.loads(cli.run("config", "get", "github", "--json").out)["entry"] == ENTRY


@pytest.mark.parametrize(
    ("document", "words", "code"),
    [
        ("{", "this is not JSON at line 1", 2),
        ("[]", "expected the entry of one server", 2),
        ('{"mcpServers": {}}', "neither command nor url is given", 1),
        ('{"comand": "uvx", "arg": ["x"]}', "new.comand is not a known key and is ignored; did", 1),
        ('{"comand": "uvx", "arg": ["x"]}', "did you mean 'command'? mcpServers.new.arg is", 1),
        ('{"new": {"comand": "x", "env": {}}}', "did you mean 'command'?", 1),
        ('{"comand": "x", "env": {"A": "b"}}', "did you mean 'command'?", 1),
        ('{"a": {"command": "x"}, "b": {"command": "y"}}', "holds several servers: a, b", 1),
        ('{"command": 5}', "was not added", 1),
        ('{"command": "x", "env": {"T": "${keyring:github.T}"}}', "refers to the keyring", 1),
        ('{"command": "x", "env": {"T": "${input:t}"}}', "only the client can fill in", 1),
        ('{"command": "emceepee"}', "it is emceepee", 1),
    ],
)
def test_what_is_no_entry_is_refused_and_changes_nothing(
    cli: Cli, document: str, words: str, code: int
):
    before = cli.config.read_text()
    assert cli.run("config", "add-json", "new", document).said(words).code == code
    assert cli.config.read_text() == before


def test_an_entry_that_refers_to_the_keyring_is_refused_with_the_way_that_works(cli: Cli):
    secret = {"command": "x", "env": {"T": "${keyring:github.T}", "A": "b"}}
    ran = cli.run("config", "add-json", "new", json.dumps(secret)).said(
        "new was not added: it refers to the keyring (github.T).",
        "JSON that is pasted comes from elsewhere, so it must not read your keyring.",
        "emceepee config add new --secret-env T -- COMMAND",
    )
    assert "--replace" not in ran.err
    assert "our own configuration" not in ran.err
    remote = {"url": "https://h/", "headers": {"Authorization": "Bearer ${keyring:docs.T}"}}
    cli.run("config", "add-json", "new", json.dumps(remote)).said(
        "emceepee config add new --header 'Authorization: Bearer ${keyring:docs.T}' --url URL"
    )
    beside = {"url": "https://h/", "headers": {"X-Key": f"{SECRET}${{keyring:docs.T}}"}}
    hidden = cli.run("config", "add-json", "new", json.dumps(beside))
    assert SECRET not in hidden.said("--header 'X-Key: ${keyring:docs.T}' --url URL").err
    taken = cli.run("config", "add-json", "github", json.dumps(secret))
    taken.said("emceepee config add github --replace --secret-env T -- COMMAND")


@pytest.mark.parametrize(
    ("name", "document", "step", "others"),
    [
        ("github", '{"command": "x"}', "choose another name, or add --replace", "correct"),
        ("new", '{"command": 5}', "correct the entry", "--replace"),
        ("new", '{"command": "x", "env": {"T": "${input:t}"}}', "correct the entry", "--replace"),
        ("new", '{"command": "emceepee"}', "add the servers that it is to serve", "--replace"),
    ],
)
def test_the_next_step_fits_what_is_wrong_with_an_entry(
    cli: Cli, name: str, document: str, step: str, others: str
):
    assert others not in cli.run("config", "add-json", name, document).said(step).err


async def test_an_entry_with_a_secret_comes_on_stdin_and_is_not_shown(tmp_path: Path):
    home = Home(tmp_path / "home")
    home.write({})
    entry = {"mcpServers": {"gh": {"command": "x", "env": {"GITHUB_TOKEN": SECRET}}}}
    diff = await home.run(
        "config", "add-json", "gh", "-", "--dry-run", stdin=json.dumps(entry).encode()
    )
    done = await home.run("config", "add-json", "gh", "-", stdin=json.dumps(entry).encode())
    assert "gh" in load_file(home.config, environ={}).servers[0].name
    assert "emceepee secrets move gh" in done.well().err
    assert SECRET not in diff.well().out + diff.err + done.out + done.err
    assert SECRET in home.config.read_text()


def test_commands_at_the_same_time_wait_for_each_other_and_all_succeed(tmp_path: Path):
    home = Home(tmp_path / "home")
    home.write({})
    names = [f"s{number}" for number in range(6)]
    for ran in home.run_together(*(["config", "add", name, "--", "x"] for name in names)):
        assert ran.code == 0, ran
    assert sorted(json.loads(home.config.read_text())["mcpServers"]) == names
