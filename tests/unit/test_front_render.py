import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from emceepee_stdio.backends.interface import Question
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.front.tool_calls import render
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.client_calls import UNLIMITED, Call, CallingClient
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.pending_requests import RequestKind
from emceepee_stdio.versions import SERVER_INFO

IDENTITY = b'{"name":"emceepee","version":"1"}'
NOBODYS = Question(method="", params=None, key=0, deliver=lambda _: True)


def session(tmp_path: Path, **fixed: int) -> Session:
    clock = Clock()
    ids = Ids(clock)
    settings = msgspec.convert({"fixed": fixed}, Settings)
    journal = Journal.open(directory=tmp_path, session="s", clock=clock, stderr=None)
    return Session(settings, clock=clock, ids=ids, journal=journal)


def call() -> Call:
    return Call(client=CallingClient(ceiling=1.0))


def rendered(made: Session, reply: Reply | None = None, **more: Any) -> dict[str, Any]:
    body, leases = render(
        made, reply or Reply.text("own"), more.pop("call", call()), **{"identity": None, **more}
    )
    for lease in leases:
        made.state.events.commit(lease)
    return json.loads(body)


def context(result: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for block in result["content"][1:]:
        whole |= json.loads(block["text"])
    return whole


async def test_with_nothing_new_there_is_only_the_result(tmp_path: Path) -> None:
    assert rendered(session(tmp_path)) == {"content": [{"type": "text", "text": "own"}]}


async def test_events_come_up_to_the_count_and_the_rest_is_announced(tmp_path: Path) -> None:
    made = session(tmp_path, response_events=3)
    for n in range(7):
        made.tell(EventType.TIMER_EXPIRED, data={"n": n})
    for shown, remaining in ((3, 4), (3, 1), (1, None)):
        told = context(rendered(made))
        assert len(told["events_since_last_response"]) == shown
        assert told.get("events_remaining") == remaining
    assert context(rendered(made)) == {}


async def test_events_come_up_to_the_bytes_but_at_least_one(tmp_path: Path) -> None:
    made = session(tmp_path, response_event_bytes=400, event_data_bytes=1_000)
    for n in range(3):
        made.tell(EventType.TIMER_EXPIRED, data={"n": n, "pad": "é" * 150})
    for remaining in (2, 1, None):
        told = context(rendered(made))
        assert len(told["events_since_last_response"]) == 1
        assert told.get("events_remaining") == remaining


async def test_long_data_is_cut_and_stays_valid(tmp_path: Path) -> None:
    made = session(tmp_path, event_data_bytes=50)
    made.tell(EventType.NOTIFICATION, server="s", data={"x": "é" * 100})
    [event] = context(rendered(made))["events_since_last_response"]
    assert event["truncated"] is True
    assert len(event["data"].encode()) in (49, 50)
    made.tell(EventType.NOTIFICATION, server="s", data={"x": 1})
    [event] = context(rendered(made))["events_since_last_response"]
    assert event["data"] == {"x": 1}
    assert "truncated" not in event


async def test_what_the_tool_did_itself_is_not_told_again(tmp_path: Path) -> None:
    made, mine = session(tmp_path), call()
    own = made.tell(EventType.SERVER_ADDED, server="s")
    made.report_in(mine, made.state.events.take_these([own]))
    made.tell(EventType.TIMER_EXPIRED)
    told = context(rendered(made, call=mine))
    assert [event["type"] for event in told["events_since_last_response"]] == ["timer_expired"]
    assert context(rendered(made)) == {}


async def test_a_whole_reply_gets_no_context_and_takes_no_events(tmp_path: Path) -> None:
    made = session(tmp_path)
    made.tell(EventType.TIMER_EXPIRED)
    assert len(rendered(made, Reply.json({}, whole=True))["content"]) == 1
    assert made.state.events.waiting == 1


async def test_every_question_is_shown_whatever_its_size(tmp_path: Path) -> None:
    made = session(tmp_path, question_chars=10, sampling_preview_chars=4)
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(100)}}
    asked: list[dict[str, Any]] = [
        {"message": "m" * 50, "requestedSchema": schema},
        {"message": "go", "mode": "url", "url": "https://x"},
        {"message": 7},
        {},
    ]
    for params in asked:
        made.state.requests.add(
            RequestKind.ELICITATION, server="s", params=params, now=0.0, source=NOBODYS
        )
    says = {"role": "user", "content": [{"type": "text", "text": "say a lot"}]}
    for params in ({"messages": [says]}, {"messages": []}, {"messages": 7}, {"messages": [8]}):
        made.state.requests.add(
            RequestKind.SAMPLING, server="s", params=params, now=0.0, source=NOBODYS
        )
    pending = context(rendered(made))["pending_client_action"]
    shown = pending["elicitations"]
    assert [len(shown), len(pending["sampling_requests"])] == [4, 4]
    assert shown[0]["message"] == "m" * 10 + " …"
    assert shown[0]["schema"] == schema
    assert (shown[1]["mode"], shown[1]["url"]) == ("url", "https://x")
    assert shown[0]["mode"] == "form"
    assert [p["preview"] for p in pending["sampling_requests"]] == ["say  …", "", "", ""]


