"""The client of the session: the link to it, and its roots, which servers ask for.

The link is made before everything that speaks to the client, and handed to it; the front connects
when it is whole. Until then, and in a session without a client, no person can be asked.

Roots are the client's directories, else configured ones, else our own. The client is asked when the
first server wants to know, and again when it says that they changed. Servers that ask meanwhile
wait for its answer.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from emceepee_stdio.session.person import Dialogue
from emceepee_stdio.wire import system
from emceepee_stdio.wire.environment import is_system_directory

Root = Mapping[str, str]
TellRoots = Callable[[Sequence[Root]], None]


class ClientIdentity(Protocol):
    """What the client has said of itself; `word` marks every block of ours among a server's."""

    word: str
    client_name: str
    client_version: str


class ClientLink:
    """The way from the session to its client."""

    def __init__(self) -> None:
        self.person: Dialogue | None = None
        self._identity: ClientIdentity | None = None
        self._ask_roots: Callable[[], None] | None = None
        self._on_lists: Callable[[Mapping[str, bytes]], None] = lambda _lists: None

    def connect(
        self,
        identity: ClientIdentity,
        *,
        person: Dialogue | None = None,
        ask_roots: Callable[[], None] | None = None,
        on_lists: Callable[[Mapping[str, bytes]], None] = lambda _lists: None,
    ) -> None:
        """The front is whole: from now on this is the client."""
        self._identity, self.person = identity, person
        self._ask_roots, self._on_lists = ask_roots, on_lists

    @property
    def word(self) -> str:
        return "" if self._identity is None else self._identity.word

    @property
    def name(self) -> tuple[str, str]:
        """Its name and its version."""
        known = self._identity
        return ("", "") if known is None else (known.client_name, known.client_version)

    def ask_roots(self) -> bool:
        """Whether the client is asked; it answers later."""
        if self._ask_roots is None:
            return False
        self._ask_roots()
        return True

    def changed(self, lists: Mapping[str, bytes]) -> None:
        """What is exposed was listed anew."""
        self._on_lists(lists)


class ClientRoots(Struct, eq=False, dict=True):
    """What is known of them. `ask` asks the client, `on_change` hears when others count now."""

    otherwise: Sequence[Root] = ()
    are_configured: bool = False
    ask: Callable[[], bool] = lambda: False
    on_change: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._otherwise = tuple(self.otherwise)
        self._clients: tuple[Root, ...] = ()
        self._waiting: list[TellRoots] = []
        self._is_known = False
        self.wanted = False

    @property
    def current(self) -> tuple[Root, ...]:
        return self._clients or self._otherwise

    @property
    def chosen(self) -> tuple[Root, ...]:
        """Without our own directory, which stands in for them where a server only wants to know."""
        return self._clients or (self._otherwise if self.are_configured else ())

    def tell(self, respond: TellRoots) -> None:
        """Tell a server, as soon as they are known."""
        self.wanted = True
        if self._is_known:
            respond(self.current)
            return
        self._waiting.append(respond)
        if len(self._waiting) == 1 and not self.ask():
            self.learn(None)

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
            {"uri": root if root.startswith("file://") else (cwd / root).as_uri()}
            for root in configured
        ]
    told = environ.get("CLAUDE_PROJECT_DIR")
    places = [*([Path(told)] if told else []), cwd]
    found = next((place for place in places if is_project(place, home)), None)
    return [] if found is None else [{"uri": found.as_uri()}]


def directory_of(root: Root) -> Path | None:
    """The path of a root on this machine."""
    try:
        uri = urlsplit(root["uri"])
        path = Path(system.path_of_url(unquote(uri.path)))
    except ValueError:
        return None
    is_here = uri.netloc in ("", "localhost") and path.is_absolute() and "\0" not in str(path)
    return path if is_here else None


def is_project(place: Path, home: Path) -> bool:
    """Whether a server may have the run of it: not of a whole home, or of what holds homes."""
    try:
        place, home = place.resolve(), home.resolve()
        is_directory = place.is_absolute() and place.is_dir()
    except (OSError, RuntimeError):
        return False
    return is_directory and not home.is_relative_to(place) and not is_system_directory(place)
