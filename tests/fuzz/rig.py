"""The proxy under fire: the real process, and a client that knows which answers are its own.

Requests made through the client are judged as in the end-to-end tests. Answers to the garbage that
was sent beside them must be valid messages, whatever they say.
"""

import itertools
import json
import random
import re
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from mcp_types import jsonrpc_message_adapter

from tests.e2e.client import WAIT_S, Answer, Client, Message, Pending, Setting
from tests.proxy_entry import proxy_command

MEGABYTE = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
REMEMBERED = 200
_ID = re.compile(rb'"id":\s*("(?:[^"\\]|\\.)*"|-?\d+)')
COMPLAINT: Message = {
    "jsonrpc": "2.0",
    "error": {"code": -32700, "message": "Invalid message: Parse error"},
}


class Wild(Client):
    """Sends anything; `ask` makes a call whose answer must hold its own token."""

    def __init__(self, *args: Any, seed: int | str, **how: Any) -> None:
        super().__init__(*args, **how)
        self.random = random.Random(f"client {seed}")
        self.stderr = bytearray()
        self.sent: deque[bytes] = deque(maxlen=REMEMBERED)
        self.complained = 0
        self.foreign = 0
        self.answered = 0
        self.failed = 0
        self.lenient = False  # blocks of other calls than those of `asking` are not judged
        self._foreign_ids: dict[str, set[type]] = {}
        self._tokens = itertools.count(1)
        self._asked: list[tuple[Pending, str, bool]] = []

    async def send(self, *messages: object) -> None:
        lines = [m if isinstance(m, bytes) else json.dumps(m).encode() + b"\n" for m in messages]
        self.sent.extend(lines)
        with anyio.fail_after(WAIT_S):
            await super().send(*lines)

    def expect(self, data: bytes) -> None:
        """What is sent next may hold requests: their answers must repeat the ids as they are."""
        for line in data.split(b"\n"):
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                # A complaint may name the id of a line that is broken elsewhere.
                for token in _ID.findall(line):
                    with suppress(ValueError):
                        self._expect_id(json.loads(token))
            else:
                for part in message if isinstance(message, list) else [message]:
                    if isinstance(part, dict):
                        self._expect_id(part.get("id"))

    def _expect_id(self, request_id: object) -> None:
        if isinstance(request_id, int | str):
            self._foreign_ids.setdefault(str(request_id), set()).add(type(request_id))

    def asking(self, server: str, *, may_fail: bool = False, **more: Any) -> Message:
        """An echo of a word that nobody else says, in either era, to be sent by the caller."""
        word = f"word-{next(self._tokens)}-{self.random.randrange(1 << 40):x}"
        arguments = {"server": server, "tool": "echo", "args": {"message": word}, **more}
        pending, message = self.prepare(
            "tools/call",
            {"name": "execute_tool", "arguments": arguments},
            id=f"ours-{word}",
            token=self.random.choice((None, f"token-{word}")),
            modern=self.modern or self.random.random() < 0.3,
        )
        self._asked.append((pending, word, may_fail))
        return message

    async def settle(self, *, leave: int = 0) -> None:
        """Every call but the last few is answered, each by its own word."""
        while len(self._asked) > leave:
            pending, word, may_fail = self._asked[0]
            answer = await self.final(await pending.answer())
            del self._asked[0]
            self.answered += 1
            shown = json.dumps(answer.blocks)
            others = [other for _, other, _ in self._asked if other in shown]
            assert not others, f"{word} was answered with {others}: {answer}"
            if not may_fail:
                assert not answer.is_error, f"{word}: {answer}"
                assert answer.blocks[0].get("text") == word, f"{word}: {answer}"
            elif answer.is_error:
                self.failed += 1
                assert answer.text, f"{word}: an error without words: {answer}"

    async def final(self, answer: Answer, *, timeout_ms: int = 5_000) -> Answer:
        """A call that became a task, because its server asked something, is followed."""
        if answer.is_error or "proxy_task" not in json.dumps(answer.blocks[-1:]):
            return answer
        task = answer.task
        for _ in range(50):
            answer = await self.call("get_task_result", task_id=task, timeout_ms=timeout_ms)
            if answer.is_error or not answer.text.startswith("No result yet"):
                return answer
            # Garbage may be a question, and the call may have to wait for its answer.
            for question in answer.json["pending_elicitations_for_server"]:
                asked = question["request_id"]
                await self.call("respond_to_elicitation", request_id=asked, action="decline")
        raise AssertionError(f"the task does not end: {answer}")

    def _take(self, message: Message) -> None:
        if message == COMPLAINT:
            self.complained += 1
            return
        # What cannot be read has no id that could be named in the complaint.
        known = message if "method" in message else {"id": 0, **message}
        jsonrpc_message_adapter.validate_python(known)
        json.dumps(message, ensure_ascii=False).encode()
        super()._take(message)

    def _take_response(self, message: Message) -> None:
        assert isinstance(message["id"], int | str)
        assert not isinstance(message["id"], bool)
        assert ("result" in message) != ("error" in message)
        if message["id"] in self._pending:
            super()._take_response(message)
        else:
            self.foreign += 1
            known = self._foreign_ids.get(str(message["id"]))
            assert known is None or type(message["id"]) in known, f"another id: {message}"

    def _judge(self, pending: Pending, result: Message) -> None:
        """The blocks of a result are passed on as they came, also by a server that is broken."""
        may_be_odd = [may_fail for asked, _, may_fail in self._asked if asked is pending]
        if not any(may_be_odd or [self.lenient]):
            super()._judge(pending, result)
        assert pending.method != "tools/call" or isinstance(result["content"], list)

    def _take_notification(self, message: Message) -> None:
        """Garbage may hold a valid request with a token of its own."""
        params = message.get("params") or {}
        token = params.get("progressToken", "")
        if message["method"] != "notifications/progress" or str(token).startswith("token-"):
            super()._take_notification(message)