@pytest.mark.parametrize(
    ("content", "preview"),
    [
        ({"type": "text", "text": "say"}, "say"),
        ([{"type": "text", "text": "say"}, {"type": "text", "text": "it"}], "say it"),
        ([{"type": "tool_result", "content": [{"type": "text", "text": "22 °C"}]}], "22 °C"),
        ({"type": "tool_result", "content": [{"type": "image", "data": "x"}]}, ""),
        ([{"type": "tool_use", "name": "weather", "input": {}}], "weather"),
        ({"type": "tool_result", "content": 7}, ""),
    ],
)
async def test_the_preview_of_a_sampling_request_is_what_was_said_last(
    tmp_path: Path, content: Any, preview: str
) -> None:
    made = session(tmp_path)
    says = [{"role": "assistant", "content": []}, {"role": "user", "content": content}]
    params = {"messages": says}
    made.state.requests.add(
        RequestKind.SAMPLING, server="s", params=params, now=0.0, source=NOBODYS
    )
    [shown] = context(rendered(made))["pending_client_action"]["sampling_requests"]
    assert shown["preview"] == preview


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (None, {}),
        (Raw(b'{"a":1}'), {"a": 1}),
        (Raw(b"{}"), {}),
        (Raw(b'{"a":1,"%b":{"name":"backend"},"b":2}' % SERVER_INFO.encode()), {"a": 1, "b": 2}),
    ],
)
async def test_a_modern_answer_is_stamped_by_us_and_keeps_the_rest(
    tmp_path: Path, meta: Raw | None, expected: dict[str, Any]
) -> None:
    reply = Reply(content=b"", meta=meta, is_error=True)
    result = rendered(session(tmp_path), reply, identity=IDENTITY)
    assert result["resultType"] == "complete"
    assert result["_meta"].pop(SERVER_INFO)["name"] == "emceepee"
    assert result["_meta"] == expected
    assert result["isError"] is True
    legacy = rendered(session(tmp_path), reply)
    assert legacy.get("_meta", {}) == ({} if meta is None else json.loads(bytes(meta)))
    assert "resultType" not in legacy


def codex(**more: Any) -> Call:
    return Call(client=CallingClient(ceiling=1.0, budget=36_000, context_first=True), **more)


def shown_bytes(result: dict[str, Any]) -> int:
    return sum(len(block["text"].encode()) for block in result["content"])


async def test_context_comes_first_for_a_client_that_cuts_the_end(tmp_path: Path) -> None:
    made = session(tmp_path)
    made.tell(EventType.TIMER_EXPIRED)
    events, own = rendered(made, call=codex())["content"]
    assert "events_since_last_response" in events["text"]
    assert own["text"] == "own"


async def test_result_and_context_together_stay_within_what_a_client_shows(tmp_path: Path) -> None:
    made = session(tmp_path)
    for n in range(20):
        made.tell(EventType.NOTIFICATION, server="s", data={"n": n, "pad": "é" * 150})
    text = "日本語テキスト" * 6_000
    result = rendered(made, Reply.text(text), call=codex())
    assert 30_000 < shown_bytes(result) <= 36_000
    told, _, facts, head, _, tail = result["content"]
    assert len(json.loads(told["text"])["events_since_last_response"]) > 10
    assert text.startswith(head["text"])
    assert text.endswith(tail["text"])
    [stored] = made.state.results.all()
    assert stored.id in facts["text"]
    assert stored.chars == len(text)


