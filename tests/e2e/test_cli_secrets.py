"""`emceepee secrets`: real commands, the real package keyring, a backend for tests."""

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from emceepee_stdio.config.clients import CLIENTS, Client
from tests.e2e.client import server
from tests.e2e.keyring_harness import KeyringHome
from tests.e2e.sign_in_harness import BROWSER, protected

SECRET = "ghp_quietriverbank0123456789abcdefghij"
OLD = "ghp_amberlanternhill0123456789abcdefgh"


@pytest.fixture
def home(tmp_path: Path) -> KeyringHome:
    return KeyringHome(tmp_path / "home")


def written(home: KeyringHome) -> str:
    """Every file in the home but that of the keyring."""
    paths = [path for path in home.path.rglob("*") if path.is_file() and path != home.file]
    return "\n".join(f"{path}\n{path.read_bytes().decode(errors='replace')}" for path in paths)


async def test_a_secret_of_a_url_is_told_once_with_what_works_for_it(home: KeyringHome):
    url = f"https://example.org/mcp?token={SECRET}&api_key={OLD}"
    header = f"Authorization: Bearer {SECRET}"
    ran = (await home.run("config", "add", "h1", "--header", header, "--url", url)).well()
    assert ran.err == (
        f"Secrets in plain text in {home.config}: h1: headers.Authorization, h1: url."
        " To change that: emceepee secrets move h1\n"
    )
    (await home.run("secrets", "move", "h1")).well()
    assert SECRET not in home.config.read_text()
    assert OLD not in home.config.read_text()


async def test_a_secret_is_stored_from_stdin_listed_by_name_and_removed(home: KeyringHome):
    home.write({"s": server(env={"A": "${keyring:s.one}", "B": "${keyring:s.two}"})})
    stored = (await home.run("secrets", "set", "s.one", stdin=f"{SECRET}\n".encode())).well()
    assert stored.out == "Stored s.one.\n"
    assert home.held == {"s.one": SECRET}
    again = (await home.run("secrets", "set", "s.one", stdin=OLD.encode())).well()
    assert again.out == "Replaced s.one.\n"
    spare = (await home.run("secrets", "set", "spare", stdin=SECRET.encode())).well()
    assert "${keyring:spare}" in spare.err

    listed = (await home.run("secrets", "list", "--json")).well()
    rows = json.loads(listed.out)
    assert rows["problem"] is None
    assert rows["secrets"] == [
        {"name": "s.one", "state": "stored", "used_by": ["s"]},
        {"name": "s.two", "state": "missing", "used_by": ["s"]},
        {"name": "spare", "state": "stored", "used_by": []},
    ]
    shown = (await home.run("secrets", "list")).well()
    assert "emceepee secrets set s.two" in shown.err

    removed = (await home.run("secrets", "remove", "s.one")).well()
    assert removed.out == "Removed s.one.\n"
    assert "Still referred to by s" in removed.err
    assert home.held == {"spare": SECRET}
    (await home.run("secrets", "remove", "s.one")).said("has no secret s.one", "secrets list")
    said = [stored, again, spare, listed, shown, removed]
    assert not any(value in ran.out + ran.err for ran in said for value in (SECRET, OLD))
    assert SECRET not in written(home)


async def test_a_keyring_that_does_not_encrypt_is_told_when_it_stores(home: KeyringHome):
    usual = (await home.run("secrets", "set", "one", stdin=SECRET.encode())).well()
    assert "without encryption" not in usual.err
    home.use("PlaintextKeyring")
    plain = (await home.run("secrets", "set", "two", stdin=SECRET.encode())).well()
    assert plain.out == "Stored two.\n"
    assert "is a file without encryption" in plain.err


def test_at_a_terminal_a_secret_is_typed_twice_and_not_shown(home: KeyringHome):
    home.write({})
    with home.screen("secrets", "set", "one") as screen:
        screen.until_said("one:")
        screen.type(f"{SECRET}\n")
        screen.until_said("The same again:")
        screen.type("something else\n")
        screen.until_said_times("one:", 2)
        screen.type(f"{SECRET}\n")
        screen.until_said_times("The same again:", 2)
        screen.type(f"{SECRET}\n")
        assert screen.wait() == 0, screen.text
        assert "Stored one." in screen.text
        assert SECRET not in screen.text
    assert home.held == {"one": SECRET}


