"""A model on loopback that says what a test wrote, and keeps every request that it was sent.

It is the proxy of its host, too, and refuses every other place: a host reaches nothing but this.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.real_hosts.dialects import Dialect, Message, Reply, Turn, events

Step = Reply | Callable[[Turn], Reply]
DONE = "done"
BYTES_PER_TOKEN = 2  # of a text that is no English prose: logs, code, Japanese


class ModelApi(ThreadingHTTPServer):
    """Answers one turn after the other with the steps, and then that it is done."""

    def __init__(self, dialect: Dialect, steps: Sequence[Step]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dialect = dialect
        self.steps = steps
        self.turns: list[Turn] = []
        self.refused: list[str] = []
        self.fault: Exception | None = None  # of a step, or of our own
        self._one_at_a_time = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reply(self, body: Message) -> bytes:
        with self._one_at_a_time:
            if not self.dialect.is_turn(body):
                return events(self.dialect.write(0, DONE, body))
            try:
                return self._turn(body)
            except Exception as fault:  # noqa: BLE001 - the test shows it
                self.fault = fault
                return events(self.dialect.write(0, DONE, body))

    def _turn(self, body: Message) -> bytes:
        turn, number = self.dialect.read(body), len(self.turns)
        self.turns.append(turn)
        step = self.steps[number] if number < len(self.steps) else DONE
        said = step(turn) if callable(step) else step
        return events(self.dialect.write(number + 1, said, body))


class _Handler(BaseHTTPRequestHandler):
    server: ModelApi
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.partition("?")[0] == self.server.dialect.path:
            self._send(200, self.server.reply(json.loads(body)))
        elif self.path.partition("?")[0] == f"{self.server.dialect.path}/count_tokens":
            tokens = len(body) // BYTES_PER_TOKEN
            self._send(200, json.dumps({"input_tokens": tokens}).encode())
        else:
            self._refuse()

    def do_GET(self) -> None:
        self._refuse()

    def _refuse(self) -> None:
        if not self.path.startswith("/"):
            self.server.refused.append(self.path)
        self._send(404, b"{}")

    do_CONNECT = do_HEAD = do_GET  # noqa: N815 - the names that the base class looks for

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        kind = "text/event-stream" if body.startswith((b"event:", b"data:")) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing on stderr."""


@contextmanager
def model_api(dialect: Dialect, steps: Sequence[Step]) -> Iterator[ModelApi]:
    """It listens while the block runs."""
    with ModelApi(dialect, steps) as api:
        thread = threading.Thread(target=api.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()
        if api.fault:
            raise api.fault
