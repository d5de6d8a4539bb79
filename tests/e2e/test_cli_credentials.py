"""What commands say of secrets and tokens that others have, that stay, or that stand open."""

import json
import shlex
from pathlib import Path

import pytest

from emceepee_stdio.auth.keyring_access import StoredNames
from tests.e2e.cli_harness import Cli, Home
from tests.e2e.keyring_harness import KeyringHome, keyring_environ
from tests.e2e.sign_in_harness import BROWSER, protected

SECRET = "ghp_quietriverbank0123456789abcdefghij"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("EMCEEPEE_STATE_DIR", str(tmp_path / "state"))
    return Cli(tmp_path, monkeypatch, capsys)


def test_a_new_server_that_is_given_the_secret_of_another_one_is_told(cli: Cli):
    own = cli.run("config", "add", "bank", "-e", "TOKEN=${keyring:bank.TOKEN}", "--", "true").well()
    assert "is given" not in own.err
    said = cli.run("config", "add", "evil", "-e", "A=${keyring:bank.TOKEN}", "--", "true").well()
    assert "evil is given the secret bank.TOKEN, which is also the secret of bank" in said.err
    assert "emceepee config remove evil" in said.err
    checks = json.loads(cli.run("doctor", "--json", "--timeout", "5").out)["checks"]
    (check,) = [check for check in checks if check["id"] == "config.shared_secrets"]
    assert check["status"] == "warning"
    assert "bank.TOKEN (evil)" in check["summary"]


def test_a_secret_in_plain_text_on_the_command_line_is_told_with_the_better_way(cli: Cli):
    for name, value in keyring_environ(cli.home).items():
        cli.monkeypatch.setenv(name, value)
    said = cli.run("config", "add", "git", "-e", f"TOKEN={SECRET}", "--", "true").well()
    line = f"Secrets in plain text in {cli.config}: git: env.TOKEN. To change that: "
    assert said.err == f"{line}emceepee secrets move git\n"
    assert SECRET not in said.out + said.err


def test_a_secret_among_the_arguments_is_told_as_well(cli: Cli):
    said = cli.run("config", "add", "git", "--", "true", "--token", SECRET).well()
    step = "To change that: emceepee secrets move"
    assert said.err == f"Secrets in plain text in {cli.config}: git: args[1]. {step} git\n"
    moved = cli.run("secrets", "move", "git").well()
    advice = "git: args[1] stays: other users see arguments. Give it in `env`, if you can.\n"
    assert advice in moved.err
    for name, value in keyring_environ(cli.home).items():
        cli.monkeypatch.setenv(name, value)
    words = ("-e", f"TOKEN={SECRET}", "--", "true", "--token", SECRET)
    both = cli.run("config", "add", "both", *words).well()
    assert f": both: env.TOKEN, both: args[1]. {step} both\n" in both.err
    assert SECRET not in said.out + said.err + moved.out + moved.err + both.out + both.err


def test_a_secret_that_was_taken_out_by_hand_is_named_in_older_backups_by_the_doctor(cli: Cli):
    cli.run("config", "add", "git", "-e", f"TOKEN={SECRET}", "--", "true").well()
    other = cli.run("config", "add", "other", "--", "true").well()
    assert "plain text" not in other.err
    words = ("config", "add", "git", "--replace")
    still = cli.run(*words, "-e", f"TOKEN={SECRET}x", "--", "true").well()
    assert f"in {cli.config}: git: env.TOKEN. To change that: emceepee secrets move" in still.err
    out = cli.run(*words, "-e", "TOKEN", "--", "true").well()
    held = [path for path in cli.config.parent.iterdir() if SECRET in path.read_text()]
    assert len(held) > 1
    assert "plain text" not in out.err, "backups are for the doctor to name"
    checks = json.loads(cli.run("doctor", "--json", "--timeout", "5").out)["checks"]
    (check,) = [check for check in checks if check["id"] == "config.secrets"]
    assert {*shlex.split(check["remediation"].splitlines()[-1])} == {"rm", *map(str, held)}
    assert SECRET not in out.out + out.err


def test_json_with_a_secret_among_arguments_names_it(cli: Cli):
    cli.run("config", "add", "git", "-e", f"TOKEN={SECRET}", "--", "true").well()
    entry = json.dumps({"command": "true", "env": {"TOKEN": "${TOKEN}"}})
    out = cli.run("config", "add-json", "git", entry, "--replace").well()
    assert "plain text" not in out.err
    entry = json.dumps({"command": "true", "args": ["--token", SECRET]})
    open_ = cli.run("config", "add-json", "git", entry, "--replace").well()
    line = f"Secrets in plain text in {cli.config}: git: args[1]. To change that: "
    assert open_.err == f"{line}emceepee secrets move git\n"


