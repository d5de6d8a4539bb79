"""`emceepee call`: runs one tool of one server from the shell.

Arguments that do not fit the tool's schema are named before anything is called. The person at the
terminal is asked first, where a rule for the tool says so.
"""

import json
import sys
from base64 import b64decode
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer
from msgspec import Raw

from emceepee_stdio import errors, signatures
from emceepee_stdio.cli import shared_options
from emceepee_stdio.cli.command_line import argument, flag, option
from emceepee_stdio.cli.terminal import PERSON_S, ExitCode, interrupts, terminal, with_command
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.errors import InvalidArguments, PromptNotFound, ToolNotFound
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import cut, marked_lines, shell_word

_LISTED_NAMES = 20  # in a sentence on what there is
REQUEST_TIMEOUT_S = 120.0  # a first start may download the server, and then the request takes time

TimeoutOption = Annotated[
    float, option("SECONDS", about="How long it may take.", min=0.1, max=86_400)
]


def ask_server(
    choice: shared_options.ServerChoice, send: "Send", *, within: float
) -> dict[str, Any]:
    """The result; where there is none, say why, and end with the exit code for it.

    `within` is the time of the server: that of a person who is asked something comes on top.
    """
    from emceepee_stdio.cli.one_shot import request  # noqa: PLC0415 - not for the help

    result, reached = interrupts.run(partial(request, choice, send, within))
    if not isinstance(result, errors.ProxyError):
        return result
    step, code = _consequence(choice, result, reached=reached)
    text = "\n".join(filter(None, (f"emceepee: {marked_lines(result.whole_fact)}", step)))
    terminal.failure(result.whole_fact, step, code=result.code, text=text)
    raise typer.Exit(code)


def not_listed(server: str, kind: str, name: str, names: Sequence[str]) -> str:
    """That a server has no such thing, with the nearest that it has."""
    if near := nearest(name, names):
        return f"{server} has no {kind} {name!r}. Did you mean {near}?"
    shown = ", ".join(names[:_LISTED_NAMES]) or "none"
    more = f" and {len(names) - _LISTED_NAMES} more" if len(names) > _LISTED_NAMES else ""
    return f"{server} has no {kind} {name!r}. It has: {shown}{more}."


def _consequence(
    choice: shared_options.ServerChoice, failure: errors.ProxyError, *, reached: bool
) -> tuple[str, int]:
    """What to do, and the exit code."""
    match failure:
        case errors.InvalidArguments():
            return failure.for_person, ExitCode.USAGE
        case errors.ToolNotFound() | errors.PromptNotFound() | errors.ResourceNotFound():
            return f"See what it has: emceepee ls {choice.words}", ExitCode.USAGE
        case errors.NeedsApproval() | errors.PolicyDenied():
            return _permission_step(failure), ExitCode.FAILED
        case errors.WrongCredentials() | errors.NeedsSignIn():
            return remedy(choice, failure), ExitCode.CREDENTIALS_REFUSED
        case _ if reached:
            return _after_start(choice, failure)
        case _:
            return remedy(choice, failure), ExitCode.SERVER_FAILED


def _permission_step(failure: errors.ProxyError) -> str:
    """What a person does about a call that may not run; the error's own step is for a model."""
    if failure.command is None:
        return "" if isinstance(failure, errors.PolicyDenied) else failure.for_person
    return f"Run `{failure.command}`, and then this command again."


def _after_start(
    choice: shared_options.ServerChoice, failure: errors.ProxyError
) -> tuple[str, int]:
    """The same for a server that starts well: the doctor would find nothing."""
    if isinstance(failure, errors.CallTimeout):
        return "Give it more time with --timeout SECONDS.", ExitCode.FAILED
    lost = (errors.ServerDisconnected, errors.ServerFailed, errors.ServerUnavailable)
    if not isinstance(failure, lost):
        return f"See what it takes: emceepee ls {choice.words}", ExitCode.FAILED
    if choice.server.url is not None:
        return (
            "It answered before, and was lost during this request: try again.",
            ExitCode.SERVER_FAILED,
        )
    step = (
        "It starts well and ended during this request: try other arguments. If it ends again, "
        "report it to whoever makes that server."
    )
    return step, ExitCode.SERVER_FAILED


