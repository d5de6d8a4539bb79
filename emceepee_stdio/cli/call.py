"""`emceepee call`: runs one tool of one server from the shell.

Arguments that do not fit the tool's schema are named before anything is called. The person at the
terminal is asked first, where a rule for the tool says so.
"""

import json
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer
from msgspec import Raw

from emceepee_stdio.cli.one_request import (
    REQUEST_TIMEOUT_S,
    TimeoutOption,
    ask_server,
    block_text,
    not_listed,
)
from emceepee_stdio.cli.shared_options import (
    AnyServerArgument,
    ConfigOption,
    JsonOption,
    choose,
    complete_prompts,
    complete_tools,
)
from emceepee_stdio.cli.signatures import (
    Parameter,
    Schema,
    alternatives,
    fits,
    parameters,
    prompt_signature,
    refuses_others,
    tool_signature,
    type_text,
)
from emceepee_stdio.cli.terminal import FAILED, SERVER_FAILED, Terminal
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.errors import InvalidArguments, PromptNotFound, ToolNotFound
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import cut

if TYPE_CHECKING:
    from emceepee_stdio.backends.backend import Backend
    from emceepee_stdio.cli.one_shot import OneShotSession


# The arguments of a call as a person types them: read, converted by the schema, and checked.
#
# Whatever does not fit is named before anything is called, all of it at once.


_MAX_VALUE_CHARS = 40  # of a value in a sentence about it


def given_arguments(words: Sequence[str]) -> dict[str, object]:
    """What the words of a command line say; a name that comes several times is a list."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return msgspec.json.decode(words[0], type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise typer.BadParameter(f"not a JSON object: {error}", param_hint="ARGS") from None
    values: dict[str, object] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise typer.BadParameter(
                f"{word!r} is neither NAME=VALUE nor a JSON object.", param_hint="ARGS"
            )
        before = values.get(name)
        is_first = name not in values
        values[name] = value if is_first else [*(elements(before) or [before]), value]
    return values


def fitted(given: Mapping[str, object], schema: Schema) -> tuple[dict[str, object], list[str]]:
    """The arguments as a tool with this schema is sent them, and what is wrong with them."""
    known = {one.name: one for one in parameters(schema)}
    values = {
        name: _converted(value, known[name].schema, schema) if name in known else value
        for name, value in given.items()
    }
    return values, _problems(values, known, schema)


def fitted_to_prompt(
    given: Mapping[str, object], arguments: Sequence[Mapping[str, object]]
) -> tuple[dict[str, str], list[str]]:
    """The same for a prompt, which takes texts only."""
    schema: Schema = {
        "properties": {str(one.get("name")): {"type": "string"} for one in arguments},
        "required": [str(one.get("name")) for one in arguments if one.get("required")],
    }
    values, problems = fitted(given, schema)
    return {name: str(value) for name, value in values.items()}, problems


def _problems(
    values: Mapping[str, object], known: Mapping[str, Parameter], root: Schema
) -> list[str]:
    problems = [
        f"{name} is missing"
        for name, one in known.items()
        if one.is_required and name not in values
    ]
    for name, value in values.items():
        if name in known:
            if not fits(value, known[name].schema, root):
                wanted = type_text(known[name].schema, root)
                shown = cut(json.dumps(value, ensure_ascii=False), _MAX_VALUE_CHARS)
                problems.append(f"{name} must be {wanted}, not {shown}")
        elif refuses_others(root):
            near = nearest(name, list(known))
            problems.append(f"{name} is unknown{f' (did you mean {near}?)' if near else ''}")
    return problems


def _converted(given: object, schema: Schema, root: Schema) -> object:
    """A text as what is wanted, where it is that; where a list is wanted, its texts as well."""
    lists = [one for one in alternatives(schema, root) if one.get("type") == "array"]
    items = mapping(lists[0].get("items") if lists else None)
    if isinstance(given, str):
        value = _value(given, schema, root)
        return [_value(given, items, root)] if lists and not fits(value, schema, root) else value
    if isinstance(given, list):
        texts = cast("list[object]", given)
        return [_value(one, items, root) if isinstance(one, str) else one for one in texts]
    return given


def _value(text: str, schema: Schema, root: Schema) -> object:
    """The text itself where that is wanted, else what it is as JSON, where that is."""
    if fits(text, schema, root):
        return text
    try:
        value = cast("object", msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return text
    return value if fits(value, schema, root) else text


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
    """Call a tool of a server.

    A name that is given several times is a list. Arguments that are missing, unknown or of another
    type are named before the call.

    Exit code 1: the tool says that it failed, does not answer in time, or a rule stops the call; 2:
    there is no such server or tool, or the arguments do not fit, and nothing was called; 3: the
    server wants other credentials; 4: the server failed.

    Example: emceepee call time get_current_time timezone=Europe/Berlin
    Example: emceepee call get_current_time timezone=Europe/Berlin -- uvx mcp-server-time
    """
    words = arguments or []
    given = given_arguments([sys.stdin.read()] if words == ["-"] else words)
    choice = choose(context, server, config)
    terminal = Terminal()

    async def send(here: "OneShotSession", backend: "Backend") -> Raw:
        from emceepee_stdio.cli.one_shot import call_at_terminal  # noqa: PLC0415 - not for the help

        permissions = here.runtime.permissions
        with terminal.waiting(f"Asking for the tools of {backend.name} …"):
            listed = await backend.list_all("tools", within=timeout)
            await permissions.require(backend, tool, within=timeout)
        args = _tool_arguments(tool, given, listed, backend, is_checked=not unchecked)
        asking = call_at_terminal(terminal, timeout)
        args = await permissions.admit(backend, tool, args, asking)
        with terminal.waiting(f"Calling {tool} …"):
            return await backend.call_tool(tool, args, within=timeout, call=asking)

    result = ask_server(choice, send, within=timeout, terminal=terminal)
    if not isinstance(result.get("content", []), list):
        fact = f"{choice.server.name} gave a result without a list of content."
        step = "Report it to whoever makes that server."
        terminal.failure(fact, step, code="call_failed")
        raise typer.Exit(SERVER_FAILED)
    _show(result, terminal, as_json=as_json)
    if result.get("isError"):
        raise typer.Exit(FAILED)


def _tool_arguments(
    tool: str,
    given: Mapping[str, object],
    listed: Sequence[Mapping[str, Any]],
    backend: "Backend",
    *,
    is_checked: bool,
) -> Raw:
    from emceepee_stdio.tools.listing import shown_names  # noqa: PLC0415 - not for the help

    tools = {str(one.get("name")): one for one in listed}
    found = tools.get(tool)
    if found is None:
        shown = shown_names(backend, tools)
        raise ToolNotFound(not_listed(backend.name, "tool", tool, shown))
    values, problems = fitted(given, mapping(found.get("inputSchema")))
    if problems and is_checked:
        raise InvalidArguments(
            f"{tool} was not called: {'; '.join(problems)}.",
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


# `emceepee read`: one resource of one server, from the shell.


def read_resource(
    context: typer.Context,
    server: AnyServerArgument,
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="One of its resources; see emceepee ls.")
    ],
    *,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read a resource of a server.

    A binary resource is only written into a pipe or a file. Exit code 1: the server refuses, or
    does not answer in time; 2: there is no such server, or it says that it has no such resource; 3:
    the server refuses the credentials; 4: the server failed.

    Example: emceepee read docs file:///notes.txt
    Example: emceepee read pictures picture://logo > logo.png
    """
    choice = choose(context, server, config)
    terminal = Terminal()

    async def send(_here: "OneShotSession", backend: "Backend") -> Raw:
        with terminal.waiting(f"Reading {uri} …"):
            return await backend.read_resource(uri, within=timeout)

    result = ask_server(choice, send, within=timeout, terminal=terminal)
    if as_json:
        terminal.document({"server": choice.server.name, "result": result})
        return
    for one in elements(result.get("contents")):
        _show_resource(mapping(one), terminal)


