"""A session for one command: the servers as the proxy would have them, without a client.

Each server is tried once, in the time that the command has. Nothing of it is left afterwards.
This loads the whole proxy, so it is a module of its own: commands import it when they run.
"""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from math import inf
from typing import Any

import anyio
import msgspec

from emceepee_stdio.app import environment_of
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.lists import Remembered
from emceepee_stdio.cli.shared_options import ServerChoice
from emceepee_stdio.cli.terminal import PERSON_S, ask, ask_whether, is_person_there, terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import RestartOverrides, ServerConfig
from emceepee_stdio.config.settings import Config, Settings
from emceepee_stdio.errors import CallFailed, CallTimeout, ProxyError
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal, redact_text
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.session.catalogue import TOO_LARGE
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.session.person import Choice, Decision, OnLate
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Admission
from emceepee_stdio.state.pending_requests import PendingRequest, RequestKind
from emceepee_stdio.tools.question_tools import choices_of, form_problems, with_defaults
from emceepee_stdio.visible_text import marked_lines, on_one_line
from emceepee_stdio.wire.own_process import protect_memory
from emceepee_stdio.wire.process import StopTimes

_KEYRING_SHARE = 0.8  # of the time: so that a keyring that hangs is named, and not its server
_WRITE_S = 10.0  # for lists of megabytes on a slow disk; most take milliseconds
_STOP = StopTimes(term=0.2, kill=0.6)  # s: a person waits for the command to end


@dataclass(frozen=True, slots=True)
class OneShotSession:
    """The session of one command. `limit` ends its request when its time is up."""

    runtime: Runtime
    limit: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @contextmanager
    def person_answers(self) -> Generator[None]:
        """The time of the person is not that of the server."""
        left, self.limit.deadline = self.limit.deadline - anyio.current_time(), inf
        yield
        self.limit.deadline = anyio.current_time() + left

    async def open(self, server: ServerConfig) -> Backend:
        """A server that has begun to connect, and is not started again when it fails."""
        once = msgspec.structs.replace(
            server, start="eager", idle_stop_ms=0, restart=RestartOverrides(attempts=0)
        )
        servers = self.runtime.servers
        return await servers.add(Admission.configured(once), self.runtime.group())

    async def remembered(self, server: ServerConfig) -> Remembered | None:
        """What is known of a server that starts on first use; None where it has to be started."""
        catalogue, servers = self.runtime.catalogue, self.runtime.servers
        if catalogue is None or servers.start_mode(Admission.configured(server)) == "eager":
            return None
        return await catalogue.recall(server)

    async def not_remembered(self, server: ServerConfig) -> str:
        """Why a server that is to start on first use starts with each session; or nothing."""
        catalogue, servers = self.runtime.catalogue, self.runtime.servers
        if catalogue is not None:
            await catalogue.flush(_WRITE_S)
        return f" {TOO_LARGE}" if servers.is_too_large(Admission.configured(server)) else ""

    def shown(self, text: str) -> str:
        """What may be shown of what a server says."""
        return redact_text(self.runtime.session.secrets.mask(text))


@asynccontextmanager
async def one_shot_session(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    within: float,
    configured: Iterable[str] = (),
) -> AsyncGenerator[OneShotSession]:
    """The session; every server in it is stopped at its end.

    `configured` are the names of all servers, on which those of exposed tools depend.
    """
    protect_memory()
    clock = Clock()
    timeout_ms = max(round(within * 1000), 1)
    settings = msgspec.structs.replace(
        settings,
        timeouts=msgspec.structs.replace(
            settings.timeouts, connect_ms=timeout_ms, request_ms=timeout_ms
        ),
        fixed=msgspec.structs.replace(
            settings.fixed,
            stop_term_s=_STOP.term,
            stop_kill_s=_STOP.kill,
            keyring_s=min(settings.fixed.keyring_s, within * _KEYRING_SHARE),
        ),
    )
    runtime = Runtime(
        Config(settings=settings),
        clock=clock,
        ids=Ids(clock),
        journal=Journal.silent(clock),
        environment=environment_of(settings, environ),
    )
    runtime.servers.configured_names |= set(configured)
    async with anyio.create_task_group() as tasks:
        await tasks.start(runtime.run)
        try:
            yield OneShotSession(runtime)
        finally:
            with anyio.CancelScope(shield=True):
                await runtime.stop(_STOP)
        tasks.cancel_scope.cancel()


Send = Callable[[OneShotSession, Backend], Awaitable[msgspec.Raw]]


async def request(
    choice: ServerChoice, send: Send, within: float
) -> tuple[dict[str, Any] | ProxyError, bool]:
    """Connect to the server, and send it one request.

    What it answered, or why it did not; and whether the server itself was reached.
    """
    result: dict[str, Any] | ProxyError = CallFailed("There was no answer.")
    reached = False
    async with (
        one_shot_session(choice.settings, environ=os.environ, within=within) as here,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_answer_questions, here)
        backend = await here.open(choice.server)
        try:
            with terminal.waiting(f"Connecting to {choice.server.name} …"):
                # A little longer than the attempt itself, which can say more about why it failed.
                await backend.connect(within=within + 1.0)
            reached = True
            here.limit.deadline = anyio.current_time() + within
            result = CallTimeout(f"{choice.server.name} did not answer within {within:g} s.")
            with here.limit:
                result = envelope_decoder(dict[str, Any])(await send(here, backend))
        except (msgspec.MsgspecError, RecursionError):
            result = CallFailed(f"{choice.server.name} gave an answer that cannot be read.")
        except ProxyError as error:
            failure = error if reached else backend.snapshot().error or error
            result = failure.masked(here.shown)
        tasks.cancel_scope.cancel()
    return result, reached


