"""The page of files: each file that emceepee makes in a home is on it."""

import os
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from emceepee_stdio.auth.browser import page_directory
from emceepee_stdio.auth.keyring_access import StoredNames
from emceepee_stdio.auth.token_store import default_token_directory
from emceepee_stdio.config.edit import edit_lock_file
from emceepee_stdio.config.load import default_path
from emceepee_stdio.front.http.access import default_token_file
from emceepee_stdio.greeting import greeting_file
from emceepee_stdio.journal import default_directory
from emceepee_stdio.session.catalogue_files import default_catalogue_directory
from emceepee_stdio.session.proxy_status import status_directory
from emceepee_stdio.trace.trace_page import identity_file
from emceepee_stdio.trust.store import default_trust_directory
from tests.e2e.cli_harness import Cli
from tests.e2e.clients.raw import entry, proxy
from tests.peers import plain

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "files.md"
UNSET = ("EMCEEPEE_CONFIG", "EMCEEPEE_LOG_DIR", "EMCEEPEE_STATE_DIR")


def rows() -> list[str]:
    return re.findall(r"^\| `(~/[^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    for name in (*UNSET, "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Cli(tmp_path, monkeypatch, capsys)


def test_every_place_in_the_code_is_on_the_page(cli: Cli):
    names = StoredNames(os.environ)
    names.add(["a"])
    places = {
        default_path(os.environ),
        default_directory(os.environ) / "emceepee-x.jsonl",
        default_directory(os.environ) / "requests-x.jsonl",
        Path(greeting_file("x", os.environ)),
        default_catalogue_directory(os.environ) / "x",
        status_directory(os.environ) / "x",
        default_trust_directory(os.environ) / "x",
        default_token_directory(os.environ) / "x",
        default_token_file(os.environ),
        identity_file(os.environ),
        page_directory(os.environ) / "x",
        edit_lock_file(os.environ),
        *(cli.home / name for name in cli.files()),
    }
    shown = {f"~/{place.relative_to(cli.home)}" for place in places}
    assert {one for one in shown if not any(fnmatch(one, row) for row in rows())} == set()
    # And each row is a place that the code has; the others are made by `config` beside its file.
    beside = {"~/.config/emceepee/config.json.bak*", "~/.config/emceepee/config.edit.json"}
    assert {row for row in rows() if not any(fnmatch(one, row) for one in shown)} == beside


def test_every_file_that_is_made_in_a_home_is_on_the_page(cli: Cli):
    cli.run("config", "add", "a", "--", "b").well()
    cli.run("config", "remove", "a").well()
    (cli.home / "work").mkdir()
    server = entry(plain(), cli.home / "work", "s")
    unset = dict.fromkeys(UNSET, "") | {"HOME": str(cli.home)}
    words = ["--server", f"s={server['command']} {' '.join(server['args'])}"]
    with proxy(cli.home / "work", arguments=["serve", *words], env=unset) as running:
        running.greet()
        running.run("s", "echo", message="x")
        running.close_stdin()
        assert running.wait() == 0
    made = {f"~/{name}" for name in cli.files() if not name.startswith("work/")}
    assert any("/log/emceepee-" in name for name in made)
    assert any("/log/requests-" in name for name in made)
    assert {one for one in made if not any(fnmatch(one, row) for row in rows())} == set()
