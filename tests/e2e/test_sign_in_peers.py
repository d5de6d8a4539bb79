"""Signing in at an authorization server of somebody else: `simple-auth`, an example of the mcp SDK.

It registers clients with a secret, shows a form for name and password, and gives no refresh token.
"""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.e2e.client import Setting, both_backends, proxy
from tests.e2e.harness import free_port
from tests.peers import SERVERS, sdk_source

pytestmark = pytest.mark.slow


@asynccontextmanager
async def simple_auth() -> AsyncIterator[str]:
    """Both servers; the address of the one that wants a token."""
    source = sdk_source() / "examples" / "servers" / "simple-auth"
    own, issuer = free_port(), free_port()
    where = f"http://localhost:{issuer}"
    run = [sys.executable, str(SERVERS / "simple_auth.py"), str(source)]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    async with (
        await anyio.open_process([*run, "auth_server", "--port", str(issuer)], **quiet) as first,
        await anyio.open_process(
            [*run, "server", "--port", str(own), "--auth-server", where, "--oauth-strict"], **quiet
        ) as second,
    ):
        try:
            for port in (issuer, own):
                await listening(port)
            yield f"http://localhost:{own}/mcp"
        finally:
            for process in (first, second):
                process.kill()


async def listening(port: int) -> None:
    """It says so to nobody."""
    with anyio.fail_after(60):
        while True:
            try:
                await (await anyio.connect_tcp("localhost", port)).aclose()
            except OSError:
                await anyio.sleep(0.05)
            else:
                return


async def filled_in(url: str) -> str:
    """Sign in as the person that the example knows; the last page."""
    async with httpx2.AsyncClient(follow_redirects=True, timeout=60) as browser:
        form = (await browser.get(url)).text
        action = re.search(r'action="([^"]+)"', form)
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        assert action is not None
        return (await browser.post(action[1], data=fields)).text


@both_backends
async def test_a_person_signs_in_at_an_authorization_server_of_somebody_else(
    tmp_path: Path, era: str
) -> None:
    async with simple_auth() as url:
        setting = Setting(home=tmp_path / "home", servers={"s": {"url": url, "era": era}})
        async with proxy(setting) as client:
            answer = await client.execute("get_time")
            page = await filled_in(answer.text.partition("open ")[2].split(" ")[0])
            assert "Signed in to s" in page
            result = await client.call("get_task_result", task_id=answer.task, timeout_ms=20_000)
            assert '"current_time"' in result.text, result
            found = (await client.call("list_servers", name="s")).json["servers"][0]
            assert found["era"] == era
        async with proxy(setting) as client:  # the next start needs nobody
            assert '"current_time"' in (await client.execute("get_time")).text