async def test_a_value_is_never_an_argument_and_never_nothing(home: KeyringHome):
    assert (await home.run("secrets", "set", "one", SECRET)).code == 2
    assert (await home.run("secrets", "set", "../one", stdin=b"x")).code == 2
    (await home.run("secrets", "set", "one", stdin=b"\n")).said("no value for one")
    assert home.held == {}


@pytest.mark.parametrize(
    ("backend", "value", "words"),
    [
        ("keyring.backends.null.Keyring", SECRET, ["no keyring that can be used", "${NAME}"]),
        ("keyring.backends.fail.Keyring", SECRET, ["no keyring that can be used", "${NAME}"]),
        ("keyring.backends.chainer.ChainerBackend", SECRET, ["no keyring that can be used"]),
        ("MemoryKeyring", SECRET, ["keeps nothing"]),
        ("LockedKeyring", SECRET, ["is locked", "Unlock it"]),
        ("LimitedKeyring", SECRET * 50, ["did not take a value of 1900 characters", "1,280"]),
        ("CuttingKeyring", SECRET * 50, ["of 1900 characters", "something else, of 1280"]),
    ],
)
async def test_a_keyring_that_does_not_keep_a_secret_is_noticed_and_nothing_has_changed(
    home: KeyringHome, backend: str, value: str, words: list[str]
):
    home.hold(one=OLD)
    home.use(backend)
    ran = await home.run("secrets", "set", "one", stdin=value.encode())
    assert ran.code == 1
    ran.said(*words)
    assert SECRET not in ran.out + ran.err
    assert home.held == {"one": OLD}


async def test_a_secret_is_moved_out_of_the_file_and_still_reaches_its_server(home: KeyringHome):
    entry = server(env={"GITHUB_TOKEN": SECRET, "LANG": "C"})
    home.write({"s": entry, "web": {"url": "http://127.0.0.1:9/", "lazy": True}})
    before = home.config.read_text()
    (home.path / "config.json.bak").write_text(before)
    shown = (await home.run("secrets", "move", "--dry-run")).well()
    assert "${keyring:s.GITHUB_TOKEN}" in shown.out
    assert home.config.read_text() == before
    assert home.held == {}

    moved = (await home.run("secrets", "move", "--json")).well()
    told = json.loads(moved.out)
    assert told["moved"] == [{"name": "s.GITHUB_TOKEN", "server": "s", "where": "env.GITHUB_TOKEN"}]
    assert told["copies"] == [str(home.path / "config.json.bak")]
    assert home.config.read_text() == before.replace(SECRET, "${keyring:s.GITHUB_TOKEN}")
    assert home.held == {"s.GITHUB_TOKEN": SECRET}
    assert SECRET not in shown.out + shown.err + moved.out + moved.err
    (home.path / "config.json.bak").unlink()
    assert SECRET not in written(home)

    show = json.dumps({"show": ["GITHUB_TOKEN"]})
    called = (await home.run("call", "s", "env", show)).well()
    assert SECRET in called.out
    again = (await home.run("secrets", "move")).well()
    assert "Nothing to move" in again.out


async def test_a_name_that_is_taken_is_left_alone_and_the_next_one_is_used(home: KeyringHome):
    home.write({"s": server(env={"A_TOKEN": SECRET})})
    home.hold(**{"s.A_TOKEN": OLD})
    (await home.run("secrets", "move", "s")).well()
    assert home.held == {"s.A_TOKEN": OLD, "s.A_TOKEN-2": SECRET}
    assert "${keyring:s.A_TOKEN-2}" in home.config.read_text()


async def test_what_the_keyring_does_not_keep_stays_in_the_file(home: KeyringHome):
    home.write({"s": server(env={"A_TOKEN": SECRET})})
    before = home.config.read_bytes()
    home.use("MemoryKeyring")
    (await home.run("secrets", "move")).said("keeps nothing")
    assert home.config.read_bytes() == before


async def test_a_file_that_another_program_changes_meanwhile_leaves_nothing_in_the_keyring(
    home: KeyringHome,
):
    home.write({"s": server(env={"A_TOKEN": SECRET})})
    home.hold(other=OLD)
    home.use("MeddlingKeyring")
    home.env["MEDDLE_WITH"] = str(home.config)
    (await home.run("secrets", "move")).said("changed by another program")
    assert "meddled" in home.config.read_text()
    assert SECRET in home.config.read_text()
    assert home.held == {"other": OLD}


# Where there is no keyring

no_keyring = pytest.mark.parametrize(
    "backend",
    [
        "keyring.backends.fail.Keyring",
        "keyring.backends.null.Keyring",
        "keyring.backends.chainer.ChainerBackend",
    ],
)


