"""Bodies of HTTP requests: read whole, within their limit."""

from collections import Counter
from collections.abc import Iterator, MutableMapping
from typing import Any

import anyio
import pytest

from emceepee_stdio.front.http.http_exchange import HeldBytes, HttpExchange
from emceepee_stdio.front.http.http_replies import HttpLimits, HttpRefusal

LIMITS = HttpLimits(body_bytes=100)


class Upload:
    """A client that sends parts of 30 bytes."""

    def __init__(self, parts: int) -> None:
        self.left = parts
        self._parts = self._messages()

    def _messages(self) -> Iterator[dict[str, Any]]:
        while self.left:
            self.left -= 1
            yield {"type": "http.request", "body": b"x" * 30, "more_body": bool(self.left)}

    async def receive(self) -> dict[str, Any]:
        return next(self._parts)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        raise AssertionError(message)


async def body(upload: Upload) -> bytes:
    exchange = HttpExchange(upload.receive, upload.send, anyio.Event())
    return await exchange.body(HeldBytes(Counter(), "o", 1_000), LIMITS)


async def test_a_body_within_the_limit_is_read_whole() -> None:
    assert await body(Upload(3)) == b"x" * 90


async def test_what_is_a_little_too_large_is_read_to_its_end_so_that_the_answer_arrives() -> None:
    upload = Upload(5)
    with pytest.raises(HttpRefusal) as refused:
        await body(upload)
    assert refused.value.reply.status == 413
    assert upload.left == 0


async def test_what_has_no_end_is_refused_before_it() -> None:
    upload = Upload(1_000)
    with pytest.raises(HttpRefusal) as refused:
        await body(upload)
    assert refused.value.reply.status == 413
    assert 1_000 - upload.left == 14
