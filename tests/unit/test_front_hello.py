import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from emceepee_stdio.front.hello import Handover, hello


@contextmanager
def said(*lines: object, end: bool = True) -> Iterator[tuple[Handover, list[Any]]]:
    """What the greeting makes of these lines, and what it answers."""
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    try:
        for line in lines:
            os.write(
                write_in, line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            )
        if end:
            os.close(write_in)
        # Read as it comes: a list of tools is more than every pipe holds.
        with ThreadPoolExecutor(1) as reader:
            answers = reader.submit(lambda: b"".join(iter(lambda: os.read(read_out, 1 << 20), b"")))
            try:
                handover = hello(read_in, write_out)
            finally:
                os.close(write_out)
        yield handover, [json.loads(line) for line in answers.result().splitlines()]
    finally:
        os.close(read_in)
        os.close(read_out)
        if not end:
            os.close(write_in)


def request(request_id: object, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def test_a_client_that_looks_and_leaves_gets_its_answers_and_nothing_is_begun() -> None:
    with said(request(0, "initialize"), request("p", "ping")) as (handover, answers):
        assert [answer["id"] for answer in answers] == [0, "p"]
        assert (handover.ended, handover.stays, handover.unread) == (True, False, b"")


@pytest.mark.parametrize("sign", [INITIALIZED, request(2, "tools/list")])
def test_a_client_that_stays_is_handed_over_with_nothing_unread(sign: dict[str, Any]) -> None:
    with said(request(1, "initialize"), sign, end=False) as (handover, answers):
        assert answers[0]["result"]["serverInfo"]["name"] == "emceepee"
        assert (handover.ended, handover.stays, handover.unread) == (False, True, b"")
        assert handover.protocol.version == "2025-11-25"


@pytest.mark.parametrize(
    "line",
    [
        request(5, "tools/call", name="x"),
        request(5, "resources/read", uri="x"),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}},
        [request(5, "ping")],
        {"id": 5, "method": "ping"},
        request(None, "ping"),
        request([], "ping"),
        request(1.5, "ping"),
        b"garbage\n",
        b'"text"\n',
    ],
)
def test_what_is_not_for_the_greeting_is_left_unread_and_in_order(line: Any) -> None:
    after = request(9, "ping")
    with said(request(1, "initialize"), line, after, end=False) as (handover, answers):
        assert [answer["id"] for answer in answers] == [1]
        assert not handover.ended
        left = handover.unread.splitlines()
        assert len(left) == 2
        assert json.loads(left[1]) == after


def test_blank_lines_mean_nothing_and_an_unfinished_line_is_kept() -> None:
    with said(b"\n\r\n", request(1, "ping"), b'{"jsonrpc"') as (handover, answers):
        assert len(answers) == 1
        assert handover.unread == b'{"jsonrpc"'


def test_refusals_are_framed_with_their_data() -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2027-01-01"}
    with said(request("x", "server/discover", _meta=meta)) as (_, answers):
        assert answers[0]["id"] == "x"
        assert answers[0]["error"]["code"] == -32022
        assert answers[0]["error"]["data"]["requested"] == "2027-01-01"
