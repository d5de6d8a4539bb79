"""A desktop for a proxy: a browser that notes what it is to open, and a person who goes there."""

import http.client
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.clients.raw import until

WAIT_S = 20.0
_NOTE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + chr(10))"


class Desktop:
    """What a proxy needs to find one; `opened` are the addresses that its browser was given."""

    def __init__(self, place: Path) -> None:
        self._notes = place / "opened"
        place.mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        command = [sys.executable, "-c", _NOTE, str(self._notes)]
        return {"DISPLAY": ":none", "BROWSER": shlex.join(command), "EMCEEPEE_PAGE": ""}

    def sandboxed(self) -> dict[str, str]:
        """The same with a browser that stands where those of a sandbox do."""
        program = self._notes.parent / "browser"
        quoted = shlex.join([sys.executable, "-c", _NOTE, str(self._notes)])
        program.write_text(f'#!/bin/sh\nexec {quoted} "$1"\n')
        program.chmod(0o755)
        return {**self.env, "BROWSER": str(program)}

    @property
    def opened(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def until_opened(self, count: int = 1) -> str:
        until(lambda: len(self.opened) >= count, "a browser")
        return self.opened[count - 1]


class Visit:
    """One browser at the page, as far as it speaks HTTP."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.token = ""
        target = address
        if address.startswith("file:"):
            page = Path(urlsplit(address).path).read_text()
            found = re.search(r'action="([^"]+)"', page)
            hidden = re.search(r'name="token" value="([^"]+)"', page)
            assert found, page
            assert hidden, page
            target, self.token = found[1], hidden[1]
        parts = urlsplit(target)
        assert parts.port
        self.port = parts.port
        self.origin = f"http://127.0.0.1:{self.port}"
        self.query = parts.query
        self.path = self.cookie = ""

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(connection):
            connection.request(method, path, body=body, headers=named)
            answer = connection.getresponse()
            got = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, got, answer.read()

    def knock(self) -> tuple[int, dict[str, str], bytes]:
        """Bring the token, as the file or the address does it."""
        if self.token:
            form = {"content_type": "application/x-www-form-urlencoded", "origin": "null"}
            return self.request("POST", "/open", f"token={self.token}".encode(), **form)
        return self.request("GET", f"/open?{self.query}")

    def enter(self) -> "Visit":
        status, headers, body = self.knock()
        assert status == 200, body
        self.cookie, _, rest = headers["set-cookie"].partition("; ")
        self.path = dict(part.split("=") for part in rest.split("; ") if "=" in part)["Path"]
        return self

    def states(self) -> Iterator[Mapping[str, Any]]:
        """What the page is sent; None once it is over."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        with closing(connection):
            connection.request("GET", f"{self.path}events", headers={"cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def waiting(self, count: int = 1) -> list[Mapping[str, Any]]:
        """Once so many are there."""
        for state in self.states():
            if len(state.get("waiting", ())) >= count:
                return state["waiting"]
        raise AssertionError("the page is over")

    def post(
        self, item: str, answer: str, content: Mapping[str, Any] | None = None, **headers: str
    ) -> tuple[int, str]:
        more = {} if content is None else {"content": content}
        body = json.dumps({"id": item, "answer": answer, **more}).encode()
        given = {"content_type": "application/json", "origin": self.origin, "cookie": self.cookie}
        status, _, said = self.request("POST", f"{self.path}answer", body, **(given | headers))
        return status, said.decode()

    def reply(self, item: str, content: Mapping[str, Any]) -> None:
        """To a question of a server."""
        self.answer(item, "reply", content)

    def answer(self, item: str, answer: str, content: Mapping[str, Any] | None = None) -> None:
        """As a person who has read it."""
        said: list[tuple[int, str]] = []

        def is_taken() -> bool:
            said.append(self.post(item, answer, content))
            return "Read it first" not in said[-1][1]

        until(is_taken, "the answer to be taken")
        assert said[-1][0] == 200, said
