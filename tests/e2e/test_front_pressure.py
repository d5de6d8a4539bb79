import json
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.e2e.client import Client, Pending, Setting, both_eras, proxy, server
from tests.e2e.clients.raw import INITIALIZE, PROXY, surroundings

pytestmark = [pytest.mark.real, pytest.mark.fresh]  # pipes and memory

MEGABYTE = 1 << 20
REQUESTS = 2_000


def memory(client: Client) -> int:
    """Resident bytes of the proxy."""
    status = Path(f"/proc/{client.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


async def test_a_client_that_does_not_read_is_not_read_from_and_gets_everything_later(
    tmp_path: Path,
) -> None:
    async with proxy(Setting(home=tmp_path / "home")) as client:
        listed = await client.request("tools/list")
        await client.call("list_servers")
        before = memory(client)
        client.stop_reading()
        pending: list[Pending] = []
        sent = 0

        async def ask_on() -> None:
            nonlocal sent
            for _ in range(REQUESTS):
                # Large questions, so that few of them fit into the pipe.
                one, message = client.prepare("tools/list", {"padding": "p" * 4_000})
                pending.append(one)
                await client.send(message)
                sent += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_on)
            peak, steady, last = 0, 0, -1
            while steady < 50:
                await anyio.sleep(0.01)
                steady = steady + 1 if sent == last and sent else 0
                peak, last = max(peak, memory(client)), sent
            assert sent < REQUESTS * 3 / 4, "it went on reading"
            assert peak - before < 64 * MEGABYTE
            client.read_again()
        for one in pending:
            assert (await one.result()) == listed
        await client.call("list_servers")


@both_eras
async def test_events_of_an_answer_that_was_not_read_yet_are_told_by_it_and_no_other(
    tmp_path: Path, *, modern: bool
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()}, limits={"result_bytes": 0})
    async with proxy(setting, modern=modern) as client:
        await client.connected()
        await client.drain()
        client.events.clear()
        client.stop_reading()
        pending = [
            await client.begin_execute("big", args={"bytes": 300_000}),
            await client.begin_execute("notify", args={"n": 30}),
        ]
        pending += [await client.begin_call("list_tasks") for _ in range(30)]
        client.read_again()
        for one in pending:
            await one.answer()
        await client.quiet()
        told = [e["data"]["params"]["n"] for e in client.events if e["type"] == "notification"]
        assert sorted(told) == list(range(30))


def test_calls_from_a_file_are_answered_like_those_from_a_pipe(tmp_path: Path) -> None:
    """A thread reads a file, and tells the event loop what came after the first call."""
    head = [
        {"id": 0, "method": "initialize", "params": INITIALIZE},
        {"method": "notifications/initialized"},
    ]
    padding = [{"id": f"p{n}", "method": "ping", "params": {"x": "y" * 1_000}} for n in range(200)]
    call = {"name": "list_tools", "arguments": {}}
    first, *calls = [{"id": n, "method": "tools/call", "params": call} for n in (1, 2, 3)]
    lines = [json.dumps({"jsonrpc": "2.0", **one}) for one in [*head, first, *padding, *calls]]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(lines) + "\n")
    with file.open() as stdin:
        ran = subprocess.run(
            PROXY, stdin=stdin, env=surroundings(tmp_path), capture_output=True, check=True
        )
    answers = {one["id"]: one for one in map(json.loads, ran.stdout.splitlines()) if "id" in one}
    assert len(answers) == 2 + len(padding) + len(calls)
    for number in (1, 2, 3):
        assert "isError" not in answers[number]["result"], answers[number]
    assert b"Traceback" not in ran.stderr
