"""What the client reads: the size of tools/list, and finding a tool among twelve hundred."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.client import Client, call
from bench.figures import Section, Table, at_most, percentiles
from bench.ways import OURS, Way
from tests.e2e.servers.catalogue import servers as catalogue

_MANY = Path(__file__).resolve().parent.parent / "tests" / "e2e" / "servers" / "many.py"


def surface(_ways: Sequence[Way], *, quick: bool) -> Section:
    servers = {name: [sys.executable, str(_MANY), name] for name in catalogue()}
    questions = {
        "the first page": call("list_tools"),
        "a query": call("list_tools", query="send an email to the team"),
        "a pattern": call("list_tools", tool="^get_", detail="names", limit=500),
    }
    columns: dict[str, dict[str, float]] = {}
    with OURS.start(servers) as client:
        listed = len(client.open()) - len(b'{"jsonrpc":"2.0","id":2,"result":}')
        first = _until_all(client, sum(len(tools) for tools in catalogue().values()))
        for name, question in questions.items():
            took = [client.once(question) for _ in range(10 if quick else 60)]
            found = percentiles(took)
            found["answer_bytes"] = len(client.answered(question))
            columns[name] = found
    title = f"list_tools over {len(servers)} servers, {sum(map(len, catalogue().values())):,} tools"
    return Section(
        tables=[Table(title=title, columns=columns)],
        checks=[at_most("size of tools/list", listed / 1000, 20, "KB")],
        data={**columns, "tools_list_bytes": listed, "connect_and_list_ms": first * 1000},
    )


def _until_all(client: Client, tools: int) -> float:
    """How long it took until every server had been started and had told its tools."""
    begin = time.perf_counter()
    while f'\\"total\\":{tools}' not in client.answered(call("list_tools")).decode():
        time.sleep(0.1)
    return time.perf_counter() - begin