async def test_a_server_that_is_removed_names_what_is_kept_of_it(tmp_path: Path):
    path = tmp_path / "home"
    home = Home(path, env={"EMCEEPEE_STATE_DIR": str(path / "state"), "BROWSER": BROWSER})
    async with protected() as place:
        place.issuer.registers = False
        headers = {"X-Key": "${keyring:vault.KEY}", "X-Both": "${keyring:both}"}
        other = {"command": "true", "env": {"A": "${keyring:both}"}}
        own = place.entry(oauth={"client_id": "ours"})
        home.write({"vault": own})
        (await home.run("login", "vault")).well()
        home.write({"vault": {**own, "headers": headers}, "other": other})
        StoredNames(home.environ()).add(["vault.KEY", "both"])
        removed = (await home.run("config", "remove", "vault")).well()
        assert f"emceepee logout {place.server.url}" in removed.err
        assert "emceepee secrets remove vault.KEY" in removed.err
        assert "both" not in removed.err
        (await home.run("logout", place.server.url)).well()
        assert place.records(home.path) == []


async def test_a_secret_that_was_removed_before_is_not_kept(keyring: KeyringHome):
    (await keyring.run("secrets", "set", "s.KEY", stdin=SECRET.encode())).well()
    (await keyring.run("secrets", "remove", "s.KEY")).well()
    keyring.write({"s": {"command": "true", "env": {"A": "${keyring:s.KEY}"}}})
    assert "keyring" not in (await keyring.run("config", "remove", "s")).well().err


async def test_signing_out_forgets_the_server_under_every_client_but_those_of_others(
    tmp_path: Path,
):
    path = tmp_path / "home"
    home = Home(path, env={"EMCEEPEE_STATE_DIR": str(path / "state"), "BROWSER": BROWSER})
    async with protected() as place:
        entries = {name: place.entry(oauth={"client_id": name}) for name in ("work", "home")}
        home.write({"vault": place.entry(), **entries})
        for name in ("vault", "work", "home"):
            (await home.run("login", name)).well()
        assert len(place.records(home.path)) == 3
        home.write({"vault": place.entry(oauth={"client_id": "new"}), "home": entries["home"]})
        ran = (await home.run("logout", "vault")).well()
        assert ran.out == "Signed out of vault.\n"
        assert "emceepee logout home" in ran.err
        assert len(place.records(home.path)) == 1


async def test_a_list_that_waits_for_a_sign_in_names_the_command(tmp_path: Path):
    home = Home(tmp_path / "home", env={"EMCEEPEE_STATE_DIR": str(tmp_path / "state")})
    async with protected() as place:
        home.write({"vault": place.entry()})
        ran = (await home.run("ls")).said("Sign in: emceepee login vault")
        assert "doctor" not in ran.err
    (await home.run("login", "volt")).said("NAME", "Did you mean vault?")


def test_the_dry_run_of_an_import_shows_an_object_whatever_it_is_called(cli: Cli, tmp_path: Path):
    entry = {"url": "https://mcp.example", "auth": {"type": "x", "token": SECRET}}
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    shown = cli.run("config", "import", "cursor", "--dry-run").well().out
    lines = [line.strip("+ ") for line in shown.splitlines()]
    assert '"auth": {' in lines
    assert '"type": "x",' in lines
    assert SECRET not in shown


@pytest.fixture
def keyring(tmp_path: Path) -> KeyringHome:
    home = KeyringHome(tmp_path / "home")
    (home.path / ".cursor").mkdir()
    servers = {"s": {"command": "x", "env": {"A_TOKEN": SECRET, "LANG": "C"}}}
    (home.path / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return home


async def test_after_an_import_that_moves_secrets_only_the_doctor_names_the_backup(
    keyring: KeyringHome,
):
    theirs = keyring.path / ".cursor" / "mcp.json"
    words = ("config", "import", "cursor", "--replace", "--move-secrets")
    assert "plain text" not in (await keyring.run(*words)).well().err
    assert SECRET not in theirs.read_text()
    backup = theirs.with_name("mcp.json.bak")
    assert SECRET in backup.read_text()
    checks = json.loads((await keyring.run("doctor", "--json", "--timeout", "5")).out)["checks"]
    (check,) = [check for check in checks if check["id"] == "config.backups"]
    assert check["details"] == {str(backup): ["s: env.A_TOKEN"]}


async def test_a_dry_run_names_what_a_move_then_does(keyring: KeyringHome):
    keyring.write({"s": {"command": "x", "env": {"A_TOKEN": SECRET}}})
    keyring.hold(**{"s.A_TOKEN": "something else"})
    shown = (await keyring.run("secrets", "move", "--dry-run")).well()
    moved = (await keyring.run("secrets", "move")).well()
    assert "${keyring:s.A_TOKEN-2}" in shown.out
    assert "${keyring:s.A_TOKEN-2}" in moved.out


async def test_an_error_of_the_keyring_is_none_of_a_server(keyring: KeyringHome):
    ran = (await keyring.run("secrets", "remove", "none")).said(
        "has no secret none", "secrets list"
    )
    assert "[" not in ran.err
