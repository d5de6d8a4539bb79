"""`emceepee ls`: lists the tools, resources and prompts of servers."""

import os
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from emceepee_stdio import signatures
from emceepee_stdio.cli import shared_options
from emceepee_stdio.cli.call import TimeoutOption, remedy
from emceepee_stdio.cli.command_line import argument, flag
from emceepee_stdio.cli.config import note_warnings
from emceepee_stdio.cli.terminal import ExitCode, interrupts, terminal
from emceepee_stdio.config.load import load_file
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.config.tool_rules import rules_of
from emceepee_stdio.errors import NeedsSignIn, ProxyError, WrongCredentials
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import harmless, on_one_line, shell_line, shell_word

# What a server offers, for a person to read: tools as functions, each with what it is for.
#
# At a terminal a description is its first sentence, in one line; in a pipe nothing is cut.


_ASKS = " (you are asked)"
_KEYS = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resource_templates": "uriTemplate",
}
_INDENT = "  "
_TEXT_INDENT = "      "  # of what belongs to the line above it

Item = Mapping[str, Any]


def show_names(found: Sequence[Mapping[str, Any]]) -> None:
    """All that all servers offer, by name."""
    rows = [
        (str(offers["name"]), _what(kind), f"{item.get(key, '')}{_mark(item)}")
        for offers in found
        for kind, key in _KEYS.items()
        for item in offers.get(kind, ())
    ]
    if rows:
        terminal.table(("SERVER", "WHAT", "NAME"), rows)


def show_offers(offers: Mapping[str, Any], *, is_full: bool) -> None:
    """All that one server offers; rows of cells in a pipe, unless the whole text is wanted."""
    if not any(offers.get(kind) for kind in _KEYS):
        terminal.note(f"{offers['name']} offers nothing.")
        return
    if terminal.columns is None and not is_full:
        rows = [
            (str(offers["name"]), _what(kind), f"{_cell(kind, item)}{_mark(item)}", _about(item))
            for kind in _KEYS
            for item in offers.get(kind, ())
        ]
        terminal.table(("SERVER", "WHAT", "NAME", "DESCRIPTION"), rows)
        return
    parts = [kind for kind in _KEYS if offers.get(kind)]
    for number, kind in enumerate(parts):
        if number:
            terminal.line()
        terminal.line(kind.capitalize().replace("_", " "), style="bold")
        for item in offers[kind]:
            _show_item(kind, item, is_full=is_full)


def _show_item(kind: str, item: Item, *, is_full: bool) -> None:
    room = None if terminal.columns is None else terminal.columns - len(_INDENT) - 1
    for line in _lines(kind, item, room):
        terminal.line(f"{_INDENT}{line}", style="cyan")
    room = None if terminal.columns is None else terminal.columns - len(_TEXT_INDENT) - 1
    for line in (
        _whole(kind, item, room) if is_full else [signatures.first_sentence(_about(item), room)]
    ):
        if line:
            terminal.line(f"{_TEXT_INDENT}{line}")


def _cell(kind: str, item: Item) -> signatures.Signature | str:
    match kind:
        case "tools":
            return signatures.tool_signature(item)
        case "prompts":
            return signatures.prompt_signature(item)
        case _:
            return on_one_line(str(item.get(_KEYS[kind], "")))


def _lines(kind: str, item: Item, room: int | None) -> list[str]:
    cell, mime = _cell(kind, item), item.get("mimeType")
    lines = cell.lines(room) if isinstance(cell, signatures.Signature) else [cell]
    if mime and not isinstance(cell, signatures.Signature):
        lines[-1] += f" ({on_one_line(str(mime))})"
    return [*lines[:-1], f"{lines[-1]}{_mark(item)}"]


def _whole(kind: str, item: Item, room: int | None) -> Iterator[str]:
    """Every line of a description, and what is said of each parameter."""
    yield from _wrapped(_about(item), room)
    for one in _parameters(kind, item):
        if one.description:
            yield from _wrapped(f"{one.name}: {' '.join(one.description.split())}", room, hang="  ")


