import re
import sys
from enum import StrEnum
from typing import Any

import pytest

from emceepee_stdio.state.diagrams import Diagram, diagrams, further_diagrams, state_diagram
from emceepee_stdio.state.event_log import DELIVERY
from emceepee_stdio.state.machine import Machine, Move
from emceepee_stdio.state.pending_requests import ELICITATION_STATES, SAMPLING_STATES
from emceepee_stdio.state.phases import PHASES
from emceepee_stdio.state.tasks import TASK_STATES, TaskStatus
from emceepee_stdio.state.timers import TIMER_STATES

DRAWN: list[Machine[Any]] = [TASK_STATES, ELICITATION_STATES, SAMPLING_STATES]
FURTHER: list[Machine[Any]] = [PHASES, DELIVERY, TIMER_STATES]
NOTE = re.compile(r"    note right of \w+\n(?:        .+\n)+    end note\n")
ARROW = re.compile(r"    (\S+) --> (\S+)(?: : (.+))?")


def arrows(mermaid: str) -> list[tuple[str, ...]]:
    head, *lines = NOTE.sub("", mermaid).splitlines()
    assert head == "stateDiagram-v2"
    found = [ARROW.fullmatch(line) for line in lines]
    assert all(found), mermaid
    return [match.groups() for match in found if match]


def by_name() -> dict[str, Diagram]:
    shown = [*diagrams(), *further_diagrams()]
    return {diagram.name: diagram for diagram in shown}


def test_five_diagrams_are_shown():
    assert [diagram.name for diagram in diagrams()] == [
        "proxy_task_states",
        "pending_elicitation_states",
        "pending_sampling_states",
        "tool_call_lifecycle",
        "entity_relationships",
    ]


def test_every_diagram_has_a_description_and_ends_its_last_line():
    for diagram in by_name().values():
        assert diagram.description.endswith(".")
        assert diagram.mermaid.endswith("\n")


@pytest.mark.parametrize("machine", DRAWN + FURTHER, ids=lambda machine: machine.name)
def test_a_state_diagram_holds_every_move_of_its_table_and_no_other(machine: Machine[Any]):
    drawn = arrows(by_name()[machine.name].mermaid)
    moves = [(m.source or "[*]", m.target, m.cause) for m in machine.moves]
    reached = {m.target for m in machine.moves}
    ends = [
        (s.value, "[*]", machine.ends.get(s))
        for s in machine.states
        if s in reached and machine.is_final(s)
    ]
    assert drawn == moves + ends


@pytest.mark.parametrize("machine", DRAWN, ids=lambda machine: machine.name)
def test_every_end_says_what_follows(machine: Machine[Any]):
    reached = {m.target for m in machine.moves}
    assert machine.ends.keys() == {s for s in reached if machine.is_final(s)}
    for label in machine.ends.values():
        assert not set(label) & set(":;#\n"), label


def test_the_questions_say_how_long_they_wait_and_where_they_are_seen():
    for name in ("pending_elicitation_states", "pending_sampling_states"):
        mermaid = by_name()[name].mermaid
        assert "pending --> expired : no answer in time (default 10 min)" in mermaid
        assert "note right of pending" in mermaid
        assert "await_activity" in mermaid


@pytest.mark.parametrize("machine", DRAWN + FURTHER, ids=lambda machine: machine.name)
def test_no_cause_holds_a_sign_that_ends_a_label_in_mermaid(machine: Machine[Any]):
    for move in machine.moves:
        assert not set(move.cause) & set(":;#\n"), move.cause


def test_the_written_diagrams_hold_no_sign_that_ends_a_label_either():
    for _source, _target, cause in arrows(by_name()["tool_call_lifecycle"].mermaid):
        assert not set(cause or "") & set(":;#")


def test_a_state_that_is_never_reached_is_not_drawn():
    assert "completed" not in by_name()["pending_elicitation_states"].mermaid
    assert "accepted" not in by_name()["pending_sampling_states"].mermaid


def test_a_changed_table_changes_its_diagram(monkeypatch: pytest.MonkeyPatch):
    move = Move(source=TaskStatus.WORKING, target=TaskStatus.WORKING, cause="it takes a nap")
    changed = Machine(TASK_STATES.name, TaskStatus, [*TASK_STATES.moves, move])
    monkeypatch.setattr(sys.modules[diagrams.__module__], "TASK_STATES", changed)
    drawn = arrows(diagrams()[0].mermaid)
    assert ("working", "working", "it takes a nap") in drawn


def test_a_drawn_table_starts_ends_and_says_why():
    class Door(StrEnum):
        OPEN = "open"
        SHUT = "shut"

    door = Machine(
        "door",
        Door,
        [
            Move(source=None, target=Door.OPEN, cause="built"),
            Move(source=Door.OPEN, target=Door.SHUT, cause="wind"),
        ],
    )
    assert state_diagram(door) == (
        "stateDiagram-v2\n    [*] --> open : built\n    open --> shut : wind\n    shut --> [*]\n"
    )
