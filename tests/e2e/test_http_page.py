"""The examples of the page on HTTP: a conversation with curl, and a page reloaded in a call."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.clients.raw import ROOT, WAIT_S, entry
from tests.e2e.front_harness import http_client, running_front
from tests.peers import PeerMissingError, node_modules, plain


async def test_the_conversation_with_curl_works_as_the_page_has_it(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        raise PeerMissingError("curl")
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    (script,) = re.findall(r"^```sh\n(url=.*?)^```", page, re.MULTILINE | re.DOTALL)
    with running_front(tmp_path) as front:
        script = script.replace("http://127.0.0.1:8080/mcp", front.url)
        script = script.replace("~/.local/state/emceepee", str(tmp_path / "state"))
        with anyio.fail_after(WAIT_S):
            done = await anyio.run_process(["/bin/sh", "-c", script], cwd=tmp_path)
            front.look()
            async with http_client(front) as client:
                metrics = f"{front.base}/metrics"
                while "emceepee_sessions 0\n" not in (
                    said := (await client.http.get(metrics, headers=front.authorization)).text
                ):
                    await anyio.sleep(0.02)
    assert done.stderr == b""
    assert "emceepee_sessions_begun_total 1\n" in said
    hello = json.loads((tmp_path / "answer.json").read_text())
    assert hello["result"]["protocolVersion"] == "2025-11-25"
    (shown,) = re.findall(r"^```text\n(id: .*?)^```", page, re.MULTILINE | re.DOTALL)
    assert done.stdout.decode().strip() == shown.strip()


@pytest.mark.parametrize("sdk", [1, 2])
async def test_a_page_that_is_reloaded_during_a_call_gets_its_answer(
    tmp_path: Path, sdk: int
) -> None:
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("node")
    script = Path(__file__).with_name("clients") / "reload.mjs"
    received = tmp_path / "received-plain.jsonl"
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    with running_front(tmp_path, servers=servers) as front:
        plan: dict[str, Any] = {"url": front.url, "headers": front.authorization, "sdk": sdk}
        plan["modules"] = str(node_modules())
        with anyio.fail_after(WAIT_S):
            done = await anyio.run_process([node, str(script), json.dumps(plan)])
            before = json.loads(done.stdout)
            assert "text" not in before
            plan["kept"] = before["keep"]
            done = await anyio.run_process([node, str(script), json.dumps(plan)])
        front.look()
    after = json.loads(done.stdout)
    assert after["text"] == "5 steps"
    assert after["keep"]["session"] == before["keep"]["session"]
    assert received.read_text().count('"tools/call"') == 1