def remedy(choice: shared_options.ServerChoice, failure: errors.ProxyError | None) -> str:
    """What to do about a server that could not be used."""
    if isinstance(failure, errors.NeedsSignIn):
        return f"Sign in: {failure.command or f'emceepee login {choice.words}'}"
    if choice.is_configured:
        return f"See why: emceepee doctor {choice.words}"
    if choice.server.url is None:
        if isinstance(failure, errors.CannotConnect) and failure.has_own_hint:
            return failure.for_person  # nothing was started
        return f"Start it by itself to see what it says: {choice.words.removeprefix('-- ')}"
    if isinstance(failure, errors.WrongCredentials):
        return with_command(
            "Configure it with its credentials",
            f"emceepee config add NAME --url {shell_word(choice.words)} "
            "--header 'Authorization: Bearer ${TOKEN}'",
        )
    return "Look at the address, and try it again."


def block_text(block: Mapping[str, object]) -> str:
    """A content block as a person may read it."""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource":
            resource = mapping(block.get("resource"))
            return str(resource.get("text") or f"[resource {resource.get('uri')}]")
        case "resource_link":
            return f"[resource {block.get('uri')}]"
        case kind:
            size = len(str(block.get("data", "")))
            return f"[{kind}, {block.get('mimeType', 'data')}, {size} characters of base64]"


if TYPE_CHECKING:
    from emceepee_stdio.backends.backend import Backend
    from emceepee_stdio.cli.one_shot import OneShotSession, Send


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


def fitted(
    given: Mapping[str, object], schema: signatures.Schema
) -> tuple[dict[str, object], list[str]]:
    """The arguments as a tool with this schema is sent them, and what is wrong with them."""
    known = {one.name: one for one in signatures.parameters(schema)}
    values = {
        name: _converted(value, known[name].schema, schema) if name in known else value
        for name, value in given.items()
    }
    return values, _problems(values, known, schema)


def fitted_to_prompt(
    given: Mapping[str, object], arguments: Sequence[Mapping[str, object]]
) -> tuple[dict[str, str], list[str]]:
    """The same for a prompt, which takes texts only."""
    schema: signatures.Schema = {
        "properties": {str(one.get("name")): {"type": "string"} for one in arguments},
        "required": [str(one.get("name")) for one in arguments if one.get("required")],
    }
    values, problems = fitted(given, schema)
    return {name: str(value) for name, value in values.items()}, problems


def _problems(
    values: Mapping[str, object], known: Mapping[str, signatures.Parameter], root: signatures.Schema
) -> list[str]:
    problems = [
        f"{name} is missing"
        for name, one in known.items()
        if one.is_required and name not in values
    ]
    for name, value in values.items():
        if name in known:
            if not signatures.fits(value, known[name].schema, root):
                wanted = signatures.type_text(known[name].schema, root)
                shown = cut(json.dumps(value, ensure_ascii=False), _MAX_VALUE_CHARS)
                problems.append(f"{name} must be {wanted}, not {shown}")
        elif signatures.refuses_others(root):
            near = nearest(name, list(known))
            problems.append(f"{name} is unknown{f' (did you mean {near}?)' if near else ''}")
    return problems


def _converted(given: object, schema: signatures.Schema, root: signatures.Schema) -> object:
    """A text as what is wanted, where it is that; where a list is wanted, its texts as well."""
    lists = [one for one in signatures.alternatives(schema, root) if one.get("type") == "array"]
    items = mapping(lists[0].get("items") if lists else None)
    if isinstance(given, str):
        value = _value(given, schema, root)
        return (
            [_value(given, items, root)]
            if lists and not signatures.fits(value, schema, root)
            else value
        )
    if isinstance(given, list):
        texts = cast("list[object]", given)
        return [_value(one, items, root) if isinstance(one, str) else one for one in texts]
    return given


