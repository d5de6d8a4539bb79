import msgspec

from emceepee_stdio.cli.terminal import duration_text
from emceepee_stdio.cli.trace import Waterfall, plain_row
from emceepee_stdio.trace.request import RequestRecord
from emceepee_stdio.trace.trace_reader import RequestFilter, as_chrome, as_json, without_payloads

NOON_MS = 1_700_000_000_000.0


def record(
    number: int = 1, *, at: float = 0.0, took: float = 100.0, **more: object
) -> RequestRecord:
    legs = [["rendering", 1.0], ["server", took - 2.0], ["rendering", 1.0]]
    fields = {
        "id": f"{number:026}",
        "session": "S1",
        "kind": "request",
        "method": "tools/call",
        "start_ms": NOON_MS + at,
        "duration_ms": took,
        "legs": legs,
        "outcome": "ok",
        "server": "git",
        "server_tool": "log",
        "tool": "execute_tool",
        **more,
    }
    return msgspec.convert(fields, RequestRecord)


def texts(records: list[RequestRecord], columns: int) -> list[str]:
    drawn = Waterfall(columns=columns).lines(records)
    return ["".join(text for text, _ in line) for line in drawn]


def test_a_filter_takes_what_fits_all_that_is_asked():
    slow, failed = record(took=900.0), record(outcome="tool_error", server="fs")
    assert RequestFilter(slow_ms=500)(slow)
    assert not RequestFilter(slow_ms=500)(failed)
    assert RequestFilter(failed=True, servers=frozenset({"fs"}))(failed)
    assert not RequestFilter(failed=True, servers=frozenset({"git"}))(failed)
    assert not RequestFilter(session="S2")(slow)
    waits = record(
        took=30_000.0, tool="await_activity", legs=[["waiting", 29_990], ["rendering", 10]]
    )
    assert RequestFilter(slow_ms=5)(waits)
    assert not RequestFilter(slow_ms=500)(waits)
    assert RequestFilter(matches=lambda text: "tool_error" in text)(failed)


def test_requests_without_a_pause_share_an_axis_on_which_their_bars_stand():
    [_, first, second] = texts([record(1), record(2, at=100.0)], 79)
    assert first.index("█") < second.index("█")
    headings = [line for line in texts([record(1), record(3, at=60_000.0)], 79) if "──" in line]
    assert len(headings) == 2


def test_every_line_fits_the_terminal_whatever_the_names_are():
    hostile = record(
        server="\x1b[31m<b>" * 9, server_tool="漢字" * 99, error_code="e" * 500, outcome="error"
    )
    for columns in (60, 79, 159):
        for line in texts([record(), hostile, record(3, took=10**9)], columns):
            assert "\x1b" not in line
            cells = sum(2 if "一" <= sign <= "鿿" else 1 for sign in line)
            assert cells <= columns


def test_the_row_says_in_words_what_it_waited_for_and_how_it_failed():
    assert "server" in texts([record()], 79)[1]
    assert "call_timeout" in texts([record(outcome="error", error_code="call_timeout")], 79)[1]
    wide = texts([record(outcome="error", error_code="call_timeout")], 159)[1]
    assert "error call_timeout: server 98 ms" in wide
    assert "↳ git/log" in texts([record(kind="task")], 79)[1]


def test_without_unicode_the_signs_are_plain():
    [_, line] = Waterfall(columns=79, ascii_only=True).lines([record(kind="task")])
    assert "".join(text for text, _ in line).isascii()
    legend = Waterfall(columns=79, ascii_only=True).legend([record()])
    assert [text for text, _ in legend] == ["#", " server  ", "+", " rendering  "]


def test_a_leg_of_a_later_version_is_shown_as_it_is_called():
    assert plain_row(record(legs=[["teleporting", 100.0]]))[-1] == "teleporting 100 ms"
    assert "teleporting" in texts([record(legs=[["teleporting", 100.0]])], 79)[1]


def test_durations_read_as_people_say_them():
    spoken = [duration_text(ms) for ms in (0.52, 42.4, 999, 1_240, 12_400, 61_000, 7_260_000)]
    assert spoken == ["0.5 ms", "42 ms", "999 ms", "1.24 s", "12.4 s", "1 min 1 s", "2 h 1 min"]


def test_the_export_has_a_version_and_every_record_whole():
    found = msgspec.json.decode(msgspec.json.encode(as_json([record()], dropped=3)))
    assert (found["schema_version"], found["dropped"]) == (1, 3)
    assert msgspec.convert(found["requests"], list[RequestRecord]) == [record()]


def test_payloads_leave_with_nobody_who_did_not_ask():
    assert without_payloads(record(arguments="{}", result="x")) == record()


def test_trace_events_begin_and_end_and_the_legs_lie_within_their_request():
    found = as_chrome([record(1), record(2, at=50.0, server=None, server_tool=None)], dropped=0)
    assert isinstance(found, dict)
    events = found["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["emceepee S1", "git", "emceepee"]
    spans = [event for event in events if event["ph"] in "be" and event["id"] == record(1).id]
    assert [(event["ph"], event["name"]) for event in spans[:3]] == [
        ("b", "log"), ("b", "rendering"), ("e", "rendering"),
    ]  # fmt: skip
    assert spans[-1]["ts"] - spans[0]["ts"] == 100_000.0
    assert spans[-2]["ts"] == spans[-1]["ts"]
    assert spans[0]["args"]["outcome"] == "ok"


def bar_columns(columns: int) -> int:
    [_, row] = Waterfall(columns=columns).lines([record(server="fs", server_tool="log")])
    return sum(text.count("█") + text.count("▪") for text, _ in row)


def test_more_room_makes_bars_no_narrower():
    assert bar_columns(119) >= bar_columns(79)
    assert bar_columns(159) >= bar_columns(119)


def test_a_name_made_of_blocks_does_not_look_like_a_bar():
    [_, row] = texts([record(server="█████", server_tool="░·▪", took=1.0, legs=[])], 159)
    assert "█" not in row
    assert "░" not in row
    assert "\\u2588" in row
