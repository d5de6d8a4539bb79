import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from emceepee_stdio.backends.interface import LogLine, LogSource
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.backend_handler import BackendHandler
from emceepee_stdio.session.server_output import RateLimit, fields_of, is_too_much
from emceepee_stdio.session.session import Session


def test_a_flow_passes_so_many_in_a_minute_and_counts_the_rest():
    flow = RateLimit(3)
    assert [flow.takes(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert flow.take_over() == 2
    assert flow.take_over() == 0


def test_a_flow_begins_anew_with_the_next_minute_and_still_knows_what_it_held_back():
    flow = RateLimit(1)
    assert [flow.takes(now) for now in (10.0, 11.0, 69.9, 70.0, 71.0)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert flow.take_over() == 3


def test_a_flow_that_was_never_full_has_nothing_to_tell():
    flow = RateLimit(2)
    assert all(flow.takes(60.0 * i) for i in range(10))
    assert flow.take_over() == 0
    assert repr(flow) == "<RateLimit 1/2 over=0>"


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 5))
def test_nothing_is_lost_between_what_passed_and_what_was_counted(gaps: list[float], limit: int):
    flow, now, passed, counted = RateLimit(limit), 0.0, 0, 0
    for gap in gaps:
        now += gap
        if flow.takes(now):
            passed += 1
            counted += flow.take_over()
    assert passed + counted + flow.take_over() == len(gaps)


def test_lines_over_the_bound_are_kept_for_reading_and_counted_in_the_journal(tmp_path: Path):
    now = 1_000.0
    clock = Clock(monotonic=lambda: now, wall=lambda: now)
    journal = Journal.open(directory=tmp_path, session="s", clock=clock, stderr=None)
    settings = msgspec.convert({"fixed": {"output_lines": 3}}, Settings)
    session = Session(settings, clock=clock, ids=Ids(clock), journal=journal)
    line = LogLine(source=LogSource.STDERR, text="x", level="info")
    handler = BackendHandler(session, target_of=lambda _: None)
    for _ in range(10):
        handler.take("loud", line)
    handler.take("quiet", line)
    now += 60.0
    handler.take("loud", line)
    journal.close()
    (path,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    written = [(one["event"], one["server"], one["data"].get("count")) for one in lines]
    assert written == [
        *[("server_output", "loud", None)] * 3,
        ("server_output", "quiet", None),
        ("server_output_dropped", "loud", 7),
        ("server_output", "loud", None),
    ]
    assert len(list(session.state.logs["loud"].last(100))) == 11


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> Raw:
    return Raw(opening * depth + closing * depth)


@pytest.mark.parametrize("opening", [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_what_counts_and_not_size(opening: tuple[bytes, bytes]):
    before, after = opening
    fits = Raw(before * 64 + b"1" + after * 64)
    assert not is_too_much(fits)
    assert is_too_much(Raw(before * 65 + b"1" + after * 65))
    flat = Raw(b"[" + b",".join([b"[]"] * 10_000) + b"]")
    assert not is_too_much(flat)


def test_brackets_in_strings_are_words():
    assert not is_too_much(Raw(b'{"a":"' + b"[" * 1_000 + b'"}'))
    assert not is_too_much(Raw(b'{"a":"\\"' + b"{" * 1_000 + b'"}'))
    assert is_too_much(Raw(b'["\\\\",' + b"[" * 70 + b"]" * 71))


def test_a_hundred_thousand_levels_cost_no_time_and_no_crash():
    assert is_too_much(nested(100_000))
    assert is_too_much(nested(100_000, b'{"a":'))
    assert fields_of(nested(100_000)) == {}


def test_what_cannot_be_read_has_no_fields():
    assert fields_of(None) == {}
    assert fields_of(Raw(b"[1]")) == {}
    assert fields_of(Raw(b'{"a":')) == {}
    assert fields_of(Raw(b'{"a":1}')) == {"a": 1}


@given(st.integers(0, 130), st.text(max_size=20))
def test_the_depth_is_counted_to_the_level(depth: int, words: str):

    inner = msgspec.json.encode(words)
    assert is_too_much(Raw(b"[" * depth + inner + b"]" * depth)) is (depth > 64)
