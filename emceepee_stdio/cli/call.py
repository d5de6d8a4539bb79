"""`emceepee call`: one tool of one server, from the shell.

What the server asks meanwhile is put to the person at the terminal, and declined where there is
none. So is the call itself, where a rule for the tool says so.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from emceepee_stdio.cli.config import ConfigOption, JsonOption
from emceepee_stdio.cli.exit_codes import CREDENTIALS_REFUSED, FAILED, SERVER_FAILED
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.ls import TimeoutOption, chosen
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import ServerConfig, Settings, load_file
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.errors import WrongCredentials

if TYPE_CHECKING:
    from emceepee_stdio.cli.one_shot import OneShotSession
    from emceepee_stdio.errors import ProxyError

__all__ = ["call"]

_TIMEOUT_S = 120.0  # a first start may download the server, and then the tool runs


def call(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="A configured server.")],
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="One of its tools; see emceepee ls.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGS]...", help="One JSON object, or NAME=VALUE words; - reads stdin."
        ),
    ] = None,
    *,
    timeout: TimeoutOption = _TIMEOUT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Call one tool of a configured server, and print its answer.

    Exit code 1: the tool says that it failed, or does not answer in time; 3: the server wants
    other credentials; 4: the server failed.

    Example: emceepee call time get_current_time timezone=Europe/Berlin
    """
    given = _given(arguments or [])
    loaded = load_file(config, environ=os.environ)
    target = chosen(server, loaded)
    terminal = Terminal()
    outcome = interrupts.run(partial(_run, target, tool, given, loaded.settings, timeout, terminal))
    if outcome.result is None:
        raise typer.Exit(_failed(server, outcome, terminal))
    _show(outcome.result, terminal, as_json=as_json)
    if outcome.result.get("isError"):
        raise typer.Exit(FAILED)


