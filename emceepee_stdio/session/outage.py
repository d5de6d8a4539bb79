"""What the loss of a connection cost, until there is another one."""

from dataclasses import dataclass

from emceepee_stdio.backends.base import Hello

__all__ = ["Outage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """What the loss of a connection took with it, and what is known of its cause."""

    hello: Hello | None = None
    restarted: bool = False
    tasks: int = 0
    elicitations: int = 0
    sampling_requests: int = 0

    def kind(self, hello: Hello | None) -> str:
        """A restart where that is known, or the server is not what it was."""
        is_other = self.hello is not None and self.hello != hello
        return "restart" if self.restarted or is_other else "network_blip"

    def counts(self) -> dict[str, int]:
        return {
            "invalidated_tasks": self.tasks,
            "invalidated_elicitations": self.elicitations,
            "invalidated_sampling_requests": self.sampling_requests,
        }
