"""Tools with which a server harms its client and whoever else is served by it (`--hostile`)."""

import subprocess
import sys
from pathlib import Path

import rpc
from calls import Call, Tool
from rpc import Message, text


def ping(_: Call, *, n: int, size: int = 0) -> Message:
    """Ping the client n times in messages of that size; nobody waits for the answers."""
    for i in range(n):
        params = {"filler": "a" * size}
        rpc.write(rpc.frame({"id": f"ping-{i}", "method": "ping", "params": params}))
    return text(f"{n} pinged")


def hold_answers(call: Call, *, n: int) -> Message:
    """Ping the client n times; behind a URL none of its answers is taken from now on."""
    call.server.holds_answers = True
    return ping(call, n=n)


def blank_lines(_: Call, *, n: int, packed: bool = False) -> Message:  # noqa: ARG001 - plain_http sees to it
    """Write n empty lines. Behind a URL, if `packed`, they are the answer, compressed twice."""
    rpc.write(b"\n" * n)
    return text(f"{n} written")


def hide(_: Call, *, where: str, how: list) -> Message:
    """Start a descendant that hides in these ways (see `descendant`)."""
    script = Path(__file__).with_name("descendant.py")
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen([sys.executable, str(script), where, *how], **quiet)
    return text("started")


TOOLS = [Tool(function) for function in (ping, hold_answers, blank_lines, hide)]