def _value(text: str, schema: signatures.Schema, root: signatures.Schema) -> object:
    """The text itself where that is wanted, else what it is as JSON, where that is."""
    if signatures.fits(text, schema, root):
        return text
    try:
        value = cast("object", msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return text
    return value if signatures.fits(value, schema, root) else text


def call(  # noqa: PLR0913 - one for each option
    context: typer.Context,
    server: shared_options.AnyServerArgument,
    tool: Annotated[str, argument("TOOL", autocompletion=shared_options.complete_tools)],
    arguments: Annotated[list[str] | None, argument("[ARGS]...")] = None,
    *,
    unchecked: Annotated[bool, flag("--unchecked")] = False,
    output: Annotated[Path | None, option("FILE")] = None,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: shared_options.ConfigOption = None,
    as_json: shared_options.JsonOption = False,
) -> None:
    """Call a tool of a server.

    A name that is given several times is a list. Arguments that are missing, unknown or of another
    type are named before the call.

    Exit code 1: the tool says that it failed, does not answer in time, or a rule stops the call; 2:
    there is no such server or tool, or the arguments do not fit, and nothing was called; 3: the
    server wants other credentials; 4: the server failed.

    Takes:
      tool: One of its tools; see emceepee ls.
      arguments: NAME=VALUE words, converted as the tool wants them, or one JSON object; - reads it
          from stdin.
      unchecked: Call with arguments that do not fit, too.
      output: Write the result to this file: a picture as it is, else structured content as JSON, or
          the text.

    Example: emceepee call time get_current_time timezone=Europe/Berlin
    Example: emceepee call get_current_time timezone=Europe/Berlin -- uvx mcp-server-time
    """
    words = arguments or []
    given = given_arguments([sys.stdin.read()] if words == ["-"] else words)
    choice = shared_options.choose(context, server, config)

    async def send(here: "OneShotSession", backend: "Backend") -> Raw:
        from emceepee_stdio.cli.one_shot import call_at_terminal  # noqa: PLC0415 - not for the help

        permissions = here.runtime.permissions
        with terminal.waiting(f"Asking for the tools of {backend.name} …"):
            listed = await backend.list_all("tools", within=timeout)
            if refused := backend.refusal(tool):
                raise refused
        args = _tool_arguments(tool, given, listed, backend, is_checked=not unchecked)
        asking = call_at_terminal(here)
        args, is_agreed = await permissions.admit(backend, tool, args, asking)
        with terminal.waiting(f"Calling {tool} …"):
            return await backend.call_tool(
                tool, args, within=PERSON_S, call=asking, is_agreed=is_agreed
            )

    result = ask_server(choice, send, within=timeout)
    if not isinstance(result.get("content", []), list):
        fact = f"{choice.server.name} gave a result without a list of content."
        step = "Report it to whoever makes that server."
        terminal.failure(fact, step, code="call_failed")
        raise typer.Exit(ExitCode.SERVER_FAILED)
    if output is None or result.get("isError"):
        _show(result, as_json=as_json)
    else:
        _write(result, output, choice.server.name, as_json=as_json)
    if result.get("isError"):
        raise typer.Exit(ExitCode.FAILED)


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
            hint=f"It takes: {signatures.tool_signature(found)}",
        )
    return Raw(json.dumps(values).encode())


