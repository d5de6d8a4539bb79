"""Makes the channel of a server from its configuration: a command to start, or a URL to call."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread

from emceepee_stdio.auth.bearer import Bearer, BearerContext, signs_in
from emceepee_stdio.backends.backend_events import Emit
from emceepee_stdio.backends.base import Era
from emceepee_stdio.backends.channels.stdio_channel import (
    ChildContext,
    Command,
    StdioChannel,
    StdioOptions,
)
from emceepee_stdio.backends.connection import Channel
from emceepee_stdio.config import ServerConfig, Settings
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.session.keyring_client import KeyringClient
from emceepee_stdio.session.registered_server import Admission, Origin
from emceepee_stdio.session.template_channel import OnSecrets, TemplateChannel
from emceepee_stdio.wire.partial_messages import PartialMessages
from emceepee_stdio.wire.process import StopTimes

__all__ = ["ChannelMaker"]

_WHOLE_LINES = 4  # of the longest at a time: three servers that send one leave room for a fourth


class ChannelMaker:
    """What the channels of all servers share."""

    def __init__(
        self,
        settings: Settings,
        around: ChildContext,
        bearers: BearerContext,
        *,
        on_secrets: OnSecrets,
    ) -> None:
        self._settings = settings
        self._around = around
        self._bearers = bearers
        self._on_secrets = on_secrets
        self._keyring = KeyringClient(around.environ, within=settings.fixed.keyring_s)
        self._partial = PartialMessages(_WHOLE_LINES * settings.limits.line_bytes)

    def __repr__(self) -> str:
        return f"<ChannelMaker {self._partial!r}>"

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
            config, partial(make, emit), keyring=self._keyring, on_secrets=self._on_secrets
        )

    def _http_channel(self, admission: Admission, emit: Emit, http: Any) -> Channel:
        config = admission.config
        times, limits = self._settings.timeouts, self._settings.limits
        options = http.HttpOptions(
            era=_era(config),
            sse={"auto": None, "http": False, "sse": True}.get(config.transport),
            connect=times.connect_ms / 1000,
            max_message=limits.line_bytes,
            times=http.HttpTimes(probe=self._settings.fixed.probe_s),
            rule=admission.rule,
            partial=self._partial,
            bearer=self._bearer(admission),
        )
        return http.HttpChannel(
            config.name,
            config.url or "",
            emit=emit,
            clock=self._around.clock,
            ids=self._around.ids,
            headers=config.headers,
            options=options,
        )

    def _bearer(self, admission: Admission) -> Bearer | None:
        if not signs_in(admission.config):
            return None
        trusted = admission.origin is Origin.CONFIGURATION
        return Bearer(admission.config, self._bearers, trusted=trusted)

    def _stdio_channel(self, admission: Admission, emit: Emit) -> StdioChannel:
        config = admission.config
        if config.command is None:
            raise ConfigInvalid(f"{config.name} has neither a command nor a url.")
        connect, max_line = self._settings.timeouts.connect_ms, self._settings.limits.line_bytes
        fixed = self._settings.fixed
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
            surroundings=self._around,
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