def _show_resource(content: Mapping[str, object], terminal: Terminal) -> None:
    if "blob" not in content:
        terminal.said(str(content.get("text", "")))
        return
    try:
        data = b64decode(str(content["blob"]), validate=True)
    except ValueError:
        terminal.note(f"{content.get('uri')} cannot be read: it is not base64.")
        return
    kind = content.get("mimeType", "data")
    if terminal.columns is None:
        terminal.raw(data)
    else:
        terminal.said(f"[{kind}, {len(data)} bytes; in a pipe you get them]")


# `emceepee prompt`: one prompt of one server, filled in, from the shell.


def get_prompt(
    context: typer.Context,
    server: AnyServerArgument,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="One of its prompts.", autocompletion=complete_prompts),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="NAME=VALUE words, or one JSON object."),
    ] = None,
    *,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Get a prompt of a server.

    Exit code 1: the server refuses, or does not answer in time; 2: there is no such server or
    prompt, or the arguments do not fit; 3: the server refuses the credentials; 4: the server
    failed.

    Example: emceepee prompt docs summarize topic=tea
    """
    given = given_arguments(arguments or [])
    choice = choose(context, server, config)
    terminal = Terminal()

    async def send(_here: "OneShotSession", backend: "Backend") -> Raw:
        with terminal.waiting(f"Asking for {name} …"):
            listed = await backend.list_all("prompts", within=timeout)
            values = _prompt_arguments(name, given, listed, backend.name)
            return await backend.get_prompt(name, values, within=timeout)

    result = ask_server(choice, send, within=timeout, terminal=terminal)
    if as_json:
        terminal.document({"server": choice.server.name, "result": result})
        return
    for one in elements(result.get("messages")):
        _show_prompt(mapping(one), terminal)


def _prompt_arguments(
    name: str, given: Mapping[str, object], listed: Sequence[Mapping[str, Any]], server: str
) -> dict[str, str]:
    prompts = {str(one.get("name")): one for one in listed}
    if name not in prompts:
        raise PromptNotFound(not_listed(server, "prompt", name, list(prompts)))
    takes = map(mapping, elements(prompts[name].get("arguments")))
    values, problems = fitted_to_prompt(given, list(takes))
    if problems:
        raise InvalidArguments(
            f"{name} was not asked for: {'; '.join(problems)}.",
            hint=f"It takes: {prompt_signature(prompts[name])}",
        )
    return values


def _show_prompt(message: Mapping[str, object], terminal: Terminal) -> None:
    """Who is to say it, and what: one block, several, or just words."""
    content = message.get("content")
    blocks = elements(content) or [content]
    said = [one if isinstance(one, str) else block_text(mapping(one)) for one in blocks]
    terminal.said("\n".join([f"{message.get('role')}:", *said]))
