"""What a connection hears: questions and their answers, and everything else that a server says."""

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import (
    BackendEvent,
    Era,
    LogLine,
    Loss,
    Question,
    ServerNotification,
    Withdrawn,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RequestId,
    RpcError,
)
from emceepee_stdio.wire.peer import OutgoingRequest

if TYPE_CHECKING:
    from collections.abc import Callable

ASK = "elicitation/create"


class Server(Connection):
    """A connection whose other side is this test."""

    def __init__(self, proxy_id: str = "p", *, max_line: int = 1 << 20) -> None:
        self.events: list[BackendEvent] = []
        self.then: Callable[[BackendEvent], None] = lambda _: None
        self._lines: list[bytes] = []
        super().__init__("s", emit=self._take, clock=Clock(), proxy_id=proxy_id, max_line=max_line)

    def _take(self, event: BackendEvent) -> None:
        self.events.append(event)
        self.then(event)

    def _transmit(self, line: bytes, _request_id: RequestId, _request: OutgoingRequest) -> None:
        self._lines.append(line)

    def _write(self, data: bytes) -> None:
        self._lines.append(data)

    def says(self, *messages: Any, origin: RequestId | None = None) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self._peer.take(line, origin)

    def ends(self) -> None:
        self.lose(Loss(fact="s exited."))

    def written(self) -> list[Any]:
        lines, self._lines[:] = list(self._lines), []
        return [json.loads(line) for line in lines]

    def questions(self) -> list[Question]:
        return [event for event in self.events if isinstance(event, Question)]

    def noise(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, LogLine)]


def asked(request_id: RequestId, method: str = ASK, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def cancelled(request_id: RequestId) -> dict[str, Any]:
    params = {"requestId": request_id}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


# The connection holds events and scopes: it is made where a loop runs.
@pytest.fixture
async def server() -> Server:
    return Server()


async def test_a_question_is_answered_once_with_its_own_id(server: Server) -> None:
    server.says(asked("q", message="who?"), asked(0), asked("", "sampling/createMessage"))
    first, second, third = server.questions()
    assert (first.method, first.params) == (ASK, Raw(b'{"message": "who?"}'))
    assert third.method == "sampling/createMessage"
    assert server.written() == []
    assert first.respond(b'{"a":1}')
    assert not first.respond(b"{}")
    assert not first.respond(RpcError(1, "x"))
    assert second.respond(RpcError(-5, "no"))
    assert not second.respond(b"{}")
    assert third.respond(b"[]")
    assert server.written() == [
        {"jsonrpc": "2.0", "id": "q", "result": {"a": 1}},
        {"jsonrpc": "2.0", "id": 0, "error": {"code": -5, "message": "no"}},
        {"jsonrpc": "2.0", "id": "", "result": []},
    ]


async def test_a_question_shows_in_its_repr_whether_it_is_open(server: Server) -> None:
    server.says(asked(1))
    (question,) = server.questions()
    assert repr(question) == f"<Question {ASK} ('p', 1) open>"
    question.respond(b"{}")
    assert repr(question) == f"<Question {ASK} ('p', 1) closed>"


async def test_a_key_is_that_of_one_id_on_one_connection(server: Server) -> None:
    other = Server("another")
    server.says(asked(1), asked("1"))
    other.says(asked(1))
    keys = [question.key for question in (*server.questions(), *other.questions())]
    assert len(set(keys)) == 3
    again = Server()
    again.says(asked(1))
    assert again.questions()[0].key == keys[0]


async def test_a_question_that_is_taken_back_is_named_by_its_key(server: Server) -> None:
    server.says(asked(1), asked("x"), cancelled(1), cancelled("nobody"))
    first, second = server.questions()
    assert server.events[2:] == [Withdrawn(first.key), Withdrawn(("p", "nobody"))]
    assert second.respond(b"{}")
    assert [message["id"] for message in server.written()] == ["x"]


async def test_after_the_end_no_answer_is_taken(server: Server) -> None:
    server.says(asked(1), asked(2))
    server.ends()
    first, second = server.questions()
    assert not first.respond(b"{}")
    assert not second.respond(RpcError(1, "x"))
    assert server.written() == []


async def test_a_question_belongs_to_the_call_on_whose_stream_it_came(server: Server) -> None:
    call = object()
    for raised_by in (call, None):
        server.send(OutgoingRequest(method="tools/call", call=raised_by), lambda _: None)
    for origin in (1, 2, 99, None):
        server.says(asked(f"of {origin}"), origin=origin)
    assert [question.call for question in server.questions()] == [call, None, None, None]


async def test_the_ids_of_both_directions_are_apart(server: Server) -> None:
    told: list[object] = []
    server.send(OutgoingRequest(method="m"), told.append)
    server.says(asked(1))
    server.questions()[0].respond(b'"ours"')
    assert told == []
    server.says({"jsonrpc": "2.0", "id": 1, "result": "theirs"})
    assert told == [Raw(b'"theirs"')]


async def test_a_ping_is_answered_and_what_is_unknown_is_refused(server: Server) -> None:
    server.says(asked(1, "ping"), asked(2, "x/y"))
    pong, refusal = server.written()
    assert (pong["id"], pong["result"]) == (1, {})
    assert (refusal["id"], refusal["error"]["code"]) == (2, METHOD_NOT_FOUND)
    assert server.events == []


async def test_a_modern_server_asks_in_its_results_only(server: Server) -> None:
    server.era = Era.MODERN
    server.says(asked(1), asked(2, "ping"))
    refusal, pong = server.written()
    assert (refusal["id"], refusal["error"]["code"]) == (1, METHOD_NOT_FOUND)
    assert pong["result"] == {}
    assert server.events == []


async def test_a_question_that_cannot_be_handled_is_refused_and_the_next_are_read(
    server: Server,
) -> None:
    def fail(event: BackendEvent) -> None:
        if isinstance(event, Question) and event.key == ("p", 1):
            raise ZeroDivisionError

    server.then = fail
    server.says([asked(1), asked(2)])
    (refusal,) = server.written()
    assert (refusal["id"], refusal["error"]["code"]) == (1, INTERNAL_ERROR)
    assert [question.key for question in server.questions()] == [("p", 1), ("p", 2)]
    assert server.noise() == ["a request that cannot be handled: ZeroDivisionError"]


async def test_a_notification_is_passed_on_as_it_came(server: Server) -> None:
    server.says(b'{"jsonrpc":"2.0","method":"n","params":{"a" : 1}}')
    server.says({"jsonrpc": "2.0", "method": "n"})
    assert server.events == [
        ServerNotification("n", Raw(b'{"a" : 1}')),
        ServerNotification("n", None),
    ]


async def test_what_is_no_message_is_a_line_of_its_log(server: Server) -> None:
    server.says(b"SubscriptionStream on port 80", {"jsonrpc": "2.0", "id": 7, "result": {}})
    assert server.noise() == [
        "SubscriptionStream on port 80",
        "an answer that nobody waits for: id 7",
    ]
    assert server.written() == []


async def test_only_what_has_an_id_is_complained_about(server: Server) -> None:
    server.says(b'{"id":7,"method":5}', b'{"id":null,"method":"m"}')
    (complaint,) = server.written()
    assert (complaint["id"], complaint["error"]["code"]) == (7, INVALID_REQUEST)
    assert len(server.noise()) == 2
