"""One request to one server from the shell: its answer, or the failure with its remedy.

What the server asks meanwhile is put to the person at the terminal, and declined where there is
none. The session in which this happens is in `one_shot`, which loads the whole proxy: the help of
a command does without.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emceepee_stdio import errors
from emceepee_stdio.cli.doctor.report import with_command
from emceepee_stdio.cli.shared_options import ServerChoice
from emceepee_stdio.cli.terminal import (
    CREDENTIALS_REFUSED,
    FAILED,
    SERVER_FAILED,
    USAGE,
    Terminal,
    interrupts,
)
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.json_values import mapping
from emceepee_stdio.visible_text import marked_lines

if TYPE_CHECKING:
    from emceepee_stdio.cli.one_shot import Send


REQUEST_TIMEOUT_S = 120.0  # a first start may download the server, and then the request takes time
_LISTED_NAMES = 20  # in a sentence on what there is

TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="How long it may take.")
]


def ask_server(
    choice: ServerChoice, send: "Send", *, within: float, terminal: Terminal
) -> dict[str, Any]:
    """The result; where there is none, say why, and end with the exit code for it."""
    from emceepee_stdio.cli.one_shot import request  # noqa: PLC0415 - not for the help

    answer = interrupts.run(partial(request, choice, send, within, terminal))
    if not isinstance(answer.result, errors.ProxyError):
        return answer.result
    failure = answer.result
    step, code = _consequence(choice, failure, reached=answer.reached)
    text = "\n".join(filter(None, (f"emceepee: {marked_lines(failure.fact)}", step)))
    terminal.failure(failure.fact, step, code=failure.code, text=text)
    raise typer.Exit(code)


def not_listed(server: str, kind: str, name: str, names: Sequence[str]) -> str:
    """That a server has no such thing, with the nearest that it has."""
    if near := nearest(name, names):
        return f"{server} has no {kind} {name!r}. Did you mean {near}?"
    shown = ", ".join(names[:_LISTED_NAMES]) or "none"
    more = f" and {len(names) - _LISTED_NAMES} more" if len(names) > _LISTED_NAMES else ""
    return f"{server} has no {kind} {name!r}. It has: {shown}{more}."


def _consequence(
    choice: ServerChoice, failure: errors.ProxyError, *, reached: bool
) -> tuple[str, int]:
    """What to do, and the exit code."""
    match failure:
        case errors.InvalidArguments():
            return failure.next_step, USAGE
        case errors.ToolNotFound() | errors.PromptNotFound() | errors.ResourceNotFound():
            return f"See what it has: emceepee ls {choice.words}", USAGE
        case errors.NeedsApproval() | errors.PolicyDenied():
            return _permission_step(failure), FAILED
        case errors.WrongCredentials() | errors.NeedsSignIn():
            return remedy(choice, failure), CREDENTIALS_REFUSED
        case _ if reached:
            return _after_start(choice, failure)
        case _:
            return remedy(choice, failure), SERVER_FAILED


def _permission_step(failure: errors.ProxyError) -> str:
    """What a person does about a call that may not run; the error's own step is for a model."""
    if failure.command is None:
        return "" if isinstance(failure, errors.PolicyDenied) else failure.next_step
    return f"Run `{failure.command}`, and then this command again."


def _after_start(choice: ServerChoice, failure: errors.ProxyError) -> tuple[str, int]:
    """The same for a server that starts well: the doctor would find nothing."""
    if isinstance(failure, errors.CallTimeout):
        return "Give it more time with --timeout SECONDS.", FAILED
    lost = (errors.ServerDisconnected, errors.ServerFailed, errors.ServerUnavailable)
    if not isinstance(failure, lost):
        return f"See what it takes: emceepee ls {choice.words}", FAILED
    if choice.server.url is not None:
        return "It answered before, and was lost during this request: try again.", SERVER_FAILED
    step = (
        "It starts well and ended during this request: try other arguments. If it ends again, "
        "report it to whoever makes that server."
    )
    return step, SERVER_FAILED


def remedy(choice: ServerChoice, failure: errors.ProxyError | None) -> str:
    """What to do about a server that could not be used."""
    if isinstance(failure, errors.NeedsSignIn):
        return f"Sign in: {failure.command or f'emceepee login {choice.words}'}"
    if choice.is_configured:
        return f"See why: emceepee doctor {choice.words}"
    if choice.server.url is None:
        if isinstance(failure, errors.CannotConnect) and failure.next_step != failure.hint:
            return failure.next_step  # nothing was started
        return f"Start it by itself to see what it says: {choice.words.removeprefix('-- ')}"
    if isinstance(failure, errors.WrongCredentials):
        return with_command(
            "Configure it with its credentials",
            f"emceepee config add NAME --url {shlex.quote(choice.words)} "
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
