"""How one backend is treated, whatever its channel."""

from collections.abc import Callable
from dataclasses import dataclass, field

from emceepee_stdio.backends.catalogue_record import Remembered, Seen
from emceepee_stdio.backends.health import HealthPolicy
from emceepee_stdio.backends.lists import Item
from emceepee_stdio.state.restarts import RestartPolicy

__all__ = ["BackendOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """How this backend is treated. Times are seconds.

    `remembered` is what is known of it before it was started. It is stopped when it was not used
    for `idle_stop`, unless it `is_held` by something that is open. With `learns`, all of its lists
    are fetched as soon as it is connected.
    """

    lazy: bool = False
    learns: bool = False
    remembered: Remembered | None = None
    idle_stop: float | None = None
    is_held: Callable[[], bool] = lambda: False
    on_listed: Callable[[Seen], None] | None = None
    request: float = 60.0
    rounds: int = 10
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    list_room: Callable[[], int] | None = None
    on_tools: Callable[[tuple[Item, ...]], None] | None = None
