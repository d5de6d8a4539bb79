"""`emceepee prompt`: one prompt of one server, filled in, from the shell."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emceepee_stdio.cli.completions import complete_prompts
from emceepee_stdio.cli.given_arguments import fitted_to_prompt, given_arguments
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

__all__ = ["get_prompt"]


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
    """Get one prompt of a server, and print its messages.

    Exit code 1: the server refuses, or does not answer in time; 2: there is no such server or
    prompt, or the arguments do not fit; 3: the server refuses the credentials; 4: the server
    failed.

    Example: emceepee prompt docs summarize topic=tea
    """
    given = given_arguments(arguments or [])
    choice = choose(context, server, config)
    terminal = Terminal()

    async def send(_here: "OneShotSession", backend: "Backend") -> "Raw":
        with terminal.waiting(f"Asking for {name} …"):
            listed = await backend.list_all("prompts", within=timeout)
            values = _fitting(name, given, listed, backend.name)
            return await backend.get_prompt(name, values, within=timeout)

    result = ask_server(choice, send, within=timeout, terminal=terminal)
    if as_json:
        terminal.document({"server": choice.server.name, "result": result})
        return
    for one in elements(result.get("messages")):
        _show(mapping(one), terminal)


def _fitting(
    name: str, given: Mapping[str, object], listed: Sequence[Mapping[str, Any]], server: str
) -> dict[str, str]:
    from emceepee_stdio.cli.signatures import prompt_signature  # noqa: PLC0415 - not for the help
    from emceepee_stdio.errors import InvalidArguments, PromptNotFound  # noqa: PLC0415 - as above

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


def _show(message: Mapping[str, object], terminal: Terminal) -> None:
    """Who is to say it, and what: one block, several, or just words."""
    content = message.get("content")
    blocks = elements(content) or [content]
    said = [one if isinstance(one, str) else block_text(mapping(one)) for one in blocks]
    terminal.said("\n".join([f"{message.get('role')}:", *said]))
