"""Arguments and options that several commands have, and which server a command is about.

A server is a configured one, a URL, or a command after two dashes. The last two need not be
configured. They are started as a configured one would be: with the same few variables of this
shell, and nothing of them is kept.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from emceepee_stdio.cli.command_line import HelpCommand, argument, flag, option
from emceepee_stdio.cli.terminal import ExitCode, terminal
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.config.load import default_path, load_file
from emceepee_stdio.config.own_file import ConfigLocation, places
from emceepee_stdio.config.server import ServerConfig, label
from emceepee_stdio.config.settings import Config, Settings
from emceepee_stdio.config.tool_rules import rules_of
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.redaction.redact import redact_argv, redact_url
from emceepee_stdio.session import catalogue_files
from emceepee_stdio.trust.store import TrustStore, default_trust_directory
from emceepee_stdio.visible_text import shell_line, shell_word

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
    server = _server(context)
    key = TrustStore(default_trust_directory(os.environ)).existing_key()
    if server is None or key is None:
        return
    rules = rules_of({server.name: server.tools}) if hides and kind == "tools" else None
    directory = catalogue_files.default_catalogue_directory(os.environ)
    for name in catalogue_files.listed_names(
        directory, catalogue_files.catalogue_identity(server, key), kind
    ):
        if rules is None or not rules.hides(name):
            yield name


def _server(context: typer.Context) -> ServerConfig | None:
    """The one that the line names already."""
    params = cast("dict[str, object]", context.params)
    name = params.get("server", params.get("name"))
    return next((one for one in _config(context).servers if one.name == name), None)


def _sessions(context: typer.Context) -> Iterator[str]:
    from emceepee_stdio.cli.log_reading import log_directory  # noqa: PLC0415 - loads regex

    named = context.params.get("log_dir")
    for path in (Path(named) if named else log_directory(os.environ)).iterdir():
        if found := _SESSION.fullmatch(path.name):
            yield found["id"]


ConfigOption = Annotated[
    Path | None, option("FILE", "--config", about="Another file than the default one.")
]
JsonOption = Annotated[bool, flag("--json", about="As JSON, for programs.")]
ServerArgument = Annotated[
    str, argument("NAME", about="Which server.", autocompletion=complete_servers)
]

# Of commands that read what proxies have written.
ServersOption = Annotated[
    list[str] | None,
    option("NAME", about="Only this server; may be repeated.", autocompletion=complete_servers),
]
SinceOption = Annotated[
    str | None, option("TIME", about="From then on: 30s, 10m, 2h, 1d or ISO 8601.")
]
LogDirectoryOption = Annotated[
    Path | None, option("DIR", about="Another directory than the configured one.")
]


def config_file(config: Path | None) -> Path:
    """The file that the option names, or the default one."""
    return default_path(os.environ) if config is None else config.expanduser()


def place_of(text: str | None, name: str) -> ConfigLocation:
    """Where an entry stands; the error names the one that may be meant."""
    found = {place.name: place for place in places(text)}
    if name not in found:
        raise unknown_server(name, {one: label(one) for one in found}, argument="NAME")
    return found[name]


def tell_backups(backups: Iterable[Path | None]) -> None:
    for backup in filter(None, backups):
        terminal.line(f"The file as it was: {backup}")


# Commands that take another command after two dashes: what to type when the dashes are missing.
#
# An option behind the other command may be meant for either, so it is not guessed.


_DASHES = "--"
_COMMAND_PLACE = 1  # of the words that are no options: the name comes first


class DashedCommand(HelpCommand):
    """Tells where the dashes belong, before an option of the other command is refused as ours."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.get_params(ctx)
            for name in param.opts
        }
        line = with_dashes(args, takes_value)
        if line is not None:
            _, *command = ctx.command_path.split()  # without the file that was started
            # Not in a box, which would break the line that the person is to copy.
            terminal.note("emceepee: Two dashes are missing before the command to start. Type:")
            terminal.note(f"  {shell_line(['emceepee', *command, *redact_argv(line)])}")
            raise typer.Exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)


