"""`emceepee call`: one tool of one server, from the shell.

Arguments that do not fit the tool's schema are named before anything is called. The person at the
terminal is asked first, where a rule for the tool says so.
"""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emceepee_stdio.cli.completions import complete_tools
from emceepee_stdio.cli.exit_codes import FAILED, SERVER_FAILED
from emceepee_stdio.cli.given_arguments import fitted, given_arguments
from emceepee_stdio.cli.one_request import (
    REQUEST_TIMEOUT_S,
    TimeoutOption,
    ask_server,
    block_text,
    not_listed,
)
from emceepee_stdio.cli.server_choice import AnyServerArgument, choose
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.json_values import elements, mapping

if TYPE_CHECKING:
    from msgspec import Raw

    from emceepee_stdio.backends.backend import Backend
    from emceepee_stdio.cli.one_shot import OneShotSession

__all__ = ["call"]


def call(
    context: typer.Context,
    server: AnyServerArgument,
    tool: Annotated[
        str,
        typer.Argument(
            metavar="TOOL", help="One of its tools; see emceepee ls.", autocompletion=complete_tools
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGS]...",
            help="NAME=VALUE words, converted as the tool wants them, or one JSON object; - reads"
            " it from stdin.",
        ),
    ] = None,
    *,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Call with arguments that do not fit, too.")
    ] = False,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Call one tool of a server, and print its answer.

    A name that is given several times is a list. Arguments that are missing, unknown or of another
    type are named before the call.

    Exit code 1: the tool says that it failed, does not answer in time, or a rule stops the call;
    2: there is no such server or tool, or the arguments do not fit, and nothing was called; 3: the
    server wants other credentials; 4: the server failed.

    Example: emceepee call time get_current_time timezone=Europe/Berlin
    Example: emceepee call get_current_time timezone=Europe/Berlin -- uvx mcp-server-time
    """
    words = arguments or []
    given = given_arguments([sys.stdin.read()] if words == ["-"] else words)
    choice = choose(context, server, config)
    terminal = Terminal()
    send = _ToolCall(tool, given, within=timeout, terminal=terminal, is_checked=not unchecked)
    result = ask_server(choice, send.send, within=timeout, terminal=terminal)
    if not isinstance(result.get("content", []), list):
        fact = f"{choice.server.name} gave a result without a list of content."
        step = "Report it to whoever makes that server."
        terminal.failure(fact, step, code="call_failed")
        raise typer.Exit(SERVER_FAILED)
    _show(result, terminal, as_json=as_json)
    if result.get("isError"):
        raise typer.Exit(FAILED)


class _ToolCall:
    """The call, from the words of the person to what is sent."""

    def __init__(
        self,
        tool: str,
        given: Mapping[str, object],
        *,
        within: float,
        terminal: Terminal,
        is_checked: bool,
    ) -> None:
        self._tool = tool
        self._given = given
        self._within = within
        self._terminal = terminal
        self._is_checked = is_checked

    async def send(self, here: "OneShotSession", backend: "Backend") -> "Raw":
        from emceepee_stdio.cli.terminal_consent import terminal_consent  # noqa: PLC0415 - not for the help
        from emceepee_stdio.session.client_calls import Call  # noqa: PLC0415 - as above

        permissions, within = here.runtime.permissions, self._within
        with self._terminal.waiting(f"Asking for the tools of {backend.name} …"):
            listed = await backend.list_all("tools", within=within)
            await permissions.require(backend, self._tool, within=within)
        tools = {str(one.get("name")): one for one in listed}
        args = self._fitting(tools, backend)
        asking = Call(ceiling=within, consent=terminal_consent(self._terminal))
        args = await permissions.admit(backend, self._tool, args, asking)
        with self._terminal.waiting(f"Calling {self._tool} …"):
            return await backend.call_tool(self._tool, args, within=within, call=asking)

    def _fitting(self, tools: Mapping[str, Mapping[str, Any]], backend: "Backend") -> "Raw":
        from msgspec import Raw  # noqa: PLC0415 - not for the help

        from emceepee_stdio.cli.signatures import tool_signature  # noqa: PLC0415 - as above
        from emceepee_stdio.errors import InvalidArguments, ToolNotFound  # noqa: PLC0415 - as above
        from emceepee_stdio.tools.listing import shown_names  # noqa: PLC0415 - as above

        found = tools.get(self._tool)
        if found is None:
            shown = shown_names(backend, tools)
            raise ToolNotFound(not_listed(backend.name, "tool", self._tool, shown))
        values, problems = fitted(self._given, mapping(found.get("inputSchema")))
        if problems and self._is_checked:
            raise InvalidArguments(
                f"{self._tool} was not called: {'; '.join(problems)}.",
                hint=f"It takes: {tool_signature(found)}",
            )
        return Raw(json.dumps(values).encode())


def _show(result: Mapping[str, Any], terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        terminal.document(result)
        return
    content = elements(result.get("content"))
    for block in content:
        terminal.said(block_text(mapping(block)))
    if not content and "structuredContent" in result:
        terminal.data(result["structuredContent"])
