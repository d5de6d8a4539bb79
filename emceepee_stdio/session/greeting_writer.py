"""Keeps the greeting file true: the configured servers, what each is for, and what is exposed.

The next run reads it before anything else is loaded. Where it cannot be written, the next greeting
names no servers; nothing else depends on it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio.to_thread

from emceepee_stdio.config import Config, ServerConfig
from emceepee_stdio.config.edit import write_whole
from emceepee_stdio.config.regular_file import make_private, read_regular
from emceepee_stdio.config.source import Source
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.greeting import (
    MAX_BYTES,
    Greeted,
    Greeting,
    Stamp,
    config_file,
    greeting_file,
    read_greeting,
    written_greeting,
)
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.exposed_lists import ExposedLists
from emceepee_stdio.session.server_registry import Origin, Servers
from emceepee_stdio.wire.codec import to_json

__all__ = ["GreetingWriter"]


class GreetingWriter:
    """`mask` hides the secrets that servers were given."""

    def __init__(
        self,
        source: Source,
        servers: Servers,
        *,
        environ: Mapping[str, str],
        mask: Callable[[str], str],
    ) -> None:
        self._source = source
        self._servers = servers
        self._environ = environ
        self._mask = mask
        self._kept: tuple[Stamp, tuple[Greeted, ...], ExposedLists] | None = None
        self.exposed: Callable[[], ExposedLists] = ExposedLists

    def __repr__(self) -> str:
        return f"<GreetingWriter {self._source!r}>"

    async def keep(self, config: Config, stamp: Stamp) -> None:
        """Write the file where it would say something else. `stamp` is of the file read last."""
        greeted = tuple(map(self._greeted, config.servers))
        exposed = self.exposed()
        kept = self._kept
        if kept is None or kept[:2] != (stamp, greeted) or kept[2] is not exposed:
            self._kept = (stamp, greeted, exposed)
            write = partial(self._write, stamp, greeted, exposed)
            await anyio.to_thread.run_sync(write, abandon_on_cancel=True)

    def _greeted(self, server: ServerConfig) -> Greeted:
        """Its line is what a person wrote of it, else its own title."""
        if server.description:
            return Greeted(server.name, server.description)
        member = self._servers.members.get(server.name)
        if member is not None and member.origin is not Origin.CONFIGURATION:
            member = None  # a model put another one there
        hello = None if member is None else member.backend.snapshot().hello
        about = mapping(None if hello is None else hello.server_info)
        title = about.get("title") or about.get("name")
        return Greeted(
            server.name, self._mask(title) if isinstance(title, str) else "", own_words=True
        )

    def _write(self, stamp: Stamp, greeted: tuple[Greeted, ...], exposed: ExposedLists) -> None:
        named = self._source.named
        asked = None if named is None else config_file(named, self._environ)
        if named is None or asked is None:
            return
        with suppress(OSError, ValueError, RuntimeError, ProxyError):
            before = {one.name: one for one in read_greeting(named, self._environ).servers}
            # One that is not connected yet keeps what it was known by.
            servers = [one if one.line else before.get(one.name, one) for one in greeted]
            file = str(self._source.path().absolute())
            greeting = Greeting(servers, exposed.arrays, to_json(exposed.owners))
            held = written_greeting(asked=asked, file=file, stamp=stamp, greeting=greeting)
            path = Path(greeting_file(self._environ))
            if len(held) <= MAX_BYTES and held != _present(path):
                make_private(path.parent)
                write_whole(path, held.decode())


def _present(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None
