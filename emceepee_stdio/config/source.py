"""Where the configuration of a running proxy comes from: its file, and the command line."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from emceepee_stdio.config.fixed import FixedValues
from emceepee_stdio.config.load import default_path, load_file
from emceepee_stdio.config.model import Config, PolicyMode
from emceepee_stdio.config.server import ServerConfig

__all__ = ["Source"]


class Source:
    """Reads the configuration, and tells cheaply whether the file is still the same."""

    def __init__(
        self,
        path: Path | None,
        *,
        environ: Mapping[str, str],
        extra: Sequence[ServerConfig] = (),
        policy: PolicyMode | None = None,
        fixed: FixedValues | None = None,
    ) -> None:
        self._path = path
        self._environ = environ
        self._extra = tuple(extra)
        self._policy: PolicyMode | None = policy
        self._fixed = fixed or FixedValues()

    def __repr__(self) -> str:
        return f"<Source {self._path or 'default'} and {len(self._extra)} more>"

    @property
    def named(self) -> tuple[str, ...] | None:
        """The command line that names this file; None where it names servers of its own."""
        if self._extra:
            return None
        return () if self._path is None else ("--config", str(self._path))

    def gives(self, name: str) -> bool:
        """Whether the command line gives this server, whatever the file says of the name."""
        return any(server.name == name for server in self._extra)

    def path(self) -> Path:
        """The file, whether it is there or not."""
        return default_path(self._environ) if self._path is None else self._path

    def stamp(self) -> tuple[int, ...] | None:
        """Changes whenever the file does; None while there is none."""
        try:
            found = os.stat(self.path())  # noqa: PTH116 - one call, every second
        except (OSError, ValueError):
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)

    def read(self) -> Config:
        """What the file says, with what the command line says in the place of it."""
        return self.beside(load_file(self._path, environ=self._environ))

    def beside(self, config: Config) -> Config:
        given = {server.name for server in self._extra}
        kept = tuple(server for server in config.servers if server.name not in given)
        off = tuple(server for server in config.disabled if server.name not in given)
        settings = msgspec.structs.replace(config.settings, fixed=self._fixed)
        if self._policy is not None:
            policy = msgspec.structs.replace(settings.policy, mode=self._policy)
            settings = msgspec.structs.replace(settings, policy=policy)
        return msgspec.structs.replace(
            config, servers=(*kept, *self._extra), disabled=off, settings=settings
        )
