"""`emceepee doctor --report`: what is in the file, what is not, and who may read it."""

import json
import stat
import sys
from pathlib import Path

import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import entry, proxy
from tests.peers import plain

SECRETS = {
    "env": "env-9e3779b97f4a7c15",
    "variable": "var-517cc1b727220a95",
    "header": "hdr-5f3759df5f3759df",
    "argv": "arg-c6a4a7935bd1e995",
    "query": "qry-c4ceb9fe1a85ec53",
    "payload": "ghp_ff51afd7ed558ccdff51afd7ed558ccdabcd",
    "said": "said-85ebca6bc2b2ae35",
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.path.mkdir()
    return made


def servers(home: Home) -> dict[str, object]:
    """Secrets in every place where people put them; one server says its own on stderr."""
    loud = "import os, sys; sys.stderr.write(os.environ['PASSWORD']); sys.exit(3)"
    return {
        "plain": entry(plain(), home.path, "plain")
        | {"env": {"GITHUB_TOKEN": SECRETS["env"], "API_KEY": "${PLANTED_KEY}"}},
        "loud": {
            "command": sys.executable,
            "args": ["-c", loud],
            "env": {"PASSWORD": SECRETS["said"]},
        },
        "web": {
            "url": f"http://127.0.0.1:9/mcp?api_key={SECRETS['query']}",
            "headers": {"Authorization": f"Bearer {SECRETS['header']}"},
        },
        "arg": {"command": "no-such-program", "args": ["--token", SECRETS["argv"]]},
    }


async def test_a_report_has_what_is_needed_and_no_secret(home: Home):
    more = {"PLANTED_KEY": SECRETS["variable"], "EMCEEPEE_LOG_DIR": str(home.path / "logs")}
    settings = {"logging": {"payloads": True}}
    with proxy(home.path, servers=servers(home), settings=settings, env=more) as running:
        running.greet()
        running.run("plain", "echo", message=SECRETS["payload"])
        running.close_stdin()
        assert running.wait() == 0
    ran = await home.run(
        *("doctor", "--report", "report.json", "--timeout", "10"), PLANTED_KEY=SECRETS["variable"]
    )
    assert ran.code == 4
    file = home.path / "report.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    found = {name for name, secret in SECRETS.items() if secret in text + ran.out + ran.err}
    assert found == set()
    assert str(home.path) not in text
    report = json.loads(text)
    assert report["schema_version"] == 1
    assert {"emceepee", "python", "mcp", "httpx2", "uvicorn"} <= report["versions"].keys()
    assert "not installed" not in report["versions"].values()
    assert report["platform"]
    assert report["configuration"]["servers"].keys() == {"plain", "loud", "web", "arg"}
    assert report["configuration"]["servers"]["arg"]["command"] == "no-such-program"
    checks = {check["id"]: check["status"] for check in report["doctor"]["checks"]}
    assert checks["backend.plain"] == "ok"
    assert checks["backend.arg"] == "failed"
    (request,) = [one for one in report["trace"] if one.get("server_tool") == "echo"]
    assert request["legs"]
    assert "arguments" not in request
    assert "result" not in request
    words = " ".join(ran.err.split())
    assert "Wrote report.json, which only you can read. Nothing was sent." in words
    assert "configuration with secrets hidden" in words
    assert "Read it before you send it" in words


async def test_a_report_takes_the_place_of_no_file(home: Home, tmp_path: Path):
    home.write({})
    (home.path / "there").write_text("mine")
    (home.path / "link").symlink_to(tmp_path / "elsewhere")
    ran = await home.run("doctor", "--report", "new", "--http", "http://127.0.0.1:9/mcp")
    ran.said("--report", "is not for --http")
    for name in ("there", "link"):
        (await home.run("doctor", "--report", name)).said("exists already", "Nothing was written")
    (await home.run("doctor", "--report", "no/such/file")).said("directory", "does not exist")
    assert (home.path / "there").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


async def test_a_report_is_written_also_where_the_configuration_is_broken(home: Home):
    home.write({})
    home.config.write_text('{"mcpServers": {"a": {"env": {"TOKEN": "' + SECRETS["env"] + '"}}')
    ran = await home.run("doctor", "--report", "report.json")
    assert ran.code == 1
    report = json.loads((home.path / "report.json").read_text())
    assert "not valid JSON" in report["configuration"]["problem"]
    assert report["trace"] == []
    assert SECRETS["env"] not in json.dumps(report)