def _parameters(kind: str, item: Item) -> list[signatures.Parameter]:
    if kind == "tools":
        return signatures.parameters(mapping(item.get("inputSchema")))
    listed = item.get("arguments") if kind == "prompts" else None
    found = map(mapping, elements(listed))
    return [
        signatures.Parameter(name=str(one.get("name")), schema=one, is_required=False)
        for one in found
    ]


def _wrapped(text: str, room: int | None, *, hang: str = "") -> Iterator[str]:
    for line in harmless(text).expandtabs(4).splitlines():
        if room is None:
            yield line
        else:
            yield from textwrap.wrap(
                line, max(room, 20), subsequent_indent=hang, break_on_hyphens=False
            ) or [""]


def _about(item: Item) -> str:
    return str(item.get("description") or item.get("title") or item.get("name") or "").strip()


def _mark(item: Item) -> str:
    native = item.get("exposed_as")
    asks = _ASKS if item.get("rule") == "ask" else ""
    return f"{asks} (exposed as {native})" if native else asks


def _what(kind: str) -> str:
    return kind.removesuffix("s").replace("_", " ")


_TIMEOUT_S = 30.0  # a first start may download the server, but a person waits
_OUR_KEYS = ("rule", "exposed_as")  # what only we say of a tool


def ls(
    context: typer.Context,
    server: Annotated[
        str | None, argument("[SERVER]", autocompletion=shared_options.complete_servers)
    ] = None,
    *,
    full: Annotated[bool, flag("--full")] = False,
    timeout: TimeoutOption = _TIMEOUT_S,
    config: shared_options.ConfigOption = None,
    as_json: shared_options.JsonOption = False,
) -> None:
    """List tools, prompts and resources of the servers.

    The tools of one server are shown as functions: what they take, of which type, `= default` or
    `?` where it may be left out. Servers that start on first use are not started where it is known
    what they list.

    The exit code is 0 if all of them answered, 2 if there is no such server, 3 if one wants other
    credentials, 4 if one failed.

    Takes:
      server: Only this server, with signatures and descriptions: a configured one, the URL of one,
          or -- COMMAND at the end.
      full: Whole descriptions, also of what tools take.

    Example: emceepee ls github
    Example: emceepee ls -- uvx mcp-server-time
    """
    loaded = load_file(config, environ=os.environ)
    choice = None if server is None else shared_options.choose(context, server, config)
    servers = list(loaded.servers) if choice is None else [choice.server]
    unused = () if choice else loaded.disabled
    broken = [one for one in unused if not one.switched_off]
    disabled = [one.name for one in unused if one.switched_off]
    if not servers and not unused and not as_json:
        note_warnings(loaded)
        terminal.line("No servers yet. Add one: emceepee config add NAME -- COMMAND ARGS")
        return
    failures: dict[str, ProxyError] = {}
    with terminal.waiting(f"Asking {', '.join(one.name for one in servers) or 'nobody'} …"):
        found = interrupts.run(partial(_gather, servers, loaded, timeout, failures))
    found += [{"name": one.name, "error": f"Its entry is broken: {one.why}"} for one in broken]
    if as_json:
        terminal.document({"servers": found, "disabled": disabled})
    else:
        _show(found, choice, is_full=full)
        if disabled:
            names = ", ".join(disabled)
            terminal.note(f"Disabled: {names}. Enable one: emceepee config enable NAME")
    if failed := [one["name"] for one in found if "error" in one]:
        refused = (WrongCredentials, NeedsSignIn)
        if not as_json:
            _tell_next_steps(failed, failures, choice)
        is_refused = all(isinstance(failures.get(name), refused) for name in failed)
        raise typer.Exit(ExitCode.CREDENTIALS_REFUSED if is_refused else ExitCode.SERVER_FAILED)