# The person at the terminal, asked whether a call may be made.


@dataclass(frozen=True, slots=True)
class _PersonAtTerminal:
    """Asks at once, and waits for as long as they take."""

    _here: OneShotSession

    async def confirm(
        self,
        choice: Choice,
        *,
        on_ask: Callable[[], None],
        on_late: OnLate,  # noqa: ARG002 - nobody is late at a terminal
    ) -> Decision:
        on_ask()
        for line in choice.lines:
            terminal.note(line)
        with self._here.person_answers():
            agrees = await ask_whether(choice.title, usual=False)
        return Decision.AGREED_ONCE if agrees else Decision.REFUSED


def call_at_terminal(here: OneShotSession) -> Call:
    """A call for which the person is asked, if one is there; `here` ends it when its time is up."""
    person = _PersonAtTerminal(here) if is_person_there() else None
    return Call(client=CallingClient(ceiling=PERSON_S, person=person))


# The person at the terminal answers what a server asks while a command runs.


_BOOLEANS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


async def _answer_questions(here: OneShotSession) -> None:
    session = here.runtime.session
    while True:
        await session.until(lambda: bool(session.state.requests.pending()), within=inf)
        for asked in session.state.requests.pending():
            with here.person_answers():
                answer = await _answer_question(here, asked)
            if asked.id not in [one.id for one in session.state.requests.pending()]:
                terminal.note(f"{asked.server} no longer wants to know.")
                continue
            if asked.kind is RequestKind.SAMPLING:
                session.questions.refuse(asked, "There is no model here: a person calls this tool.")
            else:
                answer = answer or {"action": "decline"}
                session.questions.answer(asked, answer["action"], answer.get("content"))


async def _answer_question(here: OneShotSession, asked: PendingRequest) -> dict[str, Any] | None:
    """What the person says; None to decline."""
    message = marked_lines(here.shown(str(asked.params.get("message", ""))))
    if asked.kind is RequestKind.SAMPLING:
        terminal.note(f"{asked.server} asks for a text of a model. A shell has no model: declined.")
        return None
    if not is_person_there():
        terminal.note(f"{asked.server} asks: {message} (declined: nobody is at a terminal)")
        return None
    terminal.note(f"{asked.server} asks: {message}")
    if asked.params.get("mode") == "url":
        terminal.note(f"It wants you to open this address yourself: {asked.params.get('url')}")
        agrees = await ask_whether("Have you done so?", usual=False)
        return {"action": "accept"} if agrees else None
    return await _fill_in(asked.params)


async def _fill_in(params: Mapping[str, object]) -> dict[str, Any] | None:
    """Ask for each field; an empty answer leaves an optional one out."""
    schema = mapping(params.get("requestedSchema"))
    wanted = elements(schema.get("required"))
    if not await ask_whether("Answer it?", usual=True):
        return None
    content: dict[str, Any] = {}
    for name, about in mapping(schema.get("properties")).items():
        given = await _value(name, mapping(about), is_needed=name in wanted)
        if given is None:
            return None
        content |= given
    return {"action": "accept", "content": content}


async def _value(
    name: str, field: Mapping[str, object], *, is_needed: bool
) -> dict[str, Any] | None:
    """What the person gives for one field, under its name, asked until it fits; None to decline.

    An empty line is the default; without one it leaves an optional field out.
    """
    form = {"properties": {name: field}}
    usual = with_defaults({}, form)
    while True:
        text = await ask(f"{_label(name, field, is_needed=is_needed)}{_usual(field, usual)}:")
        if text is None:
            return None
        content = {name: _typed(text, field)} if text or (is_needed and not usual) else usual
        problems = form_problems(content, form)
        if not problems:
            return content
        terminal.note(f"That does not fit: {'; '.join(problems)}.")


def _usual(field: Mapping[str, object], usual: Mapping[str, object]) -> str:
    """What an empty line stands for."""
    value = next(iter(usual.values()), None)
    if field.get("type") == "boolean":
        return " [Y/n]" if value is True else " [y/N]" if value is False else " [y/n]"
    shown = [name for name, one in _choices(field).items() if one in (elements(value) or [value])]
    said = ", ".join(shown) or on_one_line(str(value))
    return f" [{said}]" if usual else ""


def _choices(field: Mapping[str, object]) -> dict[str, object]:
    """The values that may be chosen, by their titles where each has one of its own."""
    of = field if choices_of(field) else mapping(field.get("items"))
    values = choices_of(of)
    titled = [mapping(one).get("title") for one in elements(of.get("oneOf") or of.get("anyOf"))]
    titles = (elements(of.get("enumNames")) or titled)[: len(values)]
    named = {str(title or value): value for title, value in zip_longest(titles, values)}
    return named if len(named) == len(values) else {str(value): value for value in values}


def _label(name: str, field: Mapping[str, object], *, is_needed: bool) -> str:
    about = [str(field.get("description") or field.get("title") or field.get("type") or "")]
    if (names := ", ".join(_choices(field))) and choices_of(field):
        about.append(f"one of {names}")
    elif names:
        about.append(f"any of {names}, with commas between")
    if not is_needed:
        about.append("optional")
    return f"{name} ({', '.join(filter(None, about))})"


def _typed(text: str, field: Mapping[str, object]) -> object:
    """The words of a person as the kind of value that was asked for, where they are one."""
    chosen = {title.casefold(): value for title, value in _choices(field).items()}
    try:
        match field.get("type"):
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return _BOOLEANS.get(text.lower(), text)
            case "array":
                parts = [part.strip() for part in text.split(",") if part.strip()]
                return [chosen.get(part.casefold(), part) for part in parts]
            case _:
                return chosen.get(text.casefold(), text)
    except ValueError:
        return text
