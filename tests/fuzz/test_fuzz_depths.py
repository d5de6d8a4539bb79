"""Nesting at every depth around the one at which a reader of JSON gives up.

Where that is depends on who calls it: what could be read at one place may be too deep to be written
at another. So every depth in a range is tried, not some.
"""

import json
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.e2e.client import Pending, Setting, server
from tests.fuzz.episodes import CALM, replay_child
from tests.fuzz.rig import running


def deepest() -> int:
    """The deepest nesting that can be read where nobody else is on the stack: in a new thread."""

    def can_read(depth: int) -> bool:
        try:
            msgspec.json.decode(b"[" * depth + b"]" * depth)
        except RecursionError:
            return False
        return True

    with ThreadPoolExecutor(max_workers=1) as fresh:
        return fresh.submit(bisect_left, range(200_000), 1, key=lambda d: not can_read(d)).result()


LIMIT = deepest()
DEPTHS = range(LIMIT - 60, LIMIT + 5)

FROM_SERVER = {
    "notification-of-arrays": b'{"jsonrpc":"2.0","method":"notifications/x%d","params":{"d":%b}}',
    "notification-of-objects": b'{"jsonrpc":"2.0","method":"notifications/x%d","params":%b}',
    "log-message": (
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"logger":"l%d","data":%b}}'
    ),
    "progress": (
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t%d","x":%b}}'
    ),
    "cancellation": (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c%d","x":%b}}'
    ),
    "acknowledgement": (
        b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged",'
        b'"params":{"y":%d,"notifications":%b}}'
    ),
    "elicitation": (
        b'{"jsonrpc":"2.0","id":"e%d","method":"elicitation/create",'
        b'"params":{"message":"m","requestedSchema":{"type":"object","properties":%b}}}'
    ),
    "sampling": (
        b'{"jsonrpc":"2.0","id":"s%d","method":"sampling/createMessage","params":{"messages":%b}}'
    ),
    "unknown-request": b'{"jsonrpc":"2.0","id":"u%d","method":"x/y","params":%b}',
    "error-to-nobody": b'{"jsonrpc":"2.0","id":"n%d","error":%b}',
}
OF_OBJECTS = {"notification-of-objects", "elicitation", "unknown-request"}


def nested(depth: int, *, objects: bool) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth if objects else b"[" * depth + b"]" * depth


@pytest.mark.parametrize("kind", FROM_SERVER)
async def test_no_depth_of_what_a_server_says_leaves_a_call_unanswered(
    tmp_path: Path, kind: str
) -> None:
    lines = [
        FROM_SERVER[kind] % (depth, nested(depth, objects=kind in OF_OBJECTS)) for depth in DEPTHS
    ]
    said = tmp_path / "said"
    said.write_bytes(b"\n".join(lines) + b"\n")
    await replay_child(said, tmp_path / "home", calls=2)


FROM_CLIENT = {
    "static": b'{"jsonrpc":"2.0","id":"d%d","method":"tools/list","params":{"x":%b}}',
    "handshake": b'{"jsonrpc":"2.0","id":"d%d","method":"initialize","params":{"capabilities":%b}}',
    "arguments": (
        b'{"jsonrpc":"2.0","id":"d%d","method":"tools/call",'
        b'"params":{"name":"list_servers","arguments":{"x":%b}}}'
    ),
    "tool-arguments": (
        b'{"jsonrpc":"2.0","id":"d%d","method":"tools/call","params":{"name":"execute_tool",'
        b'"arguments":{"server":"calm","tool":"add","args":{"a":%b,"b":1}}}}'
    ),
    "answer-to-a-question": (
        b'{"jsonrpc":"2.0","id":"d%d","method":"tools/call","params":{"name":'
        b'"respond_to_elicitation","arguments":{"request_id":"x","action":"accept","content":%b}}}'
    ),
    "meta": (
        b'{"jsonrpc":"2.0","id":"d%d","method":"resources/read",'
        b'"params":{"uri":"emceepee://status","_meta":{"x":%b}}}'
    ),
}


@pytest.mark.parametrize("kind", FROM_CLIENT)
async def test_every_request_is_answered_however_deep_it_is(tmp_path: Path, kind: str) -> None:
    setting = Setting(home=tmp_path / "home", servers={CALM: server()})
    async with running(setting, seed=kind) as client:
        await client.greet()
        await client.send(client.asking(CALM))
        await client.settle()
        waiting: list[Pending] = []
        for depth in DEPTHS:
            message = FROM_CLIENT[kind] % (depth, nested(depth, objects=True))
            method = json.loads(message.partition(b',"params"')[0] + b"}")["method"]
            pending, _ = client.prepare(method, id=f"d{depth}", modern=False)
            waiting.append(pending)
            await client.send(message + b"\n")
        for pending in waiting:
            await pending.response()
        await client.send(client.asking(CALM))
        await client.settle()
