"""How one backend is treated, whatever its channel."""

from collections.abc import Callable
from dataclasses import dataclass, field

from emceepee_stdio.backends.health import HealthPolicy
from emceepee_stdio.backends.lists import Item
from emceepee_stdio.state.restarts import RestartPolicy

__all__ = ["BackendOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """How this backend is treated. Times are seconds."""

    lazy: bool = False
    request: float = 60.0
    rounds: int = 10
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    list_room: Callable[[], int] | None = None
    on_tools: Callable[[tuple[Item, ...]], None] | None = None
