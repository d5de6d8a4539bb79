"""Errors for a model to read: a stable code, the fact, the next step.

Everything below the front raises these; the front catches them once and renders `str(error)`. The
command line shows the same fact with the step for a person. What happened is in the type and the
fields: no code looks for it in the text.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Self, TypeVar

MAX_ERROR_CHARS = 8_000  # a page of text: enough to act on, cheap in a model's context
_CUT = " … (cut)"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - len(_CUT)] + _CUT


def with_stderr(fact: str, lines: Sequence[str]) -> str:
    """The fact, and what the server wrote last."""
    return f"{fact} The last lines of its stderr:\n" + "\n".join(lines) if lines else fact


class ProxyError(Exception):
    """One failure: `fact` says what happened, `hint` what to do next, `code` never changes."""

    code: ClassVar[str]
    hint: ClassVar[str]  # for a model, which calls tools
    # At a command line: empty if only a model can do something, None if the hint serves both.
    hint_for_person: ClassVar[str | None] = ""
    hint_reconnects: ClassVar[bool] = False  # whether the hint says to call reconnect_server

    def __init__(
        self,
        fact: str,
        *,
        hint: str | None = None,
        for_person: str | None = None,
        command: str | None = None,
        stderr: Sequence[str] = (),
        reconnects: bool | None = None,
    ) -> None:
        super().__init__(fact)
        self.fact = fact
        self.stderr = tuple(stderr)  # the last lines that the server wrote
        self.command = command  # what a person runs in a shell to change it, if there is such
        self.next_step = self.hint if hint is None else hint
        if for_person is None:  # a hint for the occasion serves both readers
            for_person = self.hint_for_person if hint is None else hint
        self.for_person = self.hint if for_person is None else for_person
        self.has_own_hint = hint is not None
        self.reconnects = (
            self.hint_reconnects and hint is None if reconnects is None else reconnects
        )

    @property
    def whole_fact(self) -> str:
        return with_stderr(self.fact, self.stderr)

    def masked(self, mask: Callable[[str], str]) -> Self:
        """The same, with nothing in it that must not be shown."""
        shown = type(self).__new__(type(self))  # each kind is made from something else
        shown.__dict__ |= self.__dict__
        shown.fact, shown.next_step = mask(self.fact), mask(self.next_step)
        shown.for_person = mask(self.for_person)
        if self.stderr:  # as one text: a secret may have several lines
            shown.stderr = tuple(mask("\n".join(self.stderr)).split("\n"))
        shown.args = (shown.fact,)
        return shown

    def turned_into(self, kind: "type[_Kind]", *, hint: str | None = None) -> "_Kind":
        """The same failure as another kind; `hint` replaces the step for a model alone."""
        return kind(
            self.fact,
            hint=self.next_step if hint is None else hint,
            for_person=self.for_person,
            command=self.command,
            stderr=self.stderr,
            reconnects=self.reconnects,
        )

    def __str__(self) -> str:
        tail = f" [{self.code}] {_cut(self.next_step, MAX_ERROR_CHARS // 2)}"
        return _cut(self.whole_fact, MAX_ERROR_CHARS - len(tail)) + tail


_Kind = TypeVar("_Kind", bound=ProxyError)


class ServerNotFound(ProxyError):
    code = "server_not_found"
    hint = "Call list_servers for the names, or add_server to add it."


class ServerExists(ProxyError):
    code = "server_exists"
    hint = "Choose another name, or pass replace=true to put the new settings in its place."


class ServerUnavailable(ProxyError):
    code = "server_unavailable"
    hint = "Call list_servers to see why, or reconnect_server to try now."
    hint_reconnects = True


class ServerFailed(ProxyError):
    code = "server_failed"
    hint = "Fix what the error names, then call reconnect_server."
    hint_reconnects = True


class CannotConnect(ServerFailed):
    """Trying again would fail in the same way."""


class CommandNotFound(CannotConnect):
    """There is no program of the name that is configured."""


class OpeningTimeout(ServerFailed):
    """The server started, and did not answer the request that opens the connection."""


class WrongCredentials(CannotConnect):
    """The server is there, and wants others than it was given."""


class SecretUnavailable(CannotConnect):
    """The keyring does not give a secret that the configuration refers to."""


class ToolNotFound(ProxyError):
    code = "tool_not_found"
    hint = "Call list_tools to see what this server offers."


class InvalidArguments(ProxyError):
    code = "invalid_arguments"
    hint = "Correct the argument and call again."
    hint_for_person = None


class InvalidSelect(ProxyError):
    code = "invalid_select"
    hint = "Correct the jq program and call again: nothing was called."


class SaveRefused(ProxyError):
    code = "save_refused"
    hint = "Choose another path, or leave it out to get the result: nothing was called."


class CallFailed(ProxyError):
    code = "call_failed"
    hint = "Read the server's message; get_logs may say more."


class CallTimeout(ProxyError):
    code = "call_timeout"
    hint = "Call again with a longer timeout_ms, or see get_logs for what the server is doing."


class ServerDisconnected(ProxyError):
    code = "server_disconnected"
    hint = "Call list_servers to see its state; call again once it is connected."


class TaskNotFound(ProxyError):
    code = "task_not_found"
    hint = "Call list_tasks with include_completed=true for the ids."


class TaskLimit(ProxyError):
    code = "task_limit"
    hint = "Wait for a task with await_activity, or stop one with cancel_task."


class ResultExpired(ProxyError):
    code = "result_expired"
    hint = "Run the tool again to get a fresh result."


class RequestNotFound(ProxyError):
    code = "request_not_found"
    hint = "Call get_elicitations or get_sampling_requests for what is pending."


class TimerNotFound(ProxyError):
    code = "timer_not_found"
    hint = "Call list_timers for the ids."


class TimerLimit(ProxyError):
    code = "timer_limit"
    hint = "Delete a timer with delete_timer first."


class InvalidPattern(ProxyError):
    code = "invalid_pattern"
    hint = "Use a simpler regular expression."
    hint_for_person = None


class ResourceNotFound(ProxyError):
    code = "resource_not_found"
    hint = "Call list_resources or list_resource_templates for the URIs."


class PromptNotFound(ProxyError):
    code = "prompt_not_found"
    hint = "Call list_prompts for the names."


class NotSupported(ProxyError):
    code = "not_supported"
    hint = "list_servers with its name shows the capabilities of a server."


class PolicyDenied(ProxyError):
    code = "policy_denied"
    hint = "A person can add the server with `emceepee config add`."
    hint_for_person = None


class NeedsApproval(ProxyError):
    code = "needs_approval"
    hint = "Ask the person to run `emceepee approve`, then call again."
    hint_for_person = None


class NeedsSignIn(ProxyError):
    code = "needs_sign_in"
    hint = "Ask the person to run `emceepee login` for this server; it connects by itself then."
    hint_for_person = None


class ConfigInvalid(ProxyError):
    code = "config_invalid"
    hint = "Run `emceepee config check` for every problem in the file."
    hint_for_person = None


class ResultTooLarge(ProxyError):
    code = "result_too_large"
    hint = "Ask the tool for less, or page through the stored result with read_resource."


def error_types() -> Iterator[type[ProxyError]]:
    """Every kind of error, in the order of this page, for the docs and the tests."""
    yield from ProxyError.__subclasses__()
