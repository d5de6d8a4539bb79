"""The client that the suite starts to sign in: a real proxy with the suite's server behind it.

Usage: python -m tests.conformance.sign_in_client FRONT URL

FRONT is the era in which the proxy is spoken to, `legacy` or `modern`. The person is this program:
it opens the address that an answer or an event tells, makes its call again where the server
wanted more rights for it, and trusts the issuer that a refusal names, by configuring it.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx2

from tests.e2e.hosts import Host, Said, host

SERVER = "suite"
# What the suite knows as the document of a client.
DOCUMENT = "https://conformance-test.local/client-metadata.json"
_ADDRESS = re.compile(r"https?://[^\s\"]+[?&]code_challenge=[^\s\"]+")
_ISSUER = re.compile(r'\\?"issuer\\?": \\?"([^"\\]+)')
_LOOKS = 4  # for an event that tells the address
_MOST_VISITS = 5  # more than any honest server needs


class Person:
    """Opens addresses, each once."""

    def __init__(self, client: Host) -> None:
        self._client = client
        self._opened: set[str] = set()

    def call(self, tool: str) -> Said:
        """A call, with as many visits as it takes."""
        said = self._client.execute(SERVER, tool)
        for _ in range(_MOST_VISITS):
            if (address := self._address(said)) is None:
                return said
            self._opened.add(address)
            httpx2.get(address, follow_redirects=True, timeout=60)
            said = self._after(said, tool)
        return said

    def _address(self, said: Said) -> str | None:
        """In the answer, or told a little later as an event."""
        text = said.text
        for _ in range(_LOOKS if "[needs_sign_in]" in text else 1):
            fresh = [found for found in _ADDRESS.findall(text) if found not in self._opened]
            if fresh:
                return fresh[0]
            text = self._client.use("await_activity", timeout_ms=5_000).text
        return None

    def _after(self, said: Said, tool: str) -> Said:
        for line in said.text.splitlines():
            if line.startswith('{"proxy_task"'):
                task = json.loads(line)["proxy_task"]["task_id"]
                return self._client.use("get_task_result", task_id=task, timeout_ms=15_000)
        for _ in range(10):  # until the new token has been seen
            self._client.use("await_activity", timeout_ms=500)
            if "[needs_sign_in]" not in (said := self._client.execute(SERVER, tool)).text:
                return said
        return said


def oauth() -> dict[str, Any]:
    known = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    given = {key: known[key] for key in ("client_id", "client_secret") if key in known}
    return given or {"client_id": DOCUMENT}


def main(front: str, url: str) -> None:
    client_of_ours = oauth()
    while (issuer := visit(front, url, client_of_ours)) and "issuer" not in client_of_ours:
        client_of_ours["issuer"] = issuer


def visit(front: str, url: str, client_of_ours: dict[str, Any]) -> str | None:
    """Sign in and call; the issuer that has to be configured first, where one has to."""
    servers = {SERVER: {"url": url, "auth": "oauth", "oauth": client_of_ours}}
    with (
        tempfile.TemporaryDirectory() as place,
        host(Path(place), servers=servers, elicits=False, modern=front == "modern") as client,
    ):
        person = Person(client)
        said = person.call("test-tool")
        if named := _ISSUER.search(said.text):
            return named[1]
        if not said.is_error and "proxy_task" not in said.text:  # else it was refused, rightly
            client.use("list_tools", server=SERVER)
            person.call("test-tool")
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
