"""The steps of a run: what is done next, and to which server. They depend on the seed alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

COMMANDS = ("calm", "keen")
URLS = ("web", "net")
LOUD = "loud"
REST = "rest"

_WELL_BEHAVED = (*COMMANDS, *URLS)
_STARTED_BY_PROXY = (*COMMANDS, LOUD)
_EVERYBODY = (*_WELL_BEHAVED, LOUD)
_WITH_SESSION = ("web",)
_NOBODY = ("",)
_TO_THE_NEXT_REST = 60
_ALONE = 0.15

# How often each kind comes, and to which servers.
KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "call": (18, _EVERYBODY),
    "burst": (6, _EVERYBODY),
    "slow": (8, _WELL_BEHAVED),
    "task_at_once": (4, _EVERYBODY),
    "large": (4, _WELL_BEHAVED),
    "look": (6, _WELL_BEHAVED),
    "tool_error": (3, _WELL_BEHAVED),
    "timer": (3, _NOBODY),
    "wait": (5, _NOBODY),
    "answer": (5, _WELL_BEHAVED),
    "decline": (2, _WELL_BEHAVED),
    "ignore": (2, _WELL_BEHAVED),
    "sample": (2, _WELL_BEHAVED),
    "cancel": (6, _WELL_BEHAVED),
    "cancel_task": (4, _WELL_BEHAVED),
    "hang": (3, _WELL_BEHAVED),
    "flood": (3, _WELL_BEHAVED),
    "flood_logs": (2, _WELL_BEHAVED),
    "flood_large": (2, _WELL_BEHAVED),
    "slow_to_read": (1, _WELL_BEHAVED),
    "kill": (3, _STARTED_BY_PROXY),
    "freeze": (2, COMMANDS),
    "exit": (3, COMMANDS),
    "outage": (2, URLS),
    "grandchild": (1, COMMANDS),
    "fork": (1, COMMANDS),
    "steal": (1, _WITH_SESSION),
    "misbehave": (3, (LOUD,)),
    "add": (2, _NOBODY),
    "add_bad": (2, _NOBODY),
    "remove": (2, _NOBODY),
    "reconnect": (2, _EVERYBODY),
    "edit_config": (3, _NOBODY),
    "break_config": (1, _NOBODY),
    "garbage": (3, _NOBODY),
    "stall": (1, _WELL_BEHAVED),
}
FAULTS = frozenset(KINDS) - {
    *("call", "burst", "slow", "task_at_once", "large", "look", "timer", "wait"),
    *("answer", "decline", "sample", "add"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do. `alone` ends before the next one begins; others overlap."""

    seed: int
    number: int
    kind: str
    server: str = ""
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.number} {self.kind}{f' {self.server}' if self.server else ''}"

    def random(self) -> Random:
        """A source of its own, so that no other step changes what this one chooses."""
        return Random(f"{self.seed}/{self.number}")


def steps(seed: int) -> Iterator[Step]:
    """Each kind once, to warm up, then any mix without end; a rest after each stretch."""
    random = Random(seed)
    numbers = count(1)

    def step(kind: str) -> Step:
        return Step(
            seed=seed,
            number=next(numbers),
            kind=kind,
            server=random.choice(KINDS[kind][1]),
            alone=random.random() < _ALONE,
        )

    stretch = random.sample(list(KINDS), len(KINDS))
    weights = [weight for weight, _ in KINDS.values()]
    while True:
        yield from map(step, stretch)
        yield Step(seed=seed, number=next(numbers), kind=REST, alone=True)
        stretch = random.choices(list(KINDS), weights, k=_TO_THE_NEXT_REST)