def instead(ran_err: str, file: Path) -> bool:
    """Whether it says that there is no keyring, and names a variable and how to write it."""
    prose = " ".join(ran_err.split())  # a terminal breaks it between words
    says = "This machine has no keyring that can be used" in prose
    names = "write ${A_TOKEN} in place of the value, and set A_TOKEN" in prose
    return says and names and "\n  emceepee config edit\n" in ran_err.replace(f" {file}", "")


@no_keyring
@pytest.mark.parametrize("dry_run", [["--dry-run"], []], ids=["dry-run", "move"])
async def test_without_a_keyring_a_move_says_what_stays_and_what_to_do(
    home: KeyringHome, backend: str, dry_run: list[str]
):
    home.write({"s": server(env={"A_TOKEN": SECRET})})
    before = home.config.read_bytes()
    home.use(backend)
    ran = await home.run("secrets", "move", *dry_run)
    assert ran.code == 1
    assert ran.out == "s: env.A_TOKEN stays in plain text.\n"
    assert instead(ran.err, home.config)
    assert "https://pypi.org/project/keyring" in ran.err
    assert home.config.read_bytes() == before
    told = json.loads((await home.run("secrets", "move", "--json", *dry_run)).out)["error"]
    assert "no keyring" in told["message"]
    assert "${A_TOKEN}" in told["next_step"]
    home.write({"s": server()})
    assert "Nothing to move" in (await home.run("secrets", "move", *dry_run)).well().out


OPEN: dict[str, Any] = {
    "docs": {
        "url": f"https://example.org/mcp?token={SECRET}&api_key={OLD}",
        "headers": {"Authorization": f"Bearer {SECRET}"},
    },
    "one": {"command": "x", "env": {"A_TOKEN": SECRET}},
    "same": {"command": "x", "env": {"A_TOKEN": SECRET}},
    "two": {"command": "x", "args": ["--token", SECRET], "env": {"A_TOKEN": OLD}},
}
ADVICE = [
    f"{place}: write {written} in place of the value, and set {variable}."
    for place, written, variable in [
        ("docs: headers.Authorization", "Bearer ${DOCS_TOKEN}", "DOCS_TOKEN"),
        ("docs: url", "${DOCS_URL}", "DOCS_URL"),
        ("one: env.A_TOKEN", "${A_TOKEN}", "A_TOKEN"),
        ("same: env.A_TOKEN", "${A_TOKEN}", "A_TOKEN"),
        ("two: env.A_TOKEN", "${TWO_A_TOKEN}", "TWO_A_TOKEN"),
    ]
]


async def test_without_a_keyring_each_secret_is_named_once_with_what_to_do(home: KeyringHome):
    home.write(OPEN)
    home.use("keyring.backends.fail.Keyring")
    ran = await home.run("secrets", "move")
    places = [line.partition(": write ")[0] for line in ADVICE] + ["two: args[1]"]
    assert ran.out.splitlines() == [f"{place} stays in plain text." for place in places]
    lines = ran.err.splitlines()
    assert [line for line in lines if ": write " in line] == ADVICE
    assert lines[lines.index(ADVICE[-1]) + 1] == "And 1 more."
    told = json.loads((await home.run("secrets", "move", "--json")).out)["error"]
    assert told["code"] == "server_failed"
    assert told["message"].endswith(f" In plain text: {', '.join(places)}.")
    assert all(line in told["next_step"].splitlines() for line in ADVICE)
    few = await home.run("secrets", "move", "two")
    assert "two: args[1]: other users see arguments. Give it in `env`, if you can." in few.err
    assert not any(value in ran.err + ran.out + str(told) for value in (SECRET, OLD))


async def test_a_secret_beside_a_variable_is_given_a_variable_where_there_is_no_keyring(
    home: KeyringHome,
):
    home.write({"s": server(env={"A": f"{SECRET}${{HOME}}", "B_TOKEN": OLD})})
    home.use("keyring.backends.fail.Keyring")
    ran = await home.run("secrets", "move")
    assert "s: env.A: write ${S_A} in place of its secret part, and set S_A." in ran.err
    assert "secrets set" not in ran.err


