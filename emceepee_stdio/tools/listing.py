"""Lists over many servers: asked at the same time, filtered, and shown page by page.

A server that does not answer is named with the reason, never left out in silence.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import anyio
from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.backends.link import Link
from emceepee_stdio.errors import InvalidArguments, ProxyError, ServerUnavailable
from emceepee_stdio.session.calls import Call
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import Pattern, Phase

__all__ = ["Cursor", "Found", "Limit", "ServerPattern", "gather", "page", "pattern"]

_PATIENCE = 10.0

ServerPattern = Annotated[str, Meta(description="Regex of server names.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="How many at once.")]
Cursor = Annotated[str, Meta(description="next_cursor of the answer before.")]


@dataclass(slots=True)
class Found:
    """Items with their server, and the servers that could not be asked."""

    items: list[tuple[str, Mapping[str, object]]] = field(
        default_factory=list[tuple[str, Mapping[str, object]]]
    )
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def failures(self) -> dict[str, object]:
        return {"servers_that_failed": self.failed} if self.failed else {}


def pattern(runtime: Runtime, text: str) -> Pattern:
    settings = runtime.settings
    return Pattern(
        text,
        max_chars=settings.limits.pattern_chars,
        timeout=settings.timeouts.pattern_ms / 1000,
    )


async def gather(runtime: Runtime, kind: str, servers: str, call: Call) -> Found:
    """Ask every server of that name pattern at once."""
    wanted = pattern(runtime, servers)
    links = [link for link in runtime.servers if wanted.matches(link.name)]
    answers: dict[str, Sequence[Mapping[str, object]]] = {}
    found = Found()
    within = min(_PATIENCE, call.ceiling)

    async def ask(link: Link) -> None:
        try:
            answers[link.name] = await _list(link, kind, within)
        except ProxyError as error:
            found.failed[link.name] = str(error)

    async with anyio.create_task_group() as tasks:
        for link in links:
            tasks.start_soon(ask, link)
    found.items = [(link.name, item) for link in links for item in answers.get(link.name, ())]
    return found


async def _list(link: Link, kind: str, within: float) -> Sequence[Mapping[str, object]]:
    """The list, or what was known last of a server that is busy coming back."""
    with anyio.move_on_after(within):
        return await link.list_all(kind, within=within)
    known = link.known(kind)
    if known is not None and link.phase is Phase.CONNECTED:
        return known
    raise ServerUnavailable(f"{link.name} did not answer within {within:g} s.")


def page(
    items: Sequence[dict[str, object]], *, limit: int, cursor: str | UnsetType
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """One page, and what to say about the rest."""
    start = 0
    if cursor is not UNSET:
        if not cursor.isdecimal() or not cursor.isascii():
            raise InvalidArguments(
                "cursor is not one of ours.", hint="Use next_cursor of the answer before."
            )
        start = int(cursor[:18])
    shown = list(items[start : start + limit])
    rest: dict[str, object] = {"total": len(items)}
    if start + limit < len(items):
        rest["next_cursor"] = str(start + limit)
    return shown, rest


def matching(
    items: Sequence[tuple[str, Mapping[str, object]]], wanted: Pattern, keys: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The items of which one of these fields matches."""
    for server, item in items:
        if any(wanted.matches(str(item[key])) for key in keys if item.get(key)):
            yield server, item
