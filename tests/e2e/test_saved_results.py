"""Results that are written to a file, in the directories of the client and nowhere else."""

import json
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.session.reply import Reply
from emceepee_stdio.tools.diverted_results import file_data
from tests.e2e.client import Setting, command, proxy
from tests.e2e.clients.raw import entry
from tests.e2e.front_harness import running_front, session
from tests.e2e.hosts import Host, Said, host
from tests.e2e.servers.novel import novel
from tests.peers import SERVERS

PIXEL = b"\x89PNG"


def server(tmp_path: Path) -> dict[str, Any]:
    return {"s": entry([sys.executable, str(SERVERS / "large.py")], tmp_path, "s")}


def project(tmp_path: Path) -> Path:
    made = tmp_path / "projects" / "one"
    made.mkdir(parents=True)
    return made


def bring(client: Host, place: Path, **call: Any) -> Said:
    """Call, and give the client's one directory when it is asked for."""
    roots = {"roots": [{"uri": place.as_uri()}]}
    number = client.start("execute_tool", server="s", **call)
    if client.modern:
        asked = client.said_to(number)
        [key] = asked.result["inputRequests"]
        state = asked.result.get("requestState")
        return client.use("execute_tool", replies={key: roots}, state=state, server="s", **call)

    def questions() -> list[dict[str, Any]]:
        return [m for m in client.said if m.get("method") == "roots/list"]

    client.read_until(lambda: bool(questions()), "roots/list")
    client.send({"id": questions()[0]["id"], "result": roots})
    return client.said_to(number)


def files(place: Path) -> set[str]:
    return {one.name for one in place.rglob("*") if one.is_file()}


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
def test_a_result_is_written_where_the_client_works(tmp_path: Path, *, modern: bool) -> None:
    place = project(tmp_path)
    with host(tmp_path, modern=modern, has_roots=True, servers=server(tmp_path)) as client:
        issues = {"tool": "issues", "args": {"count": 800}}
        said = bring(client, place, **issues, save_to="issues.json")
        first, facts = (block["text"] for block in said.blocks)
        assert first.startswith('{"issues":[{"id":0,')
        assert len(json.dumps(said.blocks)) < 800
        path = place / "issues.json"
        assert json.loads(facts)["saved_result"] == {
            "path": str(path),
            "bytes": path.stat().st_size,
        }
        assert len(json.loads(path.read_text())["issues"]) == 800
        # Again only if that is said; and the whole path leads to the same.
        run = {"server": "s", **issues}
        said = client.use("execute_tool", **run, save_to=str(path))
        assert "[save_refused]" in said.text
        assert "overwrite is not true" in said.text
        said = client.use("execute_tool", **run, save_to=str(path), overwrite=True)
        assert not said.is_error
        for bad in ("../x.json", ".vscode/tasks.json", "/tmp/x.json", "no/x.json"):
            said = client.use("execute_tool", **run, save_to=bad)
            assert said.is_error
            assert "[save_refused]" in said.text
            assert "nothing was called" in said.text
        assert files(tmp_path / "projects") == {"issues.json"}


def test_pictures_are_decoded_and_errors_are_answered(tmp_path: Path) -> None:
    place = project(tmp_path)
    settings = {"roots": [str(place)]}
    with host(tmp_path, servers=server(tmp_path), settings=settings) as client:

        def run(tool: str, save_to: str, **args: Any) -> Said:
            return client.use("execute_tool", server="s", tool=tool, args=args, save_to=save_to)

        said = run("picture", "dot.png")
        assert (place / "dot.png").read_bytes().startswith(PIXEL)
        assert said.blocks[0]["text"] == "A dot."
        assert json.loads(said.blocks[1]["text"])["saved_result"]["bytes"] > 60
        # Two of them are not saved, and the result is there.
        said = run("show", "two.png", chars=20)
        assert "[save_refused]" in said.blocks[0]["text"]
        assert "2 pictures" in said.blocks[0]["text"]
        assert [b["type"] for b in said.blocks[1:]].count("image") == 2
        said = run("issues", "bad.json", count=1, shape="error")
        assert said.is_error
        assert files(place) == {"dot.png"}
        both = client.use(
            "execute_tool", server="s", tool="picture", args={}, save_to="x", select="."
        )
        assert "[invalid_arguments]" in both.text
        read_only = client.use(
            "execute_readonly_tool", server="s", tool="picture", args={}, save_to="x"
        )
        assert "no argument 'save_to'" in read_only.text