async def test_a_variable_that_takes_the_place_of_a_header_or_a_url_works(home: KeyringHome):
    """As the advice says: with the scheme in the file, and the whole address in the variable."""
    headers = {"Authorization": "Bearer ${DOCS_TOKEN}"}
    home.write({"docs": {"url": "${DOCS_URL}", "headers": headers}})
    home.use("keyring.backends.fail.Keyring")
    values = {"DOCS_TOKEN": SECRET, "DOCS_URL": f"https://example.org/mcp?token={OLD}"}
    home.env |= values
    (await home.run("config", "check")).well()
    assert "Nothing to move" in (await home.run("secrets", "move")).well().out


async def test_without_a_keyring_a_server_with_secrets_is_led_to_a_variable_in_one_step(
    home: KeyringHome,
):
    home.use("keyring.backends.fail.Keyring")
    add = ("config", "add", "s", "--secret-env", "A_TOKEN", "--", "x")
    ran = await home.run(*add, stdin=SECRET.encode())
    ran.said("no keyring that can be used", "emceepee config add NAME -e K -- COMMAND", "set K")
    assert "config edit" not in ran.err
    assert not home.config.exists()
    others = await home.run("secrets", "set", "one", stdin=SECRET.encode())
    others.said("config edit")
    gone = await home.run("secrets", "remove", "one")
    gone.said("no keyring that can be used: nothing was removed.", "-m keyring --list-backends")
    assert "${" not in gone.err


def test_without_a_keyring_nobody_is_asked_for_a_secret(home: KeyringHome):
    home.use("keyring.backends.fail.Keyring")
    with home.screen("secrets", "set", "one") as screen:
        assert screen.wait() == 1
    assert "no keyring that can be used" in screen.words
    assert "one:" not in screen.words


@pytest.mark.parametrize("fault", ["raise OSError", "os._exit(1)"])
async def test_a_keyring_that_fails_leads_to_the_list_of_those_that_emceepee_finds(
    home: KeyringHome, fault: str
):
    home.use("faulty.Faulty")
    (home.path / "faulty.py").write_text(
        "import os\nfrom keyring_backends import FileKeyring\nclass Faulty(FileKeyring):\n"
        f"    def get_password(self, service, username):\n        {fault}\n"
    )
    home.env["PYTHONPATH"] += f":{home.path}"
    ran = await home.run("secrets", "set", "one", stdin=SECRET.encode())
    (command,) = re.findall("`(.*? -m keyring --list-backends)`", " ".join(ran.err.split()))
    listed = await anyio.run_process(["/bin/sh", "-c", command])
    assert b"keyring.backends.fail.Keyring" in listed.stdout


@no_keyring
async def test_without_a_keyring_the_doctor_proposes_a_variable(home: KeyringHome, backend: str):
    home.write({"s": server(env={"A_TOKEN": SECRET}), "t": server(env={"A": "${NOT_SET_HERE}"})})
    home.use(backend)
    report = json.loads((await home.run("doctor", "--json")).out)
    found = {check["id"]: check["remediation"] for check in report["checks"]}
    first, advice, _, edit, install, move = found["config.secrets"].split("\n")
    assert first.startswith("This machine has no keyring that can be used.")
    assert advice == "s: env.A_TOKEN: write ${A_TOKEN} in place of the value, and set A_TOKEN."
    assert (edit, move) == ("  emceepee config edit", "  emceepee secrets move")
    assert install.startswith("Or install a keyring")
    assert "keyring" not in found["backend.t"]


async def test_a_locked_keyring_is_a_keyring_and_the_doctor_does_not_wait_for_it(
    home: KeyringHome,
):
    home.write({"s": server(env={"A_TOKEN": SECRET}), "t": server(env={"A": "${NOT_SET_HERE}"})})
    home.use("HangingKeyring")
    report = json.loads((await home.run("doctor", "--json")).out)
    found = {check["id"]: check["remediation"] for check in report["checks"]}
    moves = "Move them into the keyring:\n  emceepee secrets move"
    assert found["config.secrets"] == moves
    assert found["backend.t"].endswith("\n  emceepee secrets set NOT_SET_HERE")
    assert not home.file.with_suffix(".hangs").exists()


async def test_without_a_keyring_an_import_leads_to_a_variable_and_moves_nothing(home: KeyringHome):
    client_file(home)
    home.use("keyring.backends.fail.Keyring")
    refused = (await home.run("config", "import", "cursor", "--move-secrets")).said("no keyring")
    assert refused.code == 1
    assert not home.config.exists()
    line = f"Secrets in plain text in {home.config}: s: env.A_TOKEN. To change that: emceepee "
    ran = (await home.run("config", "import", "cursor")).well()
    assert f"{line}secrets move s\n" in ran.err
    home.config.unlink()
    added = await home.run("config", "add", "s", "-e", f"A_TOKEN={SECRET}", "--", "x")
    assert f"{line}secrets move s\n" in added.well().err
    assert "--secret-env" not in added.err
    assert instead((await home.run("secrets", "move", "s")).err, home.config)