@pytest.mark.parametrize("budget", [UNLIMITED, 36_000])
async def test_what_fits_is_shown_whole_and_nothing_is_stored(tmp_path: Path, budget: int) -> None:
    made = session(tmp_path)
    text = "x" * (35_000 if budget < UNLIMITED else 500_000)
    mine = Call(client=CallingClient(ceiling=1.0, budget=budget))
    assert rendered(made, Reply.text(text), call=mine)["content"] == [
        {"type": "text", "text": text}
    ]
    assert made.state.results.all() == []


async def test_an_answer_of_our_own_that_is_too_long_is_stored_too(tmp_path: Path) -> None:
    made = session(tmp_path)
    logs = {"logs": [{"text": "x" * 1_000} for _ in range(50)]}
    result = rendered(made, Reply.json(logs), call=codex())
    assert shown_bytes(result) <= 36_000
    [stored] = made.state.results.all()
    assert json.loads(made.state.results.page(stored.id, offset=0, limit=10**6, now=0).text) == logs


async def test_escapes_on_the_wire_are_not_counted(tmp_path: Path) -> None:
    text = '"quoted"\n' * 3_900
    result = rendered(session(tmp_path), Reply.text(text), call=codex())
    assert result["content"] == [{"type": "text", "text": text}]


async def test_a_page_is_not_cut_again_however_much_there_is_to_tell_beside_it(
    tmp_path: Path,
) -> None:
    made = session(tmp_path)
    for n in range(20):
        made.tell(EventType.NOTIFICATION, server="s", data={"n": n, "pad": "é" * 150})
    page = Reply(content=Reply.text("x" * 36_000).content, paged=True)
    assert rendered(made, page, call=codex())["content"][-1]["text"] == "x" * 36_000
    assert made.state.results.all() == []


def unknown(**more: Any) -> Call:
    return Call(client=CallingClient(ceiling=1.0, budget=15_000, context_first=True), **more)


async def test_a_small_budget_holds_result_events_and_questions_together(tmp_path: Path) -> None:
    made = session(tmp_path)
    for n in range(20):
        made.tell(EventType.NOTIFICATION, server="s", data={"n": n, "pad": "x" * 700})
    for n in range(20):
        params = {"message": f"{n} " + "y" * 700}
        made.state.requests.add(
            RequestKind.ELICITATION, server="s", params=params, now=0.0, source=NOBODYS
        )
    result = rendered(made, Reply.text("z" * 50_000), call=unknown())
    assert shown_bytes(result) <= 15_000
    events, questions, _, pointer, head, *_ = [block["text"] for block in result["content"]]
    assert json.loads(events)["events_remaining"] > 0
    pending = json.loads(questions)["pending_client_action"]["elicitations"]
    assert len(pending) == 20, "no question is ever left out"
    assert json.loads(pointer)["stored_result"]["uri"].startswith("emceepee://results/")
    assert head.startswith("zzz")


async def test_a_question_that_is_larger_than_the_budget_is_named_in_one_line(
    tmp_path: Path,
) -> None:
    made = session(tmp_path)
    fields = {f"p{n}": {"type": "string", "description": "d" * 150} for n in range(60)}
    params = {"message": "What?", "requestedSchema": {"type": "object", "properties": fields}}
    made.state.requests.add(
        RequestKind.ELICITATION, server="s", params=params, now=0.0, source=NOBODYS
    )
    result = rendered(made, Reply.text("z" * 50_000), call=unknown())
    assert shown_bytes(result) <= 15_000
    [shown] = json.loads(result["content"][0]["text"])["pending_client_action"]["elicitations"]
    assert shown["whole_in"] == "get_elicitations"


async def test_very_many_questions_are_all_there_and_leave_room_for_the_result(
    tmp_path: Path,
) -> None:
    made = session(tmp_path)
    for n in range(60):
        made.state.requests.add(
            RequestKind.ELICITATION,
            server=f"server-{n % 6}",
            params={"message": f"{n} " + "y" * 3_000},
            now=0.0,
            source=NOBODYS,
        )
    result = rendered(made, Reply.text("z" * 50_000), call=unknown())
    assert shown_bytes(result) <= 15_000
    shown = json.loads(result["content"][0]["text"])["pending_client_action"]["elicitations"]
    assert len(shown) == 60
    assert "line" in shown[1]