def test_a_stored_result_is_saved_later(tmp_path: Path) -> None:
    place = project(tmp_path)
    settings = {"roots": [str(place)]}
    with host(tmp_path, servers=server(tmp_path), settings=settings) as client:
        said = client.execute("s", "tell", chars=100_000)
        uri = next(
            json.loads(block["text"])["stored_result"]["uri"]
            for block in said.blocks
            if block["text"].startswith('{"stored_result"')
        )
        saved = client.execute("emceepee", "save_result", uri=uri, path="novel.txt")
        assert json.loads(saved.blocks[-1]["text"])["saved_result"]["path"] == str(
            place / "novel.txt"
        )
        assert (place / "novel.txt").read_text() == novel(100_000)
        again = client.execute("emceepee", "save_result", uri=uri, path="novel.txt")
        assert "[save_refused]" in again.text
        wrong = client.execute("emceepee", "save_result", uri="file:///etc/passwd", path="x")
        assert "[invalid_arguments]" in wrong.text
        gone = client.execute("emceepee", "save_result", uri="emceepee://results/x", path="x")
        assert "[resource_not_found]" in gone.text
        assert files(place) == {"novel.txt"}


def test_only_what_is_shown_as_data_is_written_as_data() -> None:
    """What stands beside a text is not shown, so it is not what the file gets."""
    blob = b64encode(b"EVIL").decode()
    hidden = {"type": "text", "text": "harmless", "data": blob, "resource": {"blob": blob}}
    data, _ = file_data(Reply(content=json.dumps(hidden).encode()))
    assert data == b"harmless"
    picture = {"type": "image", "data": blob, "mimeType": "image/png"}
    embedded = {"type": "resource", "resource": {"uri": "a://b", "blob": blob}}
    for block in (picture, embedded):
        data, _ = file_data(Reply(content=json.dumps(block).encode()))
        assert data == b"EVIL"


def test_no_result_becomes_the_configuration(tmp_path: Path) -> None:
    """One that was moved away would come back as a model wants it, and start what it names."""
    place = project(tmp_path)
    config = place / "servers.json"
    settings = {"roots": [str(place)]}
    config.write_text(json.dumps({"mcpServers": server(tmp_path), "emceepee": settings}))
    with host(tmp_path, arguments=["--config", str(config)]) as client:
        client.execute("s", "issues", count=1)
        config.rename(place / "before.json")
        said = client.use(
            "execute_tool", server="s", tool="issues", args={"count": 1}, save_to="servers.json"
        )
        assert "emceepee itself reads what is there" in said.text
        assert files(place) == {"before.json"}


def test_where_the_client_gives_no_directory_nothing_is_saved(tmp_path: Path) -> None:
    """The working directory does not stand in for them, nor does a home."""
    with host(tmp_path, servers=server(tmp_path)) as client:
        said = client.use(
            "execute_tool", server="s", tool="issues", args={"count": 1}, save_to="x.json"
        )
        assert "there is no directory to save in" in said.text
    with host(tmp_path, has_roots=True, servers=server(tmp_path)) as client:
        said = bring(client, tmp_path, tool="issues", args={"count": 1}, save_to="x.json")
        assert "there is no directory to save in" in said.text
    assert "x.json" not in files(tmp_path)


async def test_a_task_saves_its_result_when_it_ends(
    tmp_path: Path,
) -> None:
    place = project(tmp_path)
    argv = [sys.executable, str(SERVERS / "large.py")]
    setting = Setting(
        home=tmp_path / "home", servers={"s": command(argv)}, more={"roots": [str(place)]}
    )
    async with proxy(setting) as client:
        await client.connected()
        began = await client.execute(
            "issues", args={"count": 3}, save_to="later.json", timeout_ms=0
        )
        await client.until_event("task_completed")
        told = await client.call("get_task_result", task_id=began.task)
        assert told.json["saved_result"]["path"] == str(place / "later.json")
    assert files(place) == {"later.json"}


async def test_over_http_nothing_is_saved(tmp_path: Path) -> None:
    place = project(tmp_path)
    settings = {"roots": [str(place)]}
    with running_front(tmp_path, servers=server(tmp_path), settings=settings) as front:
        async with session(front) as client:
            said = await client.call(
                "execute_tool", server="s", tool="issues", args={"count": 1}, save_to="x.json"
            )
            assert said["isError"]
            assert "over HTTP nothing is saved" in said["content"][0]["text"]
    assert files(place) == set()
