"""What a client is listed of exposed servers, as far as that is known without starting them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import Config
from emceepee_stdio.config.server import label

__all__ = ["KnownExposure", "known_exposure", "say_listed", "some_of"]

_SHOWN_NAMES = 20  # a few lines of a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownExposure:
    """By what a server listed at some time: its exposed tools, and patterns that match none."""

    at: str
    names: Sequence[str]
    idle: Sequence[str]


def known_exposure(config: Config, environ: Mapping[str, str]) -> dict[str, KnownExposure]:
    """Of each exposed server of which it is known what it lists."""
    exposing = [entry for entry in config.servers if entry.expose]
    if not exposing:
        return {}
    from emceepee_stdio.clock import Clock  # noqa: PLC0415 - all of it is often not needed
    from emceepee_stdio.journal import Journal  # noqa: PLC0415
    from emceepee_stdio.session.catalogue import Catalogue  # noqa: PLC0415
    from emceepee_stdio.session.catalogue_files import default_catalogue_directory  # noqa: PLC0415
    from emceepee_stdio.session.catalogue_store import CatalogueStore  # noqa: PLC0415
    from emceepee_stdio.session.exposed_entries import exposed_as, idle_patterns  # noqa: PLC0415
    from emceepee_stdio.trust.store import TrustStore, default_trust_directory  # noqa: PLC0415

    store = CatalogueStore(default_catalogue_directory(environ))
    if not store.directory.is_dir():
        return {}
    catalogue = Catalogue(
        store,
        TrustStore(default_trust_directory(environ)),
        pin_mode=lambda: config.settings.policy.pin,
        journal=Journal.silent(Clock()),
    )
    found: dict[str, KnownExposure] = {}
    for entry in exposing:
        if (known := catalogue.look_up(entry)) is not None:
            found[entry.name] = KnownExposure(
                at=known.at,
                names=list(exposed_as(entry, known.tools, config.names).values()),
                idle=idle_patterns(entry, known.tools),
            )
    return found


def some_of(names: Sequence[str], count: int = _SHOWN_NAMES) -> str:
    """The first of them in a line."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def say_listed(name: str, known: KnownExposure | None) -> None:
    """What it comes to for a client."""
    terminal = Terminal()
    if known is None:
        look = f"emceepee doctor {shlex.quote(name)}"
        terminal.note(f"What {label(name)} lists is not known yet. To see it: {look}")
        return
    terminal.line(f"Listed as: {some_of(known.names) or 'nothing'}")
    for pattern in known.idle:
        terminal.note(f"No tool of {label(name)} matches {pattern!r}.")
