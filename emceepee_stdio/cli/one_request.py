"""One request to one server from the shell: its answer, or the failure with its remedy.

What the server asks meanwhile is put to the person at the terminal, and declined where there is
none.
"""

import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

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
    from msgspec import Raw

    from emceepee_stdio.backends.backend import Backend
    from emceepee_stdio.cli.one_shot import OneShotSession
    from emceepee_stdio.errors import ProxyError


REQUEST_TIMEOUT_S = 120.0  # a first start may download the server, and then the request takes time
_LISTED_NAMES = 20  # in a sentence on what there is

TimeoutOption = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, max=86_400, help="How long it may take.")
]
Send = Callable[["OneShotSession", "Backend"], Awaitable["Raw"]]


class _Outcome(NamedTuple):
    """What the server answered, or why it did not; `reached` if the server itself was there."""

    result: dict[str, Any] | None
    failure: "ProxyError | None"
    reached: bool


def ask_server(
    choice: ServerChoice, send: Send, *, within: float, terminal: Terminal
) -> dict[str, Any]:
    """The result; where there is none, say why, and end with the exit code for it."""
    outcome = interrupts.run(partial(_run, choice, send, within, terminal))
    if outcome.result is None:
        raise typer.Exit(_failed(choice, outcome, terminal))
    return outcome.result


async def _run(choice: ServerChoice, send: Send, within: float, terminal: Terminal) -> _Outcome:
    # The proxy itself: not for those who only want to see the help.
    import anyio  # noqa: PLC0415 - see above

    from emceepee_stdio.cli.one_shot import (  # noqa: PLC0415
        answer_questions,
        one_shot_session,
    )

    outcome = _Outcome(None, None, reached=False)
    async with (
        one_shot_session(choice.settings, environ=os.environ, within=within) as here,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(answer_questions, here, terminal)
        outcome = await _answer(here, choice, send, within=within, terminal=terminal)
        tasks.cancel_scope.cancel()
    return outcome


async def _answer(
    here: "OneShotSession", choice: ServerChoice, send: Send, *, within: float, terminal: Terminal
) -> _Outcome:
    import msgspec  # noqa: PLC0415 - see the caller

    from emceepee_stdio.errors import CallFailed, ProxyError  # noqa: PLC0415 - see the caller
    from emceepee_stdio.foreign_json import envelope_decoder  # noqa: PLC0415 - see the caller

    backend = await here.open(choice.server)
    reached = False
    try:
        with terminal.waiting(f"Connecting to {choice.server.name} …"):
            # A little longer than the attempt itself, which can say more about why it failed.
            await backend.connect(within=within + 1.0)
        reached = True
        result = envelope_decoder(dict[str, Any])(await send(here, backend))
    except (msgspec.MsgspecError, RecursionError):
        failure = CallFailed(f"{choice.server.name} gave an answer that cannot be read.")
        return _Outcome(None, failure, reached)
    except ProxyError as error:
        failure = error if reached else backend.snapshot().error or error
        return _Outcome(None, failure.masked(here.shown), reached)
    return _Outcome(result, None, reached)


def not_listed(server: str, kind: str, name: str, names: Sequence[str]) -> str:
    """That a server has no such thing, with the nearest that it has."""
    if near := nearest(name, names):
        return f"{server} has no {kind} {name!r}. Did you mean {near}?"
    shown = ", ".join(names[:_LISTED_NAMES]) or "none"
    more = f" and {len(names) - _LISTED_NAMES} more" if len(names) > _LISTED_NAMES else ""
    return f"{server} has no {kind} {name!r}. It has: {shown}{more}."


def _failed(choice: ServerChoice, outcome: _Outcome, terminal: Terminal) -> int:
    """Say why there is no answer, and what to do; the exit code."""
    failure = outcome.failure
    step, code = _consequence(choice, outcome)
    fact = failure.fact if failure else "There was no answer."
    text = "\n".join(filter(None, (f"emceepee: {marked_lines(fact)}", step)))
    terminal.failure(fact, step, code=failure.code if failure else "call_failed", text=text)
    return code


def _consequence(choice: ServerChoice, outcome: _Outcome) -> tuple[str, int]:
    """What to do, and the exit code."""
    from emceepee_stdio import errors  # noqa: PLC0415 - see the caller

    failure = outcome.failure
    match failure:
        case errors.InvalidArguments():
            return failure.next_step, USAGE
        case errors.ToolNotFound() | errors.PromptNotFound() | errors.ResourceNotFound():
            return f"See what it has: emceepee ls {choice.words}", USAGE
        case errors.NeedsApproval() | errors.PolicyDenied():
            return _permission_step(failure), FAILED
        case errors.WrongCredentials() | errors.NeedsSignIn():
            return remedy(choice, failure), CREDENTIALS_REFUSED
        case _ if outcome.reached:
            return _after_start(choice, failure)
        case _:
            return remedy(choice, failure), SERVER_FAILED


def _permission_step(failure: "ProxyError") -> str:
    """What a person does about a call that may not run; the error's own step is for a model."""
    from emceepee_stdio.errors import PolicyDenied  # noqa: PLC0415 - see the caller

    if failure.command is None:
        return "" if isinstance(failure, PolicyDenied) else failure.next_step
    return f"Run `{failure.command}`, and then this command again."


def _after_start(choice: ServerChoice, failure: "ProxyError | None") -> tuple[str, int]:
    """The same for a server that starts well: the doctor would find nothing."""
    from emceepee_stdio import errors  # noqa: PLC0415 - see the caller

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


def remedy(choice: ServerChoice, failure: "ProxyError | None") -> str:
    """What to do about a server that could not be used."""
    from emceepee_stdio import errors  # noqa: PLC0415 - see the caller

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
