"""One server of the session as it is registered: how it came in, and what it listed.

What it was admitted with belongs to the server and travels with it; there is no server without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.trust.addresses import AddressRule
from emceepee_stdio.wire.program import ProgramFile

__all__ = ["Admission", "ListedTools", "OnChange", "OnTools", "Origin", "RegisteredServer"]


class Origin(StrEnum):
    """Who asked for a server."""

    CONFIGURATION = "configuration"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """That this server may come in: on what grounds, to which addresses, from which file.

    `approval` is the remembered agreement on which it rests, if that can be taken back.
    """

    config: ServerConfig
    origin: Origin
    grounds: str
    rule: AddressRule | None = None
    program: ProgramFile | None = None
    approval: str | None = None

    @classmethod
    def configured(cls, config: ServerConfig) -> "Admission":
        """Of the configuration: that is a person's word."""
        return cls(config=config, origin=Origin.CONFIGURATION, grounds="configuration")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredServer:
    """One server: how it came in, and the backend to it."""

    admission: Admission
    backend: Backend

    @property
    def config(self) -> ServerConfig:
        return self.admission.config

    @property
    def origin(self) -> Origin:
        return self.admission.origin


OnChange = Callable[[JournalEvent, RegisteredServer, Origin], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedTools:
    """The tools that a server listed, and what it said of itself when it was connected."""

    config: ServerConfig
    origin: Origin
    tools: Sequence[Mapping[str, object]]
    instructions: str | None


OnTools = Callable[[ListedTools, Callable[..., object]], None]