def with_dashes(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str] | None:
    """The words with two dashes before the command; None where none are missing.

    `takes_value` has the options that are ours, and whether a value follows each.
    """
    plain: list[int] = []
    place = 0
    while place < len(words) and words[place] != _DASHES:
        word = words[place]
        name = word.partition("=")[0]
        if not word.startswith("-"):
            plain.append(place)
        elif name in takes_value:
            place += takes_value[name] and name == word
        elif word[:2] not in takes_value:
            break
        place += 1
    else:
        return None
    if len(plain) <= _COMMAND_PLACE:
        return None
    begin = plain[_COMMAND_PLACE]
    return [*words[:begin], _DASHES, *words[begin:]]


_WORDS = "emceepee.command"  # where the words after the two dashes wait, in the context

AnyServerArgument = Annotated[
    str,
    argument(
        "SERVER",
        about="A configured server, the URL of one, or -- COMMAND at the end.",
        autocompletion=complete_servers,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """The server, and how it is treated. `words` name it on a command line, without secrets."""

    server: ServerConfig
    settings: Settings
    words: str
    is_configured: bool = True


class ServerCommand(HelpCommand):
    """A command whose SERVER may be `-- COMMAND ARGS` at the end of the line instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if _DASHES in args:
            place = args.index(_DASHES)
            ctx.meta[_WORDS] = args[place + 1 :]
            # It stands for SERVER, which is always the first.
            args = ["COMMAND", *args[:place]]
        return super().parse_args(ctx, args)


def choose(context: typer.Context, name: str, config: Path | None) -> ServerChoice:
    """The server that the command line names, or a word on why not, or on which there are."""
    loaded = load_file(config, environ=os.environ)
    words: Sequence[str] | None = context.meta.get(_WORDS)
    try:
        if words is not None:
            return _started(words, loaded.settings)
        if is_url(name) and name not in [one.name for one in loaded.servers]:
            shown = redact_url(name)
            server = ServerConfig(name=label(shown), url=name)
            return ServerChoice(
                server=server, settings=loaded.settings, words=shown, is_configured=False
            )
    except ConfigInvalid as error:
        raise typer.BadParameter(error.fact, param_hint="SERVER") from None
    server = chosen(name, loaded)
    return ServerChoice(server=server, settings=loaded.settings, words=shell_word(name))


def chosen(name: str, config: Config, *, argument: str = "SERVER") -> ServerConfig:
    """The configured server of that name, or a word on why not, or on which there are."""
    names = [server.name for server in config.servers]
    if name in names:
        return config.servers[names.index(name)]
    if broken := next((one for one in config.disabled if one.name == name), None):
        way = f" Enable it: emceepee config enable {shell_word(name)}"
        step = way if broken.switched_off else ""
        raise typer.BadParameter(f"{broken.fact}{step}", param_hint=argument)
    raise unknown_server(name, config.marked_names, argument=argument)


def unknown_server(name: str, marked: Mapping[str, str], *, argument: str) -> typer.BadParameter:
    """That no server has this name, with the one that may be meant, or all that there are."""
    near = nearest(name, marked)
    known = f"There are: {', '.join(marked.values()) or 'none'}."
    advice = f"Did you mean {marked[near]}?" if near else known
    return typer.BadParameter(f"there is no server {name!r}. {advice}", param_hint=argument)


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _started(words: Sequence[str], settings: Settings) -> ServerChoice:
    if not words:
        raise typer.BadParameter("two dashes, and no command after them.", param_hint="SERVER")
    shown = shell_line(redact_argv(words))
    server = ServerConfig(name=label(shown), command=words[0], args=tuple(words[1:]))
    return ServerChoice(server=server, settings=settings, words=f"-- {shown}", is_configured=False)