def test_an_import_at_a_terminal_asks_nothing_and_names_the_command(home: KeyringHome):
    client_file(home)
    with home.screen("config", "import", "cursor") as screen:
        assert screen.wait() == 0, screen.text
        assert "s: env.A_TOKEN. To change that: emceepee secrets move s" in screen.words
        assert "[Y/n]" not in screen.text


async def test_a_secret_among_arguments_stays_and_that_is_said(home: KeyringHome):
    entry = server()
    entry["args"] += ["--token", SECRET]
    home.write({"s": entry})
    ran = (await home.run("secrets", "move")).well()
    assert "stays: other users see arguments" in ran.err
    assert home.held == {}


async def test_a_server_is_added_with_secrets_that_are_asked_for(home: KeyringHome):
    add = ("config", "add", "s", "--secret-env", "A_TOKEN", "--secret-env", "B", "-e", "C=c")
    line = (*add, "--", "x", "y")
    shown = (await home.run(*add, "--dry-run", "--", "x", "y")).well()
    assert "A_TOKEN" in shown.out
    assert home.held == {}
    added = (await home.run(*line, stdin=f"{SECRET}\n{OLD}\n".encode())).well()
    env = json.loads(home.config.read_text())["mcpServers"]["s"]["env"]
    assert env == {"C": "c", "A_TOKEN": "${keyring:s.A_TOKEN}", "B": "${keyring:s.B}"}
    assert home.held == {"s.A_TOKEN": SECRET, "s.B": OLD}
    assert SECRET not in added.out + added.err + written(home)


async def test_a_server_whose_secret_cannot_be_kept_is_not_added(home: KeyringHome):
    home.use("MemoryKeyring")
    line = ("config", "add", "s", "--secret-env", "A_TOKEN", "--", "x")
    (await home.run(*line, stdin=SECRET.encode())).said("keeps nothing")
    assert not home.config.exists()
    few = ("config", "add", "s", "--secret-env", "A", "--secret-env", "B", "--", "x")
    (await home.run(*few, stdin=SECRET.encode())).said("1 values came for A, B")
    url = ("config", "add", "s", "--secret-env", "A", "--url", "https://example.org/mcp")
    assert (await home.run(*url)).code == 2


CLIENT = {"mcpServers": {"s": {"command": "x", "env": {"A_TOKEN": SECRET, "LANG": "C"}}}}


def client_file(home: KeyringHome) -> None:
    (home.path / ".cursor").mkdir()
    (home.path / ".cursor" / "mcp.json").write_text(json.dumps(CLIENT))


async def test_an_import_names_the_secrets_that_came_with_it_and_moves_them_where_asked(
    home: KeyringHome,
):
    client_file(home)
    ran = (await home.run("config", "import", "cursor")).well()
    assert "s: env.A_TOKEN" in ran.err
    assert "emceepee secrets move s" in ran.err
    assert SECRET in home.config.read_text()
    home.config.unlink()
    moved = (await home.run("config", "import", "cursor", "--move-secrets")).well()
    assert "Moved s: env.A_TOKEN" in moved.out
    assert home.held == {"s.A_TOKEN": SECRET}
    assert SECRET not in home.config.read_text()
    assert SECRET not in ran.out + ran.err + moved.out + moved.err


