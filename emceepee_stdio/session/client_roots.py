"""Roots for servers: the client's directories, else configured ones, else our own.

The client is asked when the first server wants to know, and again when it says that they changed.
Who asks meanwhile waits for its answer.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from emceepee_stdio.wire.environment import is_system_directory

Root = Mapping[str, str]
TellRoots = Callable[[Sequence[Root]], None]


class ClientRoots:
    """What is known of them. `ask` asks the client, `on_change` hears when others count now."""

    def __init__(self, otherwise: Sequence[Root] = ()) -> None:
        self._otherwise = tuple(otherwise)
        self._clients: tuple[Root, ...] = ()
        self._waiting: list[TellRoots] = []
        self._is_known = False
        self.wanted = False
        self.ask: Callable[[], None] = lambda: self.learn(None)
        self.on_change: Callable[[], None] = lambda: None

    @property
    def current(self) -> tuple[Root, ...]:
        return self._clients or self._otherwise

    def tell(self, respond: TellRoots) -> None:
        """Tell a server, as soon as they are known."""
        self.wanted = True
        if self._is_known:
            respond(self.current)
            return
        self._waiting.append(respond)
        if len(self._waiting) == 1:
            self.ask()

    def learn(self, roots: Sequence[Root] | None) -> None:
        """What the client answered; None when it did not, and then what was known stays."""
        before, was_known = self.current, self._is_known
        self._is_known = True
        if roots is not None:
            self._clients = tuple(roots)
        waiting, self._waiting = self._waiting, []
        for respond in waiting:
            respond(self.current)
        if was_known and self.current != before:
            self.on_change()


def own_roots(
    configured: Sequence[str], *, environ: Mapping[str, str], cwd: Path, home: Path
) -> list[Root]:
    """The configured ones, else the directory of the project, where that is one to work in."""
    if configured:
        return [
            {"uri": root if root.startswith("file://") else Path(root).as_uri()}
            for root in configured
        ]
    told = environ.get("CLAUDE_PROJECT_DIR")
    places = [*([Path(told)] if told else []), cwd]
    found = next((place for place in places if _is_project(place, home)), None)
    return [] if found is None else [{"uri": found.as_uri()}]


def _is_project(place: Path, home: Path) -> bool:
    """Whether a server may have the run of it: not of a whole home, or of what holds homes."""
    try:
        place, home = place.resolve(), home.resolve()
        is_directory = place.is_absolute() and place.is_dir()
    except (OSError, RuntimeError):
        return False
    return is_directory and not home.is_relative_to(place) and not is_system_directory(place)
