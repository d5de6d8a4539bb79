"""`emceepee doctor` as the registered client: whose variables, when what comes, and Ctrl-C."""

import json
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.cli_harness import WAIT_S, Home
from tests.e2e.client import command, received_by_server, until
from tests.peers import plain, rude


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.write({"it": command(plain(), env={"A": "${ONLY_IN_A_SHELL}"})})
    return made


async def report(home: Home, *arguments: str, code: int) -> dict[str, Any]:
    ran = await home.run("doctor", "it", "--json", *arguments, ONLY_IN_A_SHELL="x")
    assert ran.code == code, ran.out
    return json.loads(ran.out)


async def test_without_a_registration_the_shell_is_what_counts_and_that_is_said(home: Home):
    assert (await report(home, code=0))["environment"] == "shell"
    ran = (await home.run("doctor", ONLY_IN_A_SHELL="x")).well()
    assert "Tried with the variables of your shell: no client starts emceepee yet." in ran.out


@pytest.mark.parametrize(("client", "code"), [("cursor", 4), ("codex", 4), ("claude-code", 0)])
async def test_servers_are_tried_with_the_variables_that_the_registered_client_has(
    home: Home, client: str, code: int
):
    (await home.run("install", client, "--force")).well()
    found = await report(home, code=code)
    assert found["environment"] == client
    assert ("ONLY_IN_A_SHELL, which is not set" in found["checks"][0]["summary"]) is bool(code)
    assert (await report(home, "--shell-env", code=0))["environment"] == "shell"


async def test_the_remedy_for_a_variable_that_the_client_does_not_have_helps(home: Home):
    (await home.run("install", "cursor", "--force")).well()
    ran = await home.run("doctor", "it", ONLY_IN_A_SHELL="x")
    assert ran.code == 4
    assert "Tried as Cursor starts them: without the variables of your shell." in ran.out
    _, _, line = ran.out.partition("in plain text:\n    emceepee ")
    words = line.partition("\n")[0].replace("VALUE", "x").split()
    assert words == ["install", "cursor", "--env", "ONLY_IN_A_SHELL=x"]
    (await home.run(*words)).well()
    (await home.run("doctor", "it")).well()


async def test_where_a_client_has_the_shells_variables_nothing_is_put_into_its_file(home: Home):
    (await home.run("install", "claude-code", "--force")).well()
    ran = await home.run("doctor", "it")
    assert ran.code == 4
    assert "Set ONLY_IN_A_SHELL in your shell before you start Claude Code." in ran.out
    assert "--env" not in ran.out


async def test_the_configuration_of_the_registered_entry_is_the_one_that_is_looked_at(home: Home):
    other = home.path / "other.json"
    other.write_text(json.dumps({"mcpServers": {"else": command(plain())}}))
    (await home.run("install", "cursor", "--force", "--config", str(other))).well()
    ran = await home.run("doctor", "--json", EMCEEPEE_CONFIG="")
    assert [one["id"] for one in json.loads(ran.out)["checks"]][-1] == "backend.else"


async def test_a_result_is_there_while_another_server_hangs_and_stays_after_ctrl_c(home: Home):
    log = home.path / "hangs.jsonl"
    hangs = command(rude("silent"), env={"FIXTURE_LOG": str(log)})
    home.write({"hangs": hangs, "well": command(plain())})
    process = home.start("doctor", "--timeout", "600")
    assert process.stdout is not None
    with anyio.fail_after(WAIT_S):
        line = b""
        while not line.startswith(b"well\tok"):
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert line, "it ended before it told of the server that works"
    await until(lambda: received_by_server(log))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert b"Interrupted. Not finished: hangs.\n" in out
    assert b"All is well" not in out
    assert err == b""
    assert home.left_over() == []


def test_at_a_terminal_rows_come_one_by_one_and_stay_after_ctrl_c(home: Home):
    hangs = command(rude("silent"))
    home.write({"hangs": hangs, "well": command(plain()), "gone": {"command": "no-such-command"}})
    with home.screen("doctor", "--timeout", "600") as screen:
        screen.until_said("39 tools")
        screen.until_said("The command 'no-such-command' was not found.")
        screen.type("\x03")
        assert screen.wait() == 130
        assert screen.fits()
        assert "Interrupted. Not finished: hangs." in screen.words
        assert "Failed: gone." in screen.words
        assert "→ Install it" in screen.words
