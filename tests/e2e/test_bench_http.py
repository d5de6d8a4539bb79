"""What the benchmark over HTTP counts as a call."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bench.client import Failed, call
from bench.http_client import HttpClient
from bench.http_ways import DirectHttp, OurFront, Served


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def opened(served: Served) -> HttpClient:
    client = HttpClient(served.url, served.headers)
    client.open()
    return client


def test_the_same_client_calls_a_server_and_the_front_before_it(stack: ExitStack) -> None:
    for way in (DirectHttp(), OurFront()):
        client = opened(way.start(stack))
        took, all_of_it = client.loaded(way.call(), 10, 4)
        assert len(took) == 10
        assert 0 < min(took) <= max(took) <= all_of_it


def test_a_refusal_is_never_counted_as_a_call(stack: ExitStack) -> None:
    served = OurFront().start(stack)
    client = opened(served)
    with pytest.raises(Failed, match="the call failed"):
        client.once(call("nothing"))
    with pytest.raises(Failed, match=" 401 "):
        HttpClient(served.url, {}).open()