def _show(
    found: Sequence[Mapping[str, Any]],
    choice: shared_options.ServerChoice | None,
    *,
    is_full: bool,
) -> None:
    if choice is None:
        show_names(found)
    elif "error" not in found[0]:
        show_offers(found[0], is_full=is_full)
    for one in found:
        _note(one, choice)


def _tell_next_steps(
    failed: Sequence[str],
    failures: Mapping[str, ProxyError],
    choice: shared_options.ServerChoice | None,
) -> None:
    if choice is not None:
        terminal.note(remedy(choice, failures.get(failed[0])))
        return
    waiting = [name for name in failed if isinstance(failures.get(name), NeedsSignIn)]
    for name in waiting:
        terminal.note(f"Sign in: {shell_line(['emceepee', 'login', name])}")
    if others := [name for name in failed if name not in waiting]:
        terminal.note(f"See why: emceepee doctor {shell_line(others)}")


def _note(offers: Mapping[str, Any], choice: shared_options.ServerChoice | None) -> None:
    """What is to be known of a list beside the list."""
    name = str(offers["name"])
    if "error" in offers:
        error = str(offers["error"])
        terminal.note(error if error.startswith(f"{name} ") else f"{name}: {error}")
    if at := offers.get("from_catalogue"):
        is_configured = choice is None or choice.is_configured
        anew = f"; anew: emceepee doctor {shell_word(name)}" if is_configured else ""
        terminal.note(f"{name}: as it listed at {at}, without starting it{anew}")
    if off := offers.get("tools_off"):
        tools = "1 tool is" if off == 1 else f"{off} tools are"
        terminal.note(f"{name}: {tools} off: emceepee config rules {shell_word(name)}")


async def _gather(
    servers: Sequence[ServerConfig],
    config: Config,
    within: float,
    failures: dict[str, ProxyError],
) -> list[dict[str, Any]]:
    import anyio  # noqa: PLC0415 - not for those who only want to see the help

    from emceepee_stdio.cli.one_shot import one_shot_session  # noqa: PLC0415 - see above

    found: dict[str, dict[str, Any]] = {}
    async with one_shot_session(config.settings, environ=os.environ, within=within) as here:

        async def ask(server: ServerConfig) -> None:
            offers: dict[str, Any] = {"name": server.name}
            if (known := await here.remembered(server)) is not None:
                offers |= {**known.lists, "from_catalogue": known.at}
                offers |= _marked(known.tools, server, config.names)
                found[server.name] = offers
                return
            backend = await here.open(server)
            try:
                await backend.connect(within=within + 1.0)
                for kind in _KEYS:
                    offers[kind] = await backend.list_all(kind, within=within)
                offers |= _marked(offers["tools"], server, config.names)
            except ProxyError as error:
                cause = backend.snapshot().error or error
                offers["error"] = here.shown(cause.whole_fact)
                failures[server.name] = cause
            found[server.name] = offers

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(ask, server)
    return [found[server.name] for server in servers]


def _marked(
    tools: Sequence[Mapping[str, Any]], server: ServerConfig, configured: Collection[str]
) -> dict[str, Any]:
    """The tools as the entry of the server leaves them: some hidden, some asked for or exposed."""
    from emceepee_stdio.session.exposed_lists import exposed_as  # noqa: PLC0415 - see above

    names = exposed_as(server, tools, configured)
    rules = rules_of({server.name: server.tools})
    shown: list[dict[str, Any]] = []
    for tool in tools:
        name = tool.get("name")
        if rules is not None and rules.hides(name):
            continue
        own = {key: value for key, value in tool.items() if key not in _OUR_KEYS}
        if (native := names.get(str(name))) is not None:
            own["exposed_as"] = native
        if rules is not None and rules.rule(name) == "ask":
            own["rule"] = "ask"
        shown.append(own)
    off = len(tools) - len(shown)
    return {"tools": shown} | ({"tools_off": off} if off else {})
