"""The model sees every rule broken: a real conversation is recorded, and one fault put into it."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.faults.model import Entry, Model
from tests.faults.promises import MEMORY_KB
from tests.faults.run import run
from tests.faults.steps import REST, Step

Entries = list[Entry]
Plant = Callable[[Entries], None]

STORY = (
    *("call", "burst", "slow", "task_at_once", "large", "look", "timer", "timer", "wait"),
    *("answer", "decline", "sample", "cancel", "cancel_task", "hang", "garbage"),
)
EVENTS = '{"events_since_last_response"'


@cache
def recorded() -> str:
    """A conversation without faults of ours, one thing after the other, from rest to rest."""
    kinds = (REST, *STORY)
    story = [
        Step(seed=1, number=number, kind=kind, server="calm", alone=True)
        for number, kind in enumerate(kinds, start=1)
    ]
    outcome = run(1, story=story, keep=True)
    assert outcome.model.violations == []
    assert outcome.model.dropped == 0
    return json.dumps(outcome.entries)


def judged(entries: Entries) -> list[str]:
    model = Model()
    for entry in entries:
        model.take(*entry)
    return [violation.rule for violation in model.violations]


# Where to put a fault


def last_stretch(entries: Entries, what: str) -> list[int]:
    """The places of such entries between the last two quiet moments."""
    quiet = [at for at, entry in enumerate(entries) if entry[1] == "quiet"]
    return [at for at in range(quiet[-2] + 1, quiet[-1]) if entries[at][1] == what]


def call_of(entries: Entries, name: str, /, **args: Any) -> list[int]:
    """The ids of such calls."""
    found: list[int] = []
    for at in last_stretch(entries, "sent"):
        message = entries[at][2]
        params = message.get("params", {})
        given = params.get("arguments", {})
        if params.get("name") == name and args.items() <= given.items():
            found.append(message["id"])
    return found


def answer_to(entries: Entries, request_id: int) -> int:
    return next(
        at
        for at in last_stretch(entries, "received")
        if json.loads(entries[at][2]).get("id") == request_id
    )


def change(entries: Entries, at: int, edit: Callable[[Any], None]) -> None:
    step, what, body = entries[at]
    message = json.loads(body) if isinstance(body, str) else body
    edit(message)
    entries[at] = (step, what, json.dumps(message) if isinstance(body, str) else message)


def event_blocks(entries: Entries, kind: str) -> list[tuple[int, Any]]:
    """The answers that tell such an event beside their own content, and the block that does."""
    found: list[tuple[int, Any]] = []
    for at in last_stretch(entries, "received"):
        for block in json.loads(entries[at][2]).get("result", {}).get("content", []):
            text = block.get("text", "")
            if text.startswith(EVENTS) and f'"type":"{kind}"' in text:
                found.append((at, block))
    return found


# The faults


def answered_twice(entries: Entries) -> None:
    at = answer_to(entries, call_of(entries, "execute_tool", tool="echo")[0])
    entries.insert(at + 1, entries[at])


def answered_again_much_later(entries: Entries) -> None:
    at = answer_to(entries, call_of(entries, "execute_tool", tool="echo")[0])
    entries.insert(last_stretch(entries, "received")[-1] + 2, entries[at])


def answer_lost(entries: Entries) -> None:
    del entries[answer_to(entries, call_of(entries, "list_tasks", include_completed=True)[0])]


def answers_swapped(entries: Entries) -> None:
    one, two = call_of(entries, "execute_tool", tool="echo")[2:4]
    first, second = answer_to(entries, one), answer_to(entries, two)
    change(entries, first, lambda message: message.update(id=two))
    change(entries, second, lambda message: message.update(id=one))


def answered_after_cancel(entries: Entries) -> None:
    cancelled = next(
        entries[at][2]["params"]["requestId"]
        for at in last_stretch(entries, "sent")
        if entries[at][2]["method"] == "notifications/cancelled"
    )
    result = {"content": [{"type": "text", "text": "late"}]}
    late = json.dumps({"jsonrpc": "2.0", "id": cancelled, "result": result})
    entries.insert(last_stretch(entries, "received")[-1] + 1, (1, "received", late))


def nobody_asked(entries: Entries) -> None:
    line = '{"jsonrpc": "2.0", "id": 987654, "result": {}}'
    entries.insert(last_stretch(entries, "received")[-1] + 1, (1, "received", line))


def complaint_about_nothing(entries: Entries) -> None:
    line = '{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}}'
    entries[-1:-1] = [(1, "received", line)] * 10


def internal_error(entries: Entries) -> None:
    def edit(message: Any) -> None:
        del message["result"]
        message["error"] = {"code": -32603, "message": "Internal error"}

    change(entries, answer_to(entries, call_of(entries, "list_timers")[-1]), edit)


def event_told_twice(entries: Entries) -> None:
    _, block = event_blocks(entries, "task_completed")[0]
    at = answer_to(entries, call_of(entries, "list_tasks", include_completed=True)[0])
    change(entries, at, lambda message: message["result"]["content"].append(block))


def event_lost(kind: str) -> Plant:
    def lose(entries: Entries) -> None:
        for at in last_stretch(entries, "received"):
            text = entries[at][2]
            told = f'\\"type\\":\\"{kind}\\"'
            if told in text:
                entries[at] = (1, "received", text.replace(told, told.replace(kind, "other"), 1))
                return
        raise AssertionError(f"no {kind} was recorded")

    return lose


def listed(edit: Callable[[list[Any]], None]) -> Plant:
    """A change of what list_tasks says at the end."""

    def plant(entries: Entries) -> None:
        def rewrite(message: Any) -> None:
            block = message["result"]["content"][0]
            shown = json.loads(block["text"])
            edit(shown["tasks"])
            block["text"] = json.dumps(shown)

        at = answer_to(entries, call_of(entries, "list_tasks", include_completed=True)[0])
        change(entries, at, rewrite)

    return plant


def seen(what: str, **facts: Any) -> Plant:
    """Something that was seen from outside."""

    def plant(entries: Entries) -> None:
        at = max(at for at, entry in enumerate(entries) if entry[1] == what)
        change(entries, at, lambda body: body.update(facts))

    return plant


def one_more_pipe(entries: Entries) -> None:
    at = max(at for at, entry in enumerate(entries) if entry[1] == "quiet")
    entries[at][2]["descriptors"]["pipe"] += 1


def more_memory(entries: Entries) -> None:
    at = max(at for at, entry in enumerate(entries) if entry[1] == "quiet")
    entries[at][2]["resident_kb"] += MEMORY_KB + 20_000


TRACE = "Traceback (most recent call last):"
FAULTS: dict[str, tuple[Plant, str]] = {
    "an answer twice": (answered_twice, "answered twice"),
    "an answer again, much later": (
        answered_again_much_later,
        "an answer that nobody asked for, or not any more",
    ),
    "an answer lost": (answer_lost, "never answered"),
    "two answers swapped": (answers_swapped, "the answer of another call"),
    "an answer after the cancel": (answered_after_cancel, "answered after its cancel"),
    "an answer to nobody": (nobody_asked, "an answer that nobody asked for, or not any more"),
    "a complaint about nothing": (complaint_about_nothing, "a complaint about nothing"),
    "an internal error": (internal_error, "an internal error"),
    "an event twice": (event_told_twice, "an event told twice"),
    "the end of a task untold": (event_lost("task_completed"), "events are missing"),
    "an expiry untold": (event_lost("task_expired"), "events are missing"),
    "a timer untold": (event_lost("timer_expired"), "events are missing"),
    "a task with two ends": (
        listed(lambda tasks: tasks[-1].update(status="failed")),
        "a task has two ends",
    ),
    "an ended task at work": (
        listed(lambda tasks: tasks[-1].update(status="working")),
        "a task has two ends",
    ),
    "an unknown task": (
        listed(lambda tasks: tasks.pop()),
        "a task that list_tasks does not know",
    ),
    "work at a quiet moment": (seen("quiet", calls_in_flight=1), "not quiet"),
    "a stray process": (seen("quiet", strays=[4711]), "a process is left"),
    "a surviving process": (seen("ended", survivors=[4711]), "a process survives"),
    "a bad exit": (seen("ended", code=1), "the proxy ended badly"),
    "an open pipe": (one_more_pipe, "file descriptors are left open"),
    "memory": (more_memory, "memory grows"),
    "a traceback": (seen("ended", stderr=TRACE), "a traceback on stderr"),
    "a bug": (seen("quiet", bugs=["{}"]), "an unexpected error in the journal"),
}


def test_a_recorded_conversation_is_judged_like_a_living_one() -> None:
    assert judged(json.loads(recorded())) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_model_sees_(fault: str) -> None:
    plant, rule = FAULTS[fault]
    entries: Entries = json.loads(recorded())
    plant(entries)
    assert rule in judged(entries)