def _show(result: Mapping[str, Any], terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        terminal.data(result)
        return
    for block in result.get("content", ()):
        terminal.said(_block(block))
    if not result.get("content") and "structuredContent" in result:
        terminal.data(result["structuredContent"])


def _given(words: Sequence[str]) -> dict[str, Any]:
    """The tool's arguments: an object, or words of the form NAME=VALUE."""
    if list(words) == ["-"]:
        words = [sys.stdin.read()]
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return dict(json.loads(words[0]))
        except (ValueError, RecursionError) as error:
            raise typer.BadParameter(f"not a JSON object: {error}", param_hint="ARGS") from None
    pairs = [word.partition("=") for word in words]
    for name, sign, _ in pairs:
        if not sign or not name:
            raise typer.BadParameter(
                f"{name!r} is neither NAME=VALUE nor a JSON object.", param_hint="ARGS"
            )
    return {name: value for name, _, value in pairs}


class _Outcome(NamedTuple):
    """What the tool answered, or why it did not; `reached` if the server itself was there."""

    result: dict[str, Any] | None
    failure: "ProxyError | None"
    reached: bool


async def _run(
    server: ServerConfig,
    tool: str,
    given: dict[str, Any],
    settings: Settings,
    within: float,
    terminal: Terminal,
) -> _Outcome:
    # The proxy itself: not for those who only want to see the help.
    import anyio  # noqa: PLC0415 - see above

    from emceepee_stdio.cli.answering import answer_questions  # noqa: PLC0415 - see above
    from emceepee_stdio.cli.one_shot import one_shot_session  # noqa: PLC0415 - see above

    outcome = _Outcome(None, None, reached=False)
    async with (
        one_shot_session(settings, environ=os.environ, within=within) as here,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(answer_questions, here, terminal)
        outcome = await _call(here, server, tool, given, within=within, terminal=terminal)
        tasks.cancel_scope.cancel()
    return outcome


async def _call(
    here: "OneShotSession",
    server: ServerConfig,
    tool: str,
    given: dict[str, Any],
    *,
    within: float,
    terminal: Terminal,
) -> _Outcome:
    import msgspec  # noqa: PLC0415 - see the caller

    from emceepee_stdio.cli.terminal_consent import terminal_consent  # noqa: PLC0415 - see above
    from emceepee_stdio.errors import ProxyError  # noqa: PLC0415 - see the caller
    from emceepee_stdio.session.client_calls import Call  # noqa: PLC0415 - see the caller
    from emceepee_stdio.tools.listing import shown_names  # noqa: PLC0415 - see the caller
    from emceepee_stdio.tools.repair import repaired  # noqa: PLC0415 - see the caller

    backend = await here.open(server)
    permissions = here.runtime.permissions
    reached = False
    try:
        with terminal.waiting(f"Connecting to {server.name} …"):
            # A little longer than the attempt itself, which can say more about why it failed.
            await backend.connect(within=within + 1.0)
            reached = True
            tools = {
                str(one.get("name")): one for one in await backend.list_all("tools", within=within)
            }
            await permissions.require(backend, tool, within=within)
            schema = _schema(tools, shown_names(backend, tools), server.name, tool)
        # Words of a shell are strings: what the tool wants as a number becomes one.
        args, _ = repaired(msgspec.Raw(json.dumps(given).encode()), {}, schema, tool=tool)
        asking = Call(ceiling=within, consent=terminal_consent(terminal))
        args = await permissions.admit(backend, tool, args, asking)
        with terminal.waiting(f"Calling {tool} …"):
            result = await backend.call_tool(tool, args, within=within, call=asking)
    except ProxyError as error:
        failure = error if reached else backend.snapshot().error or error
        return _Outcome(None, failure.masked(here.shown), reached)
    return _Outcome(msgspec.json.decode(result, type=dict[str, Any]), None, reached)


def _schema(
    tools: Mapping[str, Mapping[str, Any]], shown: Sequence[str], server: str, tool: str
) -> Mapping[str, Any]:
    from emceepee_stdio.errors import ToolNotFound  # noqa: PLC0415 - see the caller

    if tool not in tools:
        near = nearest(tool, shown)
        meant = f" Did you mean {near}?" if near else f" It has: {', '.join(shown) or 'none'}."
        raise ToolNotFound(f"{server} has no tool {tool!r}.{meant}")
    schema = tools[tool].get("inputSchema")
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def _failed(server: str, outcome: _Outcome, terminal: Terminal) -> int:
    """Say why there is no answer, and what to do; the exit code."""
    from emceepee_stdio import errors  # noqa: PLC0415 - see the caller

    failure = outcome.failure
    lost = (errors.ServerDisconnected, errors.ServerFailed, errors.ServerUnavailable)
    name = shlex.quote(server)
    terminal.note(f"emceepee: {failure.fact if failure else 'There was no answer.'}")
    if isinstance(failure, errors.NeedsApproval | errors.PolicyDenied):
        terminal.note(failure.next_step)
        return FAILED
    if outcome.reached and not isinstance(failure, lost):
        more = "Give it more time with --timeout SECONDS."
        terms = f"See what its tools take: emceepee ls {name} --json"
        terminal.note(more if isinstance(failure, errors.CallTimeout) else terms)
        return FAILED
    is_signed_out = isinstance(failure, errors.NeedsSignIn)
    terminal.note(
        f"{'Sign in: emceepee login' if is_signed_out else 'See why: emceepee doctor'} {name}"
    )
    refused = isinstance(failure, WrongCredentials | errors.NeedsSignIn)
    return CREDENTIALS_REFUSED if refused else SERVER_FAILED


def _block(block: Mapping[str, Any]) -> str:
    """A content block as a person may read it."""
    if block.get("type") == "text":
        return str(block.get("text", ""))
    if block.get("type") == "resource":
        resource = cast("dict[str, Any]", block.get("resource") or {})
        return str(resource.get("text") or f"[resource {resource.get('uri')}]")
    if block.get("type") == "resource_link":
        return f"[resource {block.get('uri')}]"
    kind = block.get("mimeType", "data")
    return f"[{block.get('type')}, {kind}, {len(str(block.get('data', '')))} characters of base64]"
