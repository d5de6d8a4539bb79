"""Makes the channel of a server from its configuration: a command, or a URL."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from emceepee_stdio.auth.bearer import Bearer, BearerContext, signs_in
from emceepee_stdio.auth.keyring_access import LIST_BACKENDS, KeyringAnswer, KeyringOrder
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.channels.stdio_channel import (
    ChildContext,
    Command,
    StdioChannel,
    StdioOptions,
)
from emceepee_stdio.backends.connection import Channel, Connection
from emceepee_stdio.backends.interface import Emit, Era
from emceepee_stdio.config.fields import filled_in, needed_secrets
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import CannotConnect, ConfigInvalid, SecretUnavailable
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.trust.targets import AddressRule
from emceepee_stdio.wire.framing import PartialMessages
from emceepee_stdio.wire.helper_process import HELPER_MAIN, HelperProcess
from emceepee_stdio.wire.process import ProgramFile, StopTimes

# Asks the keyring through a helper process, in bounded time: it may be locked, or hang.
#
# One helper at a time, so that a locked keyring asks the person once: who comes while one is at
# work is served by the next, together with all others that wait by then.


_KILL_S = 10.0  # a killed process ends in milliseconds, unless the kernel holds it
_MAX_ANSWER_BYTES = 4 << 20  # no keyring holds as much for us


class _Wanted:
    """One who waits for secrets, and what came."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self.answer: KeyringAnswer | None = None