async def test_doctor_names_secrets_in_plain_text_and_what_moves_them(home: KeyringHome):
    home.write({"s": server(env={"A_TOKEN": SECRET})})
    (home.path / "config.json.bak").write_text(home.config.read_text())
    ran = await home.run("doctor", "--json")
    check = next(c for c in json.loads(ran.out)["checks"] if c["id"] == "config.secrets")
    assert check["status"] == "warning"
    assert check["details"]["plain_text"] == ["s: env.A_TOKEN"]
    assert "emceepee secrets move" in check["remediation"]
    assert f"rm {home.path}/config.json.bak" in check["remediation"]
    assert SECRET not in ran.out + ran.err
    (await home.run("secrets", "move")).well()
    (home.path / "config.json.bak").unlink()
    after = (await home.run("doctor", "--json")).well()
    assert "config.secrets" not in after.out


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_doctor_names_secrets_in_the_backups_of_a_client_s_file(
    home: KeyringHome, client: Client
):
    file = client.places("linux", {}, home.path)[-1]
    file.parent.mkdir(parents=True, exist_ok=True)
    entry = {"command": "x", "env": {"A_TOKEN": SECRET}}
    theirs = with_entry(client, "s", entry)
    file.write_text(theirs)
    by_hand = file.with_name(f"{file.name}.bak.1")
    by_hand.write_text(theirs)
    by_hand.chmod(0o644)
    (await home.run("config", "import", client.key, "--replace", "--move-secrets")).well()
    backup = file.with_name(f"{file.name}.bak")
    check = next(
        c
        for c in json.loads((await home.run("doctor", "--json")).out)["checks"]
        if c["id"] == "config.backups"
    )
    assert check["status"] == "warning"
    assert check["details"] == {str(backup): ["s: env.A_TOKEN"]}
    assert f"{backup} (s: env.A_TOKEN)" in check["summary"]
    assert "--restore` needs them" in check["remediation"]
    (line,) = [line for line in check["remediation"].split("\n") if line.startswith("  ")]
    assert SECRET not in str(check)
    await anyio.run_process(["/bin/sh", "-c", line])
    assert "config.backups" not in (await home.run("doctor", "--json")).out


def with_entry(client: Client, name: str, entry: dict[str, Any]) -> str:
    """The text of a client's file with this server."""
    return client.language.put("", (client.section, name), entry)


async def test_doctor_names_secrets_of_a_project_in_a_backup(home: KeyringHome):
    beside = {"mcpServers": {"s": {"command": "x", "env": {"A_TOKEN": SECRET}}}}
    home.write({})
    file = home.path / ".claude.json"
    file.write_text(json.dumps({"projects": {str(home.path): beside}}))
    (await home.run("install", "claude-code", "--force")).well()
    ran = await home.run("doctor", "--json")
    check = next(c for c in json.loads(ran.out)["checks"] if c["id"] == "config.backups")
    assert check["details"] == {f"{file}.bak": ["s: env.A_TOKEN"]}


@pytest.mark.parametrize(
    ("backend", "fact", "step"),
    [
        ("FileKeyring", "has no secret s.one", "Store it:\n  emceepee secrets set s.one"),
        ("HangingKeyring", "did not answer within", "unlock it"),
    ],
)
async def test_doctor_says_why_a_reference_cannot_be_looked_up(
    home: KeyringHome, backend: str, fact: str, step: str
):
    home.write({"s": server(env={"A": "${keyring:s.one}"})})
    home.use(backend)
    ran = await home.run("doctor", "s", "--json", "--timeout", "5")
    assert ran.code == 4
    check = json.loads(ran.out)["checks"][0]
    assert fact in check["summary"]
    assert step in check["remediation"]


async def test_the_secret_of_a_sign_in_comes_from_the_keyring_and_stays_there(home: KeyringHome):
    home.env["BROWSER"] = BROWSER
    home.hold(**{"vault.client_secret": "hidden-brook"})
    async with protected() as place:
        place.issuer.registers, place.issuer.wants_secret = False, "hidden-brook"
        oauth = {"client_id": "ours", "client_secret": "${keyring:vault.client_secret}"}
        oauth["issuer"] = place.issuer.url
        home.write({"vault": place.entry(oauth=oauth)})
        (await home.run("login", "vault")).well()
        place.issuer.expire()
        assert (await home.run("call", "vault", "echo", "message=hi")).well().out == "hi\n"
        assert "hidden-brook" not in written(home)


def test_a_command_that_waits_for_the_keyring_is_ended_by_ctrl_c(home: KeyringHome):
    home.write({"s": server(env={"A": "${keyring:s.one}"})})
    home.use("HangingKeyring")
    with home.screen("secrets", "list") as screen:
        screen.until(home.file.with_suffix(".hangs").exists, "the helper's wait")
        screen.type("\x03")
        assert screen.wait() == 130
        assert "Traceback" not in screen.text


def test_two_that_move_the_same_secret_at_once_do_not_lose_it(home: KeyringHome):
    for _ in range(2):
        home.write({"s": server(env={"A_TOKEN": SECRET})})
        ran = home.run_together(["secrets", "move"], ["secrets", "move"])
        well = [one for one in ran if one.code == 0]
        assert well, ran
        for one in ran:
            assert one in well or "was changed by another program" in one.err, one
        assert "${keyring:s.A_TOKEN}" in home.config.read_text()
        assert home.held == {"s.A_TOKEN": SECRET}
