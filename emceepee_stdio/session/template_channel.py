"""A channel to a server that refers to the keyring: each connection looks its secrets up first.

What is shown of it, and what it is known by, is the entry as it is written: never a secret. A
keyring that is locked in the meantime does not part us from a server that was there before: then
what was known is used again.
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

from emceepee_stdio.backends.connection import Channel, Connection
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.config.keyring_references import filled_in, needed_secrets
from emceepee_stdio.errors import CannotConnect, ConfigInvalid, SecretUnavailable
from emceepee_stdio.session.keyring_client import KeyringClient, require

__all__ = ["OnSecrets", "TemplateChannel"]

# Told the server with its secrets, and these, before anything is given to it.
OnSecrets = Callable[[ServerConfig, Iterable[str]], None]


class TemplateChannel:
    """Makes the real channel as soon as the secrets are known, and anew when they change."""

    def __init__(
        self,
        config: ServerConfig,
        make: Callable[[ServerConfig], Channel],
        *,
        keyring: KeyringClient,
        on_secrets: OnSecrets,
    ) -> None:
        self._config = config
        self._make = make
        self._keyring = keyring
        self._on_secrets = on_secrets
        self._shown = make(config)
        self._full: ServerConfig | None = None
        self._inner = self._shown

    def __repr__(self) -> str:
        return f"<TemplateChannel {self._shown!r}>"

    @property
    def transport(self) -> str:
        return self._shown.transport

    @property
    def target(self) -> str:
        return self._shown.target

    @property
    def needs_tools(self) -> bool:
        return self._inner.needs_tools

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        await self._look_up()
        async with self._inner.connect() as connection:
            yield connection

    async def _look_up(self) -> None:
        names = needed_secrets(self._config)
        try:
            try:
                secrets = await self._keyring.look_up(names)
            except SecretUnavailable:
                if self._full is not None:
                    return
                raise
            require(names, secrets)
            full = filled_in(self._config, secrets)
        except ConfigInvalid as error:
            raise CannotConnect(error.fact) from None
        except SecretUnavailable as error:
            fact = f"{self._config.name} needs a secret. {error.fact}"
            raise SecretUnavailable(fact, hint=error.next_step, command=error.command) from None
        if full != self._full:
            self._on_secrets(full, secrets.values())
            self._full, self._inner = full, self._make(full)
