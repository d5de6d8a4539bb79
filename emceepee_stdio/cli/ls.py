"""`emceepee ls`: what the configured servers offer."""

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from emceepee_stdio.cli.config import ConfigOption, JsonOption
from emceepee_stdio.cli.exit_codes import CREDENTIALS_REFUSED, SERVER_FAILED
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import Config, ServerConfig, Settings, load_file
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.config.tool_rules import rules_of

__all__ = ["TimeoutOption", "chosen", "ls"]

_TIMEOUT_S = 30.0  # a first start may download the server, but a person waits
_DESCRIPTION_CHARS = 100  # about a line of a table
_ASKS = " (you are asked)"
_KINDS = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resource_templates": "uriTemplate",
}

TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="How long it may take.")
]


def ls(
    server: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", help="Only this server, with descriptions.")
    ] = None,
    *,
    timeout: TimeoutOption = _TIMEOUT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tools, prompts and resources of the configured servers.

    Servers that start on first use are not started where it is known what they list.

    The exit code is 0 if all of them answered, 3 if one wants other credentials, 4 if one failed.

    Example: emceepee ls github
    """
    terminal = Terminal()
    loaded = load_file(config, environ=os.environ)
    servers = list(loaded.servers) if server is None else [chosen(server, loaded)]
    broken = [] if server else [one for one in loaded.disabled if not one.switched_off]
    if not servers and not broken and not as_json:
        terminal.line("No servers yet. Add one: emceepee config add NAME -- COMMAND ARGS")
        return
    refused: set[str] = set()
    with terminal.waiting(f"Asking {', '.join(one.name for one in servers) or 'nobody'} …"):
        found = interrupts.run(partial(_gather, servers, loaded.settings, timeout, refused))
    found += [{"name": one.name, "error": f"Not used: {one.reason.rstrip('.')}."} for one in broken]
    if as_json:
        terminal.data({"servers": found})
    else:
        _show(found, terminal, described=server is not None)
    for one in found:
        if "error" in one:
            terminal.note(f"{one['name']}: {one['error']}")
    if failed := [one["name"] for one in found if "error" in one]:
        terminal.note(f"See why: emceepee doctor {shlex.join(failed)}")
        raise typer.Exit(CREDENTIALS_REFUSED if refused.issuperset(failed) else SERVER_FAILED)


def chosen(name: str, config: Config) -> ServerConfig:
    """The configured server of that name, or a word on why not, or on which there are."""
    names = [server.name for server in config.servers]
    if name in names:
        return config.servers[names.index(name)]
    for broken in config.disabled:
        if broken.name == name:
            raise typer.BadParameter(
                f"{name} is not used: {broken.reason.rstrip('.')}.", param_hint="SERVER"
            )
    near = nearest(name, names)
    known = f"There are: {', '.join(names) or 'none'}."
    raise typer.BadParameter(
        f"there is no server {name!r}. {f'Did you mean {near}?' if near else known}",
        param_hint="SERVER",
    )


async def _gather(
    servers: Sequence[ServerConfig], settings: Settings, within: float, refused: set[str]
) -> list[dict[str, Any]]:
    import anyio  # noqa: PLC0415 - see above

    from emceepee_stdio.cli.one_shot import one_shot_session  # noqa: PLC0415 - see above
    from emceepee_stdio.errors import (  # noqa: PLC0415 - see above
        NeedsSignIn,
        ProxyError,
        WrongCredentials,
    )

    found: dict[str, dict[str, Any]] = {}
    async with one_shot_session(settings, environ=os.environ, within=within) as here:

        async def ask(server: ServerConfig) -> None:
            offers: dict[str, Any] = {"name": server.name}
            if (known := await here.remembered(server)) is not None:
                lists = {kind: known.lists[kind] for kind in known.lists}
                offers |= lists | {"from_catalogue": known.at} | _ruled(known.tools, server)
                found[server.name] = offers
                return
            backend = await here.open(server)
            try:
                await backend.connect(within=within + 1.0)
                for kind in _KINDS:
                    offers[kind] = await backend.list_all(kind, within=within)
                offers |= _ruled(offers["tools"], server)
            except ProxyError as error:
                cause = backend.snapshot().error or error
                offers["error"] = here.shown(cause.fact)
                if isinstance(cause, WrongCredentials | NeedsSignIn):
                    refused.add(server.name)
            found[server.name] = offers

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(ask, server)
    return [found[server.name] for server in servers]


def _ruled(tools: Sequence[Mapping[str, Any]], server: ServerConfig) -> dict[str, Any]:
    """The tools as the rules of the server leave them: some hidden, some marked."""
    rules = rules_of(server.tools)
    if rules is None:
        return {}
    shown = [tool for tool in tools if not rules.hides(tool.get("name"))]
    asked = [rules.rule(tool.get("name")) == "ask" for tool in shown]
    marked = [
        {**tool, "rule": "ask"} if asks else tool for tool, asks in zip(shown, asked, strict=True)
    ]
    off = len(tools) - len(shown)
    return {"tools": marked} | ({"tools_off": off} if off else {})


def _show(found: Sequence[Mapping[str, Any]], terminal: Terminal, *, described: bool) -> None:
    rows: list[tuple[str, ...]] = []
    for offers in found:
        for kind, key in _KINDS.items():
            for item in offers.get(kind, ()):
                what = kind.removesuffix("s").replace("_", " ")
                name = f"{item.get(key, '')}{_ASKS if item.get('rule') == 'ask' else ''}"
                row = (str(offers["name"]), what, name)
                rows.append((*row, _first_line(item)) if described else row)
    columns = ("SERVER", "WHAT", "NAME", "DESCRIPTION")
    if rows:
        terminal.table(columns if described else columns[:3], rows)
    for offers in found:
        if at := offers.get("from_catalogue"):
            name = str(offers["name"])
            look = f"emceepee doctor {shlex.quote(name)}"
            terminal.note(f"{name}: as it listed at {at}, without starting it; anew: {look}")
        if off := offers.get("tools_off"):
            name = str(offers["name"])
            tools = "1 tool is" if off == 1 else f"{off} tools are"
            terminal.note(f"{name}: {tools} off: emceepee config rules {shlex.quote(name)}")


def _first_line(item: Mapping[str, Any]) -> str:
    text = str(item.get("description") or item.get("title") or "").strip()
    line = text.partition("\n")[0]
    return line if len(line) <= _DESCRIPTION_CHARS else f"{line[: _DESCRIPTION_CHARS - 1]}…"
