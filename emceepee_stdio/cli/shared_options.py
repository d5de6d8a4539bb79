"""Options that several commands have, each defined once, and their completion."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, cast

import typer

from emceepee_stdio.config import Config, ServerConfig, load_file
from emceepee_stdio.config.tool_rules import rules_of

# What a shell offers when a person presses Tab: servers, tools, prompts, events and sessions.
#
# No server is asked or started: tools are those that the server listed when it ran last. Shells
# evaluate what they are offered, and servers choose the names of their tools: only plain names are
# offered. Whatever goes wrong, nothing is offered, without a word in the middle of the person's
# line.


# No quotes, spaces, `$`, backslashes or globs; `:` parts words in bash.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@/+-]*", re.ASCII)
_SESSION = re.compile(r"(?:emceepee|requests)-[^-]+-[0-9]+-(?P<id>[\w-]+)\.jsonl", re.ASCII)


def complete_servers(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """All of them; shells that show a word beside a name show which are disabled or broken."""
    states: dict[str, str] = {}

    def find() -> Iterable[str]:
        config = _config(context)
        states.update({one.name: one.state for one in config.disabled})
        return config.names

    return [(name, states.get(name, "")) for name in _offered(incomplete, find)]


def complete_tools(context: typer.Context, incomplete: str) -> list[str]:
    """Those that may be called."""
    return _offered(incomplete, lambda: _listed(context, "tools"))


def complete_patterns(context: typer.Context, incomplete: str) -> list[str]:
    """All tools, also those that are off."""
    return _offered(incomplete, lambda: _listed(context, "tools", hides=False))


def complete_prompts(context: typer.Context, incomplete: str) -> list[str]:
    return _offered(incomplete, lambda: _listed(context, "prompts"))


def complete_events(incomplete: str) -> list[str]:
    from emceepee_stdio.journal import JournalEvent  # noqa: PLC0415 - only for this

    return _offered(incomplete, lambda: [event.value for event in JournalEvent])


def complete_sessions(context: typer.Context, incomplete: str) -> list[str]:
    return _offered(incomplete, lambda: _sessions(context))


def _offered(incomplete: str, find: Callable[[], Iterable[str]]) -> list[str]:
    try:
        names = set(find())
    except Exception:  # noqa: BLE001 - see the top
        return []
    return sorted(name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name))


def _config(context: typer.Context) -> Config:
    named = context.params.get("config")
    return load_file(Path(named) if named else None, environ=os.environ)


def _listed(context: typer.Context, kind: str, *, hides: bool = True) -> Iterator[str]:
    from emceepee_stdio.session.catalogue_files import (  # noqa: PLC0415 - only for this
        catalogue_identity,
        default_catalogue_directory,
        listed_names,
    )
    from emceepee_stdio.trust.store import (  # noqa: PLC0415 - only for this
        TrustStore,
        default_trust_directory,
    )

    server = _server(context)
    key = TrustStore(default_trust_directory(os.environ)).existing_key()
    if server is None or key is None:
        return
    rules = rules_of({server.name: server.tools}) if hides and kind == "tools" else None
    directory = default_catalogue_directory(os.environ)
    for name in listed_names(directory, catalogue_identity(server, key), kind):
        if rules is None or not rules.hides(name):
            yield name


def _server(context: typer.Context) -> ServerConfig | None:
    """The one that the line names already."""
    params = cast("dict[str, object]", context.params)
    name = params.get("server", params.get("name"))
    return next((one for one in _config(context).servers if one.name == name), None)


def _sessions(context: typer.Context) -> Iterator[str]:
    from emceepee_stdio.cli.log_reading import log_directory  # noqa: PLC0415 - only for this

    named = context.params.get("log_dir")
    for path in (Path(named) if named else log_directory(os.environ)).iterdir():
        if found := _SESSION.fullmatch(path.name):
            yield found["id"]


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than the default one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
ServerArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Which server.", autocompletion=complete_servers),
]

# Of commands that read what proxies have written.
ServersOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Only this server; may be repeated.", autocompletion=complete_servers
    ),
]
SinceOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="From then on: 30s, 10m, 2h, 1d or ISO 8601.")
]
LogDirectoryOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Another directory than the configured one."),
]
