"""Tools for notifications and logs of servers, and their log level."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.backends.interface import LOG_LEVELS, LogLevel
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_output import Logged, Notified
from emceepee_stdio.state.event_types import Excerpt
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.state.ring import Ring
from emceepee_stdio.tools.listing import matching, pattern, request_limit
from emceepee_stdio.tools.registry import Params, pages, tool

Source = Literal["protocol", "stderr", "stdout"]
T = TypeVar("T")


class GetNotifications(Params):
    server: Annotated[str | UnsetType, Meta(description="Only of this server.")] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many at once.")] = 100


class GetLogs(Params):
    server: Annotated[str | UnsetType, Meta(description="Only of this server.")] = UNSET
    level: Annotated[
        LogLevel | UnsetType, Meta(description="This level or above; output has no level.")
    ] = UNSET
    sources: Annotated[
        list[Source] | UnsetType, Meta(description="Only these: protocol, stderr, stdout.")
    ] = UNSET
    exclude_sources: Annotated[list[Source], Meta(description="Not these.")] = msgspec.field(
        default_factory=list
    )
    pattern: Annotated[str | UnsetType, Meta(description="Regex of the text.")] = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000, description="The newest so many.")] = 100
    peek: Annotated[bool, Meta(description="Leave them to be read again.")] = False


class SetLogLevel(Params):
    server: Annotated[str, Meta(description="The server.")]
    level: Annotated[LogLevel, Meta(description="This level and above will be sent.")]


@tool(meta=pages)
async def get_notifications(runtime: Runtime, p: GetNotifications, _call: Call) -> Reply:
    """Read notifications of servers in full; each is given once."""
    shown: list[dict[str, object]] = []
    overwritten = remaining = 0
    for ring in _of(runtime, runtime.session.state.notifications, p.server).values():
        reading = ring.read(limit=max(p.limit - len(shown), 0))
        shown += [_notified(runtime, item) for item in reading.items]
        overwritten += reading.overwritten
        remaining += reading.remaining
    return Reply.json({"notifications": shown, "overwritten": overwritten, "remaining": remaining})


@tool(meta=pages)
async def get_logs(runtime: Runtime, p: GetLogs, _call: Call) -> Reply:
    """Log output of servers: what they logged or printed (stderr), newest last; each line is
    given once. Says why a server fails.
    """
    rings = _of(runtime, runtime.session.state.logs, p.server)
    keep = _filter(p)
    if p.pattern is not UNSET:
        keep = await _searched(runtime, rings, keep, pattern(runtime, p.pattern))
    newest = sorted(
        (line for ring in rings.values() for line in ring.last(p.limit, keep)),
        key=lambda line: line.created_at,
    )[-p.limit :]
    share = Counter(line.server for line in newest)
    readings = [
        ring.read(limit=share[name], keep=keep, newest=True, peek=p.peek)
        for name, ring in rings.items()
    ]
    return Reply.json(
        {
            "logs": [_logged(runtime, line) for line in newest],
            "overwritten": sum(reading.overwritten for reading in readings),
            "remaining": sum(reading.remaining for reading in readings),
        }
    )


@tool()
async def set_log_level(runtime: Runtime, p: SetLogLevel, call: Call) -> Reply:
    """Set how much a server is to log."""
    backend = runtime.servers.get(p.server)
    await backend.set_log_level(p.level, within=request_limit(runtime, call))
    return Reply.json({"server": backend.name, "level": p.level})


def _of(
    runtime: Runtime, rings: Mapping[str, Ring[T]], server: str | UnsetType
) -> Mapping[str, Ring[T]]:
    """All of them, or that of one server, which may have gone since."""
    if server is UNSET:
        return dict(rings)
    if server in rings:
        return {server: rings[server]}
    runtime.servers.get(server)
    return {}


async def _searched(
    runtime: Runtime,
    rings: Mapping[str, Ring[Logged]],
    keep: Callable[[Logged], bool],
    wanted: Pattern,
) -> Callable[[Logged], bool]:
    """Lines that come while others are searched wait for the next time."""
    lines = [line for ring in rings.values() for line in ring.read(keep=keep, peek=True).items]
    found = await matching(runtime, lines, wanted, lambda entry: [entry.line.text])
    chosen = {id(line): line for line in found}
    return lambda line: id(line) in chosen


def _filter(p: GetLogs) -> Callable[[Logged], bool]:
    least = -1 if p.level is UNSET else LOG_LEVELS.index(p.level)

    def keep(entry: Logged) -> bool:
        line = entry.line
        source = line.source.value
        if (p.sources is not UNSET and source not in p.sources) or source in p.exclude_sources:
            return False
        return least < 0 or line.level in LOG_LEVELS[least:]

    return keep


def _notified(runtime: Runtime, item: Notified) -> dict[str, object]:
    shown: dict[str, object] = {
        "server": item.server,
        "method": item.method,
        "created_at": runtime.clock.iso(item.created_at),
    }
    if isinstance(item.params, Excerpt):
        shown |= {"params": item.params.text, "truncated": True, "params_bytes": item.params.size}
    elif item.params is not None:
        shown["params"] = item.params
    return shown


def _logged(runtime: Runtime, entry: Logged) -> dict[str, object]:
    shown: dict[str, object] = {
        "server": entry.server,
        "source": entry.line.source.value,
        "created_at": runtime.clock.iso(entry.created_at),
        "text": entry.line.text,
    }
    if entry.line.level is not None:
        shown["level"] = entry.line.level
    if entry.line.logger is not None:
        shown["logger"] = entry.line.logger
    return shown