class KeyringClient:
    """The way to the keyring. `within` is how long it may take, in seconds."""

    def __init__(self, environ: Mapping[str, str], *, within: float) -> None:
        self._environ = environ
        self._within = within
        self._turn = anyio.Lock()
        self._waiting: list[_Wanted] = []

    async def look_up(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these names that the keyring has."""
        wanted = _Wanted(names)
        self._waiting.append(wanted)
        async with self._turn:
            if wanted.answer is None:
                batch, self._waiting = [wanted, *self._waiting], []
                every = dict.fromkeys(name for one in batch for name in one.names)
                answer = await self._ask(KeyringOrder(get=tuple(every)))
                for one in batch:
                    one.answer = answer
        return _checked(wanted.answer or KeyringAnswer()).values

    async def change(self, order: KeyringOrder) -> KeyringAnswer:
        """Store and remove; raises where the keyring refuses."""
        async with self._turn:
            return _checked(await self._ask(order))

    async def is_absent(self) -> bool:
        """Whether there is no keyring at all; one that does not answer is there."""
        async with self._turn:
            return (await self._ask(KeyringOrder())).is_absent

    async def _ask(self, order: KeyringOrder) -> KeyringAnswer:
        helper = HelperProcess.start(
            HELPER_MAIN,
            "keyring",
            order=msgspec.json.encode(order),
            environ=self._environ,
            answers=True,
        )
        line = b""
        try:
            with anyio.move_on_after(self._within) as waited:
                line = await helper.answer(_MAX_ANSWER_BYTES)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_KILL_S):
                await helper.kill()
        if waited.cancelled_caught:
            return KeyringAnswer(
                problem=f"The keyring did not answer within {self._within:g} s",
                hint="It may be locked and wait for a person: unlock it, and try again.",
            )
        try:
            return msgspec.json.decode(line, type=KeyringAnswer)
        except msgspec.MsgspecError:
            return KeyringAnswer(
                problem="The helper that asks the keyring ended without an answer",
                hint=f"See which keyrings the Python package keyring finds: `{LIST_BACKENDS}`.",
            )


def require(names: Sequence[str], found: Mapping[str, str]) -> None:
    """Raises where one of these was not found."""
    missing = [name for name in names if name not in found]
    if missing:
        command = f"emceepee secrets set {missing[0]}"
        raise SecretUnavailable(
            f"The keyring has no secret {', '.join(missing)}.",
            hint=f"Store it: {command}",
            command=command,
        )


def _checked(answer: KeyringAnswer) -> KeyringAnswer:
    if answer.problem:
        raise SecretUnavailable(f"{answer.problem}.", hint=answer.hint)
    return answer


# A channel to a server that refers to the keyring: each connection looks its secrets up first.
#
# What is shown of it, and what it is known by, is the entry as it is written: never a secret. A
# keyring that is locked in the meantime does not part us from a server that was there before: then
# what was known is used again.


# Told the server with its secrets, and these, before anything is given to it.
OnSecrets = Callable[[ServerConfig, Iterable[str]], None]


class TemplateChannel(Struct, eq=False, dict=True):
    """Makes the real channel as soon as the secrets are known, and anew when they change."""

    config: ServerConfig
    make: Callable[[ServerConfig], Channel]
    keyring: KeyringClient
    on_secrets: OnSecrets

    def __post_init__(self) -> None:
        self._shown = self.make(self.config)
        self._full: ServerConfig | None = None
        self._inner = self._shown

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
        names = needed_secrets(self.config)
        try:
            try:
                secrets = await self.keyring.look_up(names)
            except SecretUnavailable:
                if self._full is not None:
                    return
                raise
            require(names, secrets)
            full = filled_in(self.config, secrets)
        except ConfigInvalid as error:
            raise CannotConnect(error.fact) from None
        except SecretUnavailable as error:
            fact = f"{self.config.name} needs a secret. {error.fact}"
            raise SecretUnavailable(fact, hint=error.next_step, command=error.command) from None
        if full != self._full:
            self.on_secrets(full, secrets.values())
            self._full, self._inner = full, self.make(full)


# One server of the session as it is registered: how it came in, and what it listed.
#
# What it was admitted with belongs to the server and travels with it; there is no server without.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChanged:
    """A server was added, replaced or removed."""

    kind: JournalEvent
    member: RegisteredServer
    by: Origin


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListedTools:
    """The tools that a server listed, and what it said of itself when it was connected."""

    config: ServerConfig
    origin: Origin
    tools: Sequence[Mapping[str, object]]
    instructions: str | None


_WHOLE_LINES = 4  # of the longest at a time: three servers that send one leave room for a fourth


class ChannelMaker(Struct, eq=False, dict=True):
    """What the channels of all servers share."""

    settings: Settings
    around: ChildContext
    bearers: BearerContext
    on_secrets: OnSecrets

    def __post_init__(self) -> None:
        self._keyring = KeyringClient(self.around.environ, within=self.settings.fixed.keyring_s)
        self._partial = PartialMessages(_WHOLE_LINES * self.settings.limits.line_bytes)

    async def maker(self, admission: Admission) -> Callable[[Emit], Channel]:
        """Loads what the channel of this server needs; the rest is done without waiting."""
        config = admission.config
        # The HTTP client costs start-up: it is loaded off the loop, with the first URL.
        http = None if config.url is None else await anyio.to_thread.run_sync(_load_http)

        def make(emit: Emit, config: ServerConfig) -> Channel:
            full = replace(admission, config=config)
            if http is None:
                return self._stdio_channel(full, emit)
            return self._http_channel(full, emit, http)

        if not config.templates:
            return lambda emit: make(emit, config)
        return lambda emit: TemplateChannel(
            config, partial(make, emit), keyring=self._keyring, on_secrets=self.on_secrets
        )

    def _http_channel(self, admission: Admission, emit: Emit, http: Any) -> Channel:
        config = admission.config
        times, limits = self.settings.timeouts, self.settings.limits
        options = http.HttpOptions(
            era=_era(config),
            sse={"auto": None, "http": False, "sse": True}.get(config.transport),
            connect=times.connect_ms / 1000,
            max_message=limits.line_bytes,
            probe=self.settings.fixed.probe_s,
            rule=admission.rule,
            partial=self._partial,
            bearer=self._bearer(admission),
        )
        return http.HttpChannel(
            config.name,
            config.url or "",
            emit=emit,
            clock=self.around.clock,
            ids=self.around.ids,
            headers=config.headers,
            options=options,
        )

    def _bearer(self, admission: Admission) -> Bearer | None:
        if not signs_in(admission.config):
            return None
        trusted = admission.origin is Origin.CONFIGURATION
        return Bearer(admission.config, self.bearers, trusted=trusted)

    def _stdio_channel(self, admission: Admission, emit: Emit) -> StdioChannel:
        config = admission.config
        if config.command is None:
            raise ConfigInvalid(f"{config.name} has neither a command nor a url.")
        connect, max_line = self.settings.timeouts.connect_ms, self.settings.limits.line_bytes
        fixed = self.settings.fixed
        return StdioChannel(
            config.name,
            Command(
                command=config.command,
                args=config.args,
                env=config.env,
                pass_env=config.pass_env,
                cwd=config.cwd,
                agreed=admission.program,
            ),
            emit=emit,
            surroundings=self.around,
            options=StdioOptions(
                era=_era(config),
                connect=connect / 1000,
                probe=fixed.probe_s,
                drain=fixed.exit_drain_s,
                stop=StopTimes(term=fixed.stop_term_s, kill=fixed.stop_kill_s),
                tail_lines=fixed.stderr_tail_lines,
                max_line=max_line,
                max_unread=fixed.unread_bytes,
                partial=self._partial,
            ),
        )


def _era(config: ServerConfig) -> Era | None:
    return None if config.era == "auto" else Era(config.era)


def _load_http():
    from emceepee_stdio.backends.channels import http_channel  # noqa: PLC0415 - see the caller

    return http_channel
