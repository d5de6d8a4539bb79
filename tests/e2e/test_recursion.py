"""emceepee behind emceepee: no endless chain of processes, and a clear word."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import PROXY, ROOT, until
from tests.e2e.harness import json_lines
from tests.e2e.hosts import Host, host
from tests.peers import plain


def good() -> dict[str, Any]:
    argv = plain()
    return {"command": argv[0], "args": argv[1:]}


OURS: dict[str, dict[str, Any]] = {
    "by path": {"command": "/opt/venv/bin/emceepee", "args": ["serve"]},
    "by module": {"command": sys.executable, "args": ["-m", "emceepee_stdio"]},
    "by runner": {"command": "uvx", "args": ["--from", "emceepee-stdio==1.0", "emceepee"]},
    "behind env": {"command": "env", "args": ["A=1", "emceepee"]},
}


@pytest.mark.parametrize("way", OURS)
def test_a_clients_file_that_contains_us_is_served_without_us(tmp_path: Path, way: str) -> None:
    theirs = tmp_path / "claude_desktop_config.json"
    servers = {"emceepee": OURS[way], "proxy": OURS[way], "good": good()}
    theirs.write_text(json.dumps({"mcpServers": servers, "theme": "dark"}))
    with host(tmp_path, arguments=["--config", str(theirs)]) as client:
        assert client.execute("good", "echo", message="hi").text.startswith("hi")
        assert list(client.servers()) == ["good"]
        warnings = [line["data"]["warning"] for line in client.until_noted("config_warning", 2)]
        assert "mcpServers.emceepee is skipped: the name emceepee is reserved" in warnings[0]
        assert "mcpServers.proxy is skipped: it would start emceepee behind itself." in warnings[1]
        client.meet_family()
        assert len(client.family) == 2, "the good server and the watchdog"


@pytest.mark.parametrize("way", OURS)
def test_a_model_cannot_add_us(tmp_path: Path, way: str) -> None:
    with host(tmp_path, mode="allow") as client:
        said = client.use("add_server", name="me", **OURS[way])
        assert "emceepee inside emceepee" in said.text
        assert client.servers() == {}


async def test_importing_a_clients_servers_leaves_us_out(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", env={"PYTHONPATH": str(ROOT)})
    theirs = home.path / ".cursor" / "mcp.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(
        json.dumps({"mcpServers": {"emceepee": OURS["by path"], "p": OURS["by module"]}})
    )
    ran = await home.run("config", "import", "cursor")
    assert "Traceback" not in ran.err
    written = json.loads(home.config.read_text()) if home.config.exists() else {}
    assert written.get("mcpServers", {}) == {}


# A copy under another name is not recognised; the depth that children inherit stops it.


INHERITS = (
    f"PYTHONPATH={ROOT} exec {sys.executable} -c 'import emceepee_stdio.__main__ as m; m.main()'"
)
FORGETS = f"exec env -i HOME=$HOME PATH=$PATH PYTHONPATH={ROOT} {sys.executable} -m emceepee_stdio"


def chain(tmp_path: Path, how: str = INHERITS) -> dict[str, Any]:
    """A program of another name that is emceepee, and whose configuration starts it again."""
    script = tmp_path / "othername"
    script.write_text(f"#!/bin/sh\necho x >> {tmp_path}/starts\n{how}\n")
    script.chmod(0o755)
    entry = {"command": str(script)}
    place = tmp_path / ".config" / "emceepee"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"mcpServers": {"again": entry}}))
    return entry


def starts(tmp_path: Path) -> int:
    path = tmp_path / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def inner(client: Host) -> list[dict[str, Any]]:
    """What the proxies behind this one wrote down, in their own place."""
    found: list[dict[str, Any]] = []
    for path in client.tmp_path.rglob("emceepee-*.jsonl"):
        if path.parent.name != "journal":
            found += json_lines(path)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ancestors are not looked at")
def test_a_copy_that_forgets_how_deep_it_is_ends_there_too(tmp_path: Path) -> None:
    servers = {"again": chain(tmp_path, FORGETS)}
    # By the command line of the product: it is what ancestors are known by.
    with host(tmp_path, mode="allow", servers=servers, python=PROXY) as client:
        until(lambda: client.servers()["again"]["phase"] == "connected", "the copy")

        def words() -> list[str]:
            return [line["data"].get("warning", "") for line in inner(client)]

        until(lambda: any("inside 2 others" in word for word in words()), "the word")
        assert '"again"' in client.execute("again", "list_servers").text
        assert starts(tmp_path) == 2
    assert starts(tmp_path) == 2


@pytest.mark.parametrize("added", [False, True], ids=["configured", "added"])
def test_a_copy_under_another_name_ends_at_the_second_level_with_a_word(
    tmp_path: Path, *, added: bool
) -> None:
    entry = chain(tmp_path)
    servers = {} if added else {"again": entry}
    with host(tmp_path, mode="allow", servers=servers) as client:
        if added:
            assert not client.use("add_server", name="again", **entry).is_error
        until(lambda: client.servers()["again"]["phase"] == "connected", "the copy")

        def words() -> list[str]:
            return [line["data"].get("warning", "") for line in inner(client)]

        until(lambda: any("inside 2 others" in word for word in words()), "the word")
        assert "nothing configured is connected" in next(w for w in words() if "inside 2" in w)
        assert starts(tmp_path) == 2
        deep = client.execute("again", "list_servers")
        assert '"again"' in deep.text
        assert starts(tmp_path) == 2, "still so after a use of it"
    assert starts(tmp_path) == 2
