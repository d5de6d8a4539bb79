"""The parts that wait for nothing, under the same garbage and without processes: fast and many."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from emceepee_stdio.backends.channels.event_stream import EventStream
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import CallFailed
from emceepee_stdio.front import hello
from emceepee_stdio.front.front import Front
from emceepee_stdio.front.protocol import Protocol, Refused
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import (
    Journal,
    PrivateKeyLines,
    Secrets,
    given_secrets,
    redact_text,
)
from emceepee_stdio.redaction.redact import MARKER
from emceepee_stdio.session.reply import MARK, Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Environment
from emceepee_stdio.visible_text import harmless_json, spelled_out
from emceepee_stdio.wire.codec import Malformed, Notification, Request, RequestId
from emceepee_stdio.wire.peer import Outcome, OutgoingRequest, Peer, method_not_found
from tests.fuzz.mutate import Mutator, load, names_a_number_between

SEEDS = st.integers(0, 2**32)
CUTS = st.lists(st.integers(0, 1 << 20), max_size=12)
CLIENT, SERVER, FIELDS = load("client"), load("server"), load("sse")
IMPOSTOR = load("impostor")
OUR_KEYS = ("events_since_last_response", "pending_client_action", "proxy_task", "stored_result")
# The same examples in every run: a run that fails fails again.
MORE = settings(max_examples=100, deadline=None, derandomize=True)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in pairwise([0, *places, len(data)])]


def garbage(seeds: list[bytes], seed: int, count: int = 8) -> list[bytes]:
    mutator = Mutator(seeds, seed=seed)
    return [mutator.line() for _ in range(count)]


class Side:
    """A peer that refuses every request, complains about what is malformed, and keeps a record."""

    def __init__(self, *, strict: bool, max_line: int = 64 << 20) -> None:
        self.record: list[Any] = []
        self.peer = Peer(handler=self, write=self._write, strict=strict, max_line=max_line)
        self.ends: dict[RequestId, list[Outcome]] = {}

    def ask(self) -> RequestId:
        ends: list[Outcome] = []
        request = OutgoingRequest(method="tools/call", deadline=1e9)
        request_id = self.peer.expect(request, ends.append)
        assert request_id is not None
        self.ends[request_id] = ends
        return request_id

    def _write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        message = json.loads(data.decode(), parse_constant=pytest.fail)
        json.dumps(message, ensure_ascii=False).encode()
        self.record.append(("wrote", data))

    def on_request(self, request: Request, origin: RequestId | None) -> None:
        assert origin is None
        self.record.append(("request", request.id, request.method, _bytes(request.params)))
        assert self.peer.answer(request.id, method_not_found(request.method))
        answer = json.loads(self.record[-1][1])
        assert answer["id"] == request.id
        assert type(answer["id"]) is type(request.id)

    def on_failed(self, request: Request, error: Exception) -> None:
        raise AssertionError(f"{request} could not be handled") from error

    def on_notification(self, notification: Notification) -> None:
        self.record.append(("notification", notification.method, _bytes(notification.params)))

    def on_cancelled(self, request_id: RequestId) -> None:
        self.record.append(("cancelled", request_id))

    def on_malformed(self, message: Malformed) -> None:
        self.record.append(("malformed", message))
        self.peer.complain(message)

    def on_noise(self, text: str) -> None:
        self.record.append(("noise", text))

    def on_stray(self, request_id: str) -> None:
        self.record.append(("stray", request_id))

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        raise AssertionError(f"nobody gave up {request_id}: {method}, {reason}")


def _bytes(params: Raw | None) -> bytes | None:
    return None if params is None else bytes(params)


@MORE
@given(seed=SEEDS, cuts=CUTS, strict=st.booleans(), bound=st.sampled_from([64 << 20, 500]))
def test_garbage_means_the_same_in_whatever_pieces_it_comes(
    seed: int,
    cuts: list[int],
    strict: bool,  # noqa: FBT001 - hypothesis names it
    bound: int,
) -> None:
    data = b"".join(garbage(CLIENT if strict else SERVER, seed))
    whole, cut = Side(strict=strict, max_line=bound), Side(strict=strict, max_line=bound)
    whole.peer.feed(data)
    for piece in pieces(data, cuts):
        cut.peer.feed(piece)
    for side in (whole, cut):
        side.peer.end()
    assert cut.record == whole.record


@pytest.mark.parametrize("name", [b"method", b"result"])
def test_an_id_that_is_no_utf_8_is_no_id_in_a_line_over_the_bound(name: bytes) -> None:
    side = Side(strict=False, max_line=100)
    ends = side.ends[side.ask()]
    side.peer.feed(b'{"jsonrpc":"2.0","id":"\xff","%b":"%b"}\n' % (name, b"x" * 200))
    side.peer.feed(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    assert len(ends) == 1


@MORE
@given(seed=SEEDS, cuts=CUTS, count=st.integers(1, 8))
def test_amid_garbage_every_answer_goes_to_its_own_request_once(
    seed: int, cuts: list[int], count: int
) -> None:
    side = Side(strict=False)
    asked = [side.ask() for _ in range(count)]
    mutator = Mutator(SERVER, seed=seed)
    answers = [b'{"jsonrpc":"2.0","id":%d,"result":{"of":%d}}\n' % (i, i) for i in asked]
    again = [line.replace(b'"of"', b'"late"') for line in answers]
    mutator.random.shuffle(answers)
    said: list[bytes] = []
    for answer in answers:
        lines = [mutator.line() for _ in range(3)]
        said += [line for line in lines if not names_a_number_between(line, 1, count)]
        said.append(answer)
        said += [line for line in again if line.replace(b'"late"', b'"of"') in said]
    for piece in pieces(b"".join(said), cuts):
        side.peer.feed(piece)
    for request_id, ends in side.ends.items():
        assert [json.loads(bytes(cast("Raw", end))) for end in ends] == [{"of": request_id}]
    assert side.peer.statistics().sent == 0


@MORE
@given(seed=SEEDS, cuts=CUTS, bound=st.sampled_from([100, 1 << 20]))
def test_a_garbled_stream_of_events_reads_the_same_in_whatever_pieces_it_comes(
    seed: int, cuts: list[int], bound: int
) -> None:
    mutator = Mutator(FIELDS + SERVER[:30], seed=seed)
    random = mutator.random
    lines = [
        random.choice((b"", b"data: ")) + mutator.line() + random.choice((b"", b"", b"\n", b"\r\r"))
        for _ in range(12)
    ]
    data = b"".join(lines).replace(b"\n", random.choice((b"\n", b"\r\n"))) + b"\n\ndata: last\n\n"
    whole, cut = EventStream(max_bytes=bound), EventStream(max_bytes=bound)
    events = whole.feed(data)
    # Between the two halves of a line end is where a cut matters most.
    cuts = cuts + [match.end() for match in re.finditer(b"\r", data)][:20]
    in_pieces = [event for piece in pieces(data, cuts) for event in cut.feed(piece)]
    assert in_pieces == events
    assert (cut.last_id, cut.retry) == (whole.last_id, whole.retry)
    assert events[-1].data == b"last"


@MORE
@given(seed=SEEDS, secret=st.text(min_size=6, max_size=30))
def test_garbage_is_shown_without_what_is_secret_and_without_what_steers(
    seed: int, secret: str
) -> None:
    known, keys = Secrets(), PrivateKeyLines()
    known.add(given_secrets(env={"TOKEN": secret}, url=f"https://h/token/{secret}?key={secret}"))
    for line in garbage(SERVER, seed):
        text = line.decode(errors="replace")
        hidden = redact_text(known.mask(keys.hide(f"{text}{secret}{text}")))
        assert secret in text or secret in MARKER or secret not in hidden
        assert spelled_out(text).isprintable()
        assert json.loads(harmless_json(json.dumps(text, ensure_ascii=False))) == text


# What a server says that could be taken for ours


@MORE
@given(seed=SEEDS)
def test_no_damage_to_a_block_that_looks_like_ours_makes_it_one(seed: int) -> None:
    for line in garbage(IMPOSTOR, seed):
        try:
            json.loads(line.decode())  # the wire takes nothing else for an answer
            reply = Reply.result(Raw(line.strip()), server="s")
            shown = [(block, json.dumps(block)) for block in json.loads(b"[%b]" % reply.content)]
        except (ValueError, RecursionError, CallFailed):
            continue
        before: object = None
        for block, whole in shown:
            text = block.get("text")
            if any(key in whole for key in OUR_KEYS):
                said = text if block["type"] == "text" and isinstance(text, str) else before
                assert str(said).startswith(MARK), line
            before = text


# The greeting and the front behind it


class _NoTasks:
    """The front starts nothing for what it answers by itself."""

    def start_soon(self, *_: object) -> None:
        return None


@contextmanager
def front(directory: Path) -> Iterator[tuple[Front, list[bytes]]]:
    clock = Clock()
    ids = Ids(clock)
    journal = Journal.open(directory=directory, session=ids(), clock=clock, stderr=None)
    environment = Environment(
        environ={}, cwd=directory, home=directory, trust=directory, uniform=lambda low, _high: low
    )
    runtime = Runtime(Config(), clock=clock, ids=ids, journal=journal, environment=environment)
    written: list[bytes] = []
    try:
        tasks = cast("Any", _NoTasks())
        made = Front(runtime, Protocol(), tasks=tasks, write=written.append, queued=lambda: 0)
        yield made, written
    finally:
        journal.close()


@settings(MORE, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=SEEDS)
def test_the_greeting_answers_as_the_front_would(tmp_path: Path, seed: int) -> None:
    with front(tmp_path) as (behind, written):
        protocol = Protocol()
        protocol.word = behind._protocol.word
        for line in b"".join(garbage(CLIENT, seed)).split(b"\n"):
            answer = hello._answer(protocol, line)
            if answer is None or not answer[0]:
                continue
            written.clear()
            behind.peer.feed(line + b"\n")
            (theirs,), ours = [json.loads(said) for said in written], json.loads(answer[0])
            json.dumps(ours, ensure_ascii=False).encode()
            assert ours.get("id") == theirs.get("id"), line
            assert ours.get("method") == theirs.get("method"), line
            # Which of several faults is named does not matter.
            assert ours.get("result") == theirs.get("result"), line


@MORE
@given(seed=SEEDS)
def test_the_protocol_answers_anything_that_is_json(seed: int) -> None:
    protocol = Protocol()
    for line in b"".join(garbage(CLIENT, seed)).split(b"\n"):
        message = hello._read(line)
        params = message.get("params") if message else None
        if message is None or not isinstance(params, dict):
            continue
        answer = protocol.answer(str(message["method"]), cast("dict[str, object]", params))
        if isinstance(answer, Refused):
            assert isinstance(answer.code, int)
            json.dumps([answer.message, answer.data]).encode()
        elif answer is not None:
            assert isinstance(json.loads(answer), dict)
