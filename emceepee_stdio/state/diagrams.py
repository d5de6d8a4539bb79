"""Diagrams of the state machines, drawn from their tables."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from emceepee_stdio.state.event_log import DELIVERY
from emceepee_stdio.state.machine import Machine
from emceepee_stdio.state.pending_requests import ELICITATION_STATES, SAMPLING_STATES
from emceepee_stdio.state.phases import PHASES
from emceepee_stdio.state.tasks import TASK_STATES
from emceepee_stdio.state.timers import TIMER_STATES

S = TypeVar("S", bound=StrEnum)

_LIFECYCLE = """\
stateDiagram-v2
    [*] --> in_flight : execute_tool
    in_flight --> answered : the result arrives in time
    in_flight --> answered : the call fails or the server is lost
    in_flight --> cancelled : the client cancels
    in_flight --> promoted : the time is up
    in_flight --> promoted : this server asks the client something
    in_flight --> promoted : timeout_ms is 0
    promoted --> working : the answer names a task
    working --> fetched : get_task_result
    answered --> [*] : no task is made
    cancelled --> [*] : nothing is answered
    fetched --> [*] : forgotten after 5 min
"""

_RELATIONSHIPS = """\
flowchart LR
    client([client])
    subgraph proxy [emceepee]
        tools[tools]
        events[(events)]
        tasks[(tasks)]
        questions[(elicitations and sampling requests)]
        timers[(timers)]
        rings[(notifications and logs)]
        results[(large results)]
    end
    subgraph backends [backends]
        child[child process]
        http[HTTP server]
    end
    client -- calls --> tools
    tools -- execute_tool --> backends
    tools -- slow calls --> tasks
    tools -- answers --> questions
    tools -- set_timer --> timers
    backends -- results --> tasks
    backends -- questions --> questions
    backends -- notifications --> rings
    backends -- large results --> results
    tasks --> events
    questions --> events
    timers --> events
    rings -- notifications only --> events
    events -- in the next answer, once --> client
    questions -- in every answer until answered --> client
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """One picture, as Mermaid source."""

    name: str
    description: str
    mermaid: str


def state_diagram(machine: Machine[S]) -> str:
    """A table as a Mermaid state diagram: every move of it, and the ends."""
    lines = ["stateDiagram-v2"]
    for move in machine.moves:
        source = "[*]" if move.source is None else move.source.value
        lines.append(f"    {source} --> {move.target.value} : {move.cause}")
    reached = {move.target for move in machine.moves}
    for state in machine.states:
        if state in reached and machine.is_final(state):
            label = machine.ends.get(state)
            lines.append(f"    {state.value} --> [*]" + (f" : {label}" if label else ""))
    for state, note in machine.notes.items():
        lines += [f"    note right of {state.value}", f"        {note}", "    end note"]
    return "\n".join(lines) + "\n"


def _of(machine: Machine[S], description: str) -> Diagram:
    return Diagram(name=machine.name, description=description, mermaid=state_diagram(machine))


def diagrams() -> list[Diagram]:
    """The five that `emceepee://diagrams` shows."""
    return [
        _of(TASK_STATES, "A task: a call that outlived its answer."),
        _of(ELICITATION_STATES, "A question of a server to the user."),
        _of(SAMPLING_STATES, "A question of a server to the model."),
        Diagram(
            name="tool_call_lifecycle",
            description="A call of execute_tool, until it is answered or becomes a task.",
            mermaid=_LIFECYCLE,
        ),
        Diagram(
            name="entity_relationships",
            description="What the proxy keeps, who fills it and who reads it.",
            mermaid=_RELATIONSHIPS,
        ),
    ]


def further_diagrams() -> list[Diagram]:
    """The other tables, for the docs."""
    return [
        _of(PHASES, "A backend, from being added to being removed."),
        _of(DELIVERY, "An event on its way to the client."),
        _of(TIMER_STATES, "A timer."),
    ]