def _status(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def memory(client: Client) -> int:
    """Resident bytes of the proxy."""
    return _status(client.process.pid, "VmRSS")


def peak_memory(client: Client) -> int:
    """The most that it ever had."""
    return _status(client.process.pid, "VmHWM")


@asynccontextmanager
async def running(
    setting: Setting, *, seed: int | str, modern: bool = False
) -> AsyncIterator[Wild]:
    """The proxy, not greeted yet; at the end it must leave well and have seen no bug of its own."""
    setting.write()
    process = await anyio.open_process(
        [*proxy_command(setting.fixed), "serve", "--config", setting.config],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=setting.home,
        env=setting.environ() | {"PYTHONPATH": str(ROOT)},
    )
    client = Wild(process, setting.home, modern=modern, seed=seed)
    # What is nested as deep as the proxy can read must not be too deep for us.
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * usual)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.listen)
            tasks.start_soon(client.listen_to_stderr)
            try:
                yield client
                assert process.returncode is None, f"it ended by itself: {process.returncode}"
            except BaseException as error:
                setting.home.with_suffix(".sent").write_bytes(b"".join(client.sent))
                if client.failure is not None:
                    error.add_note(f"what it wrote: {client.failure!r}")
                error.add_note(client.stderr.decode(errors="replace").partition("Traceback")[2])
                with suppress(ProcessLookupError):
                    process.kill()
                raise
            assert process.stdin is not None
            await process.stdin.aclose()
            with anyio.fail_after(WAIT_S):
                assert await process.wait() == 0, client.stderr.decode(errors="replace")
    finally:
        sys.setrecursionlimit(usual)
        with anyio.CancelScope(shield=True):
            await process.aclose()
    client.check()
    logs = [path.read_bytes() for path in (setting.home / "logs").glob("emceepee-*.jsonl")]
    lines = [json.loads(line) for log in logs for line in log.split(b"\n") if line]
    bugs = [line for line in lines if line["event"] == "unexpected_error"]
    assert not bugs, bugs[:3]
    assert setting.left_over() == []