def _show(result: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.document(result)
        return
    content = elements(result.get("content"))
    for block in content:
        terminal.said(block_text(mapping(block)))
    if not content and "structuredContent" in result:
        terminal.data(result["structuredContent"])


def _write(result: Mapping[str, Any], output: Path, server: str, *, as_json: bool) -> None:
    """A picture as it is, else the structured content, else the text."""
    from emceepee_stdio.session.reply import Reply  # noqa: PLC0415 - not for the help
    from emceepee_stdio.storage.saved_files import NotSavedError  # noqa: PLC0415
    from emceepee_stdio.tools.diverted_results import file_data  # noqa: PLC0415

    try:
        reply = Reply.result(Raw(json.dumps(result).encode()), server=server, keeps_data=True)
        data, _ = file_data(reply)
        output.write_bytes(data)
    except (errors.ProxyError, NotSavedError, OSError) as error:
        step = "The tool was called; without --output its result is shown."
        terminal.failure(f"{output} is not written: {error}.", step, code="save_refused")
        raise typer.Exit(ExitCode.FAILED) from None
    if as_json:
        terminal.document({"saved": {"path": str(output), "bytes": len(data)}})
    else:
        terminal.note(f"Wrote {len(data):,} bytes to {output}.")


# `emceepee read`: one resource of one server, from the shell.


def read_resource(
    context: typer.Context,
    server: shared_options.AnyServerArgument,
    uri: Annotated[str, argument("URI")],
    *,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: shared_options.ConfigOption = None,
    as_json: shared_options.JsonOption = False,
) -> None:
    """Read a resource of a server.

    A binary resource is only written into a pipe or a file. Exit code 1: the server refuses, or
    does not answer in time; 2: there is no such server, or it says that it has no such resource; 3:
    the server refuses the credentials; 4: the server failed.

    Takes:
      uri: One of its resources; see emceepee ls.

    Example: emceepee read docs file:///notes.txt
    Example: emceepee read pictures picture://logo > logo.png
    """
    choice = shared_options.choose(context, server, config)

    async def send(_here: "OneShotSession", backend: "Backend") -> Raw:
        with terminal.waiting(f"Reading {uri} …"):
            return await backend.read_resource(uri, within=PERSON_S)

    result = ask_server(choice, send, within=timeout)
    if as_json:
        terminal.document({"server": choice.server.name, "result": result})
        return
    for one in elements(result.get("contents")):
        _show_resource(mapping(one))


def _show_resource(content: Mapping[str, object]) -> None:
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
    server: shared_options.AnyServerArgument,
    name: Annotated[str, argument("NAME", autocompletion=shared_options.complete_prompts)],
    arguments: Annotated[list[str] | None, argument("[ARGS]...")] = None,
    *,
    timeout: TimeoutOption = REQUEST_TIMEOUT_S,
    config: shared_options.ConfigOption = None,
    as_json: shared_options.JsonOption = False,
) -> None:
    """Get a prompt of a server.

    Exit code 1: the server refuses, or does not answer in time; 2: there is no such server or
    prompt, or the arguments do not fit; 3: the server refuses the credentials; 4: the server
    failed.

    Takes:
      name: One of its prompts.
      arguments: NAME=VALUE words, or one JSON object.

    Example: emceepee prompt docs summarize topic=tea
    """
    given = given_arguments(arguments or [])
    choice = shared_options.choose(context, server, config)

    async def send(_here: "OneShotSession", backend: "Backend") -> Raw:
        with terminal.waiting(f"Asking for {name} …"):
            listed = await backend.list_all("prompts", within=timeout)
            values = _prompt_arguments(name, given, listed, backend.name)
            return await backend.get_prompt(name, values, within=PERSON_S)

    result = ask_server(choice, send, within=timeout)
    if as_json:
        terminal.document({"server": choice.server.name, "result": result})
        return
    for one in elements(result.get("messages")):
        _show_prompt(mapping(one))


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
            hint=f"It takes: {signatures.prompt_signature(prompts[name])}",
        )
    return values


def _show_prompt(message: Mapping[str, object]) -> None:
    """Who is to say it, and what: one block, several, or just words."""
    content = message.get("content")
    blocks = elements(content) or [content]
    said = [one if isinstance(one, str) else block_text(mapping(one)) for one in blocks]
    terminal.said("\n".join([f"{message.get('role')}:", *said]))
