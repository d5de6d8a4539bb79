"""What must be true of every conversation with the proxy, whatever goes wrong around it.

The model is told what was sent, what was received and what was seen outside, in order. It reads
no clock and asks nobody, so that a recorded conversation is judged like a living one. At a quiet
moment everything is settled: then it closes its books and forgets what it no longer needs.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.client import Answer
from tests.faults import promises
from tests.faults.steps import COMMANDS, LOUD, URLS

Message = dict[str, Any]
Entry = tuple[int, str, Any]

_ENDS = {
    "task_completed": "completed",
    "task_failed": "failed",
    "task_cancelled": "cancelled",
    "task_expired": "expired",
}
_ASKED = ("elicitation_request", "sampling_request")
_UNANSWERED = ("elicitation_expired", "sampling_expired")
_INTERNAL_ERROR = -32603


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Something that must never happen, and at which step it was noticed."""

    step: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.rule}: {self.detail}"


@dataclass(slots=True, kw_only=True)
class _Request:
    step: int
    message: Message
    tool: str
    arguments: Mapping[str, Any]
    cancelled: bool = False
    cancel_was_read: bool = False
    answered: bool = False

    def __str__(self) -> str:
        return f"{self.message['id']} of step {self.step}, {self.tool or self.message['method']}"


@dataclass(slots=True, kw_only=True)
class _Task:
    step: int
    arguments: Mapping[str, Any]
    end: str | None = None
    told: str | None = None
    fetched: bool = False


class Model:
    """Judges a conversation; `violations` holds what was wrong with it."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.task_ends: Counter[str] = Counter()
        self.question_ends: Counter[str] = Counter()
        self.dropped = 0
        self.first_quiet: Message = {}
        self.last_quiet: Message = {}
        self.resident_kb: list[int] = []
        self.survivors: list[int] = []
        self._step = 0
        self._hung_up = False
        self._requests: dict[int | str, _Request] = {}
        self._pings: dict[int | str, list[_Request]] = {}
        self._noise = 0
        self._told: set[str] = set()
        self._settled_id = ""
        self._tasks: dict[str, _Task] = {}
        self._asked: set[str] = set()
        self._questions: dict[str, str] = {}
        self._timers: dict[str, str] = {}
        self._dropped_lately = 0
        self._notes = promises.Notes()

    def __repr__(self) -> str:
        return f"<Model {sum(self.calls.values())} calls, {len(self.violations)} violations>"

    def take(self, step: int, what: str, body: Any) -> None:
        """One entry: `sent`, `noise`, `received`, `quiet`, `hung_up` or `ended`."""
        self._step = step
        getattr(self, f"_take_{what}")(body)

    def blame(self, rule: str, detail: object) -> None:
        self.violations.append(Violation(step=self._step, rule=rule, detail=str(detail)[:2000]))

    @property
    def waits_for_timers(self) -> bool:
        return any(state == "set" for state in self._timers.values())

    # What the client says

    def _take_sent(self, message: Message) -> None:
        if message["method"] == "notifications/cancelled":
            self._requests[message["params"]["requestId"]].cancelled = True
        elif "id" in message:
            params = message.get("params", {})
            is_call = message["method"] == "tools/call"
            request = _Request(
                step=self._step,
                message=message,
                tool=params.get("name", "") if is_call else "",
                arguments=params.get("arguments", {}) if is_call else {},
            )
            self._requests[message["id"]] = request
            self.calls[request.tool or message["method"]] += 1
            self._notes.asked(request.arguments)
            if message["method"] == "ping":
                # The proxy reads in order: with the answer to this, it has read every cancel.
                cancelled = [r for r in self._requests.values() if r.cancelled and not r.answered]
                self._pings[message["id"]] = cancelled

    def _take_noise(self, _line: str) -> None:
        self._noise += 1

    def _take_hung_up(self, _nothing: object) -> None:
        self._hung_up = True

    # What the proxy says

    def _take_received(self, line: str) -> None:
        try:
            message = json.loads(line)
            if "method" in message:
                return
            if "id" not in message:
                self._complained(message)
            else:
                self._answered(message)
        except (ValueError, TypeError, KeyError, AssertionError, AttributeError) as error:
            self.blame("a message of the wrong shape", f"{error!r} in {line[:500]}")

    def _complained(self, message: Message) -> None:
        self._noise -= 1
        if self._noise < 0:
            self.blame("a complaint about nothing", message)

    def _answered(self, message: Message) -> None:
        request = self._requests.get(message["id"])
        if request is None:
            self.blame("an answer that nobody asked for, or not any more", message)
            return
        if request.answered:
            self.blame("answered twice", request)
            return
        if request.cancel_was_read:
            self.blame("answered after its cancel", request)
        request.answered = True
        for cancelled in self._pings.pop(message["id"], ()):
            cancelled.cancel_was_read = True
        if "error" in message:
            self._refused(request, message["error"])
        elif request.tool:
            self._judge(request, Answer(message["result"]))

    def _refused(self, request: _Request, error: Message) -> None:
        self.errors[str(error["code"])] += 1
        if error["code"] == _INTERNAL_ERROR:
            self.blame("an internal error", f"{request}: {error}")

    def _judge(self, request: _Request, answer: Answer) -> None:
        """The answer itself first, then what came with it: that is the order of things."""
        self._judge_content(request, answer)
        for event in answer.told:
            self._event(event)
        for question in answer.questions:
            if question in self._questions:
                self.blame("a question that has ended is still shown", question)

    def _judge_content(self, request: _Request, answer: Answer) -> None:
        if promises.is_bug(answer):
            self.blame("an unexpected error", f"{request}: {answer.text}")
        if answer.is_error:
            self.errors[promises.code_of(answer)] += 1
        if request.tool == "execute_tool":
            if (task_id := promises.promoted(answer)) is not None:
                self._promoted(request, task_id, answer)
            elif self._keeps_promise(request, request.arguments, answer):
                self._notes.confirmed(request.arguments)
        elif handler := getattr(self, f"_on_{request.tool}", None):
            handler(request, answer)

    def _keeps_promise(
        self, request: _Request, arguments: Mapping[str, Any], answer: Answer
    ) -> bool:
        """Whether the call was carried out, and is answered with its own result."""
        if problem := promises.broken(arguments, answer):
            self.blame("the answer of another call", f"{request}: {problem}")
        return not answer.is_error

    # Tasks

    def _promoted(self, request: _Request, task_id: str, answer: Answer) -> None:
        if task_id in self._tasks:
            self.blame("one task for two calls", f"{request}: {task_id}")
        self._tasks[task_id] = _Task(step=self._step, arguments=request.arguments)
        described = answer.json["proxy_task"]
        asked = (request.arguments["server"], request.arguments["tool"])
        if (described["server"], described["tool"]) != asked:
            self.blame("the task of another call", f"{request}: {described}")

    def _on_get_task_result(self, request: _Request, answer: Answer) -> None:
        task_id = request.arguments["task_id"]
        task = self._tasks.get(task_id)
        if task is None:
            return
        if promises.no_result_yet(answer):
            self._status(task_id, answer.json["task"]["status"])
        elif not answer.is_error:
            self._status(task_id, "completed")
            if self._keeps_promise(request, task.arguments, answer) and not task.fetched:
                task.fetched = True
                self._notes.confirmed(task.arguments)

    def _on_cancel_task(self, request: _Request, answer: Answer) -> None:
        """The answer itself tells the end, so that no event does."""
        if not answer.is_error and answer.json["success"]:
            self._task_ended(request.arguments["task_id"], "cancelled")

    def _on_list_servers(self, request: _Request, answer: Answer) -> None:
        """Nobody removes the servers that the configuration begins with."""
        if "name" in request.arguments:
            return
        names = {server["name"] for server in answer.json["servers"]}
        if gone := {*COMMANDS, *URLS, LOUD} - names:
            self.blame("a configured server is gone", sorted(gone))

    def _on_get_task(self, _request: _Request, answer: Answer) -> None:
        if not answer.is_error:
            self._status(answer.json["task"]["task_id"], answer.json["task"]["status"])

    def _on_list_tasks(self, request: _Request, answer: Answer) -> None:
        listed = {task["task_id"]: task["status"] for task in answer.json["tasks"]}
        for task_id, status in listed.items():
            self._status(task_id, status)
        is_whole = "next_cursor" not in answer.json and "cursor" not in request.arguments
        if request.arguments.get("include_completed") and is_whole:
            for task_id in self._tasks.keys() - listed.keys():
                self.blame("a task that list_tasks does not know", task_id)

    def _status(self, task_id: str, status: str) -> None:
        """A task ends once, and stays ended. One of which we know no call is from before."""
        task = self._tasks.get(task_id)
        if task is None:
            return
        if task.end is not None and status != task.end:
            self.blame("a task has two ends", f"{task_id}: {task.end}, then {status}")
        elif task.end is None and status != "working":
            task.end = status
            self.task_ends[status] += 1

    # Events

    def _event(self, event: Message) -> None:
        kind, data = event["type"], event["data"]
        if event["id"] in self._told or event["id"] <= self._settled_id:
            self.blame("an event told twice", event)
            return
        self._told.add(event["id"])
        self.events[kind] += 1
        if kind in _ENDS:
            self._task_ended(data["task_id"], _ENDS[kind])
        elif kind in _ASKED:
            if data["request_id"] in self._asked:
                self.blame("a question told twice", event)
            self._asked.add(data["request_id"])
        elif kind in _UNANSWERED:
            self._question_ended(data["request_id"], data["reason"])
        elif kind == "timer_expired":
            self._timer_fired(data["timer_id"])
        elif kind == "notification":
            self._notes.told(event)
        elif kind == "events_dropped":
            self.dropped += data["count"]
            self._dropped_lately += data["count"]

    def _task_ended(self, task_id: str, end: str) -> None:
        task = self._tasks.get(task_id)
        if task is None:
            self.blame("the end of a task that nobody has", task_id)
            return
        if task.told is not None:
            self.blame("the end of a task told twice", f"{task_id}: {task.told}, then {end}")
        task.told = end
        self._status(task_id, end)

    def _question_ended(self, request_id: str, how: str) -> None:
        before = self._questions.get(request_id)
        if before is not None:
            self.blame("a question has two ends", f"{request_id}: {before}, then {how}")
        self._questions[request_id] = how
        self.question_ends[how] += 1

    def _on_respond_to_elicitation(self, _request: _Request, answer: Answer) -> None:
        if not answer.is_error:
            self._question_ended(answer.json["answered"], answer.json["action"])

    _on_respond_to_sampling = _on_respond_to_elicitation

    def _on_set_timer(self, _request: _Request, answer: Answer) -> None:
        if not answer.is_error and not answer.json["timer"]["interval"]:
            self._timers.setdefault(answer.json["timer"]["timer_id"], "set")

    def _on_delete_timer(self, _request: _Request, answer: Answer) -> None:
        if not answer.is_error and answer.json["success"]:
            self._timers[answer.json["timer"]["timer_id"]] = "deleted"

    def _timer_fired(self, timer_id: str) -> None:
        before = self._timers.get(timer_id, "set")
        if before != "set":
            self.blame("a timer fired that was over", f"{timer_id}: {before}")
        self._timers[timer_id] = "fired"

    # What is seen from outside

    def _take_quiet(self, seen: Message) -> None:
        """Everything has been answered, ended and told."""
        self._check_answered()
        for task_id, task in self._tasks.items():
            if task.end is None:
                self.blame("a task without an end", task_id)
        self._check_told()
        for name in ("calls_in_flight", "working_tasks", "pending_requests", "events_waiting"):
            if seen.get(name):
                self.blame("not quiet", f"{name} is {seen[name]}")
        if seen.get("strays"):
            self.blame("a process is left", seen["strays"])
        self._check_holdings(seen)
        self._check_words(seen)
        self._forget()

    def _check_answered(self) -> None:
        for request in self._requests.values():
            if not request.answered and not request.cancelled:
                self.blame("never answered", request)

    def _check_told(self) -> None:
        """What should have been told since the last quiet moment and was not, was dropped."""
        lacking = [f"the end of {i}" for i, task in self._tasks.items() if task.told is None]
        lacking += [f"timer {i}" for i, state in self._timers.items() if state == "set"]
        missing, too_many = self._notes.settle()
        if len(lacking) + missing > self._dropped_lately:
            detail = f"{missing} notifications, {lacking}; {self._dropped_lately} were dropped"
            self.blame("events are missing", detail)
        self._dropped_lately = 0
        if too_many:
            self.blame("more notifications than were sent", too_many)

    def _check_holdings(self, seen: Message) -> None:
        if "descriptors" not in seen:
            return
        if not self.first_quiet:
            self.first_quiet = seen
        self.last_quiet = seen
        self.resident_kb.append(seen["resident_kb"])
        if more := promises.more_descriptors(self.first_quiet["descriptors"], seen["descriptors"]):
            self.blame("file descriptors are left open", more)
        if seen["resident_kb"] > self.first_quiet["resident_kb"] + promises.MEMORY_KB:
            first, last = self.first_quiet["resident_kb"], seen["resident_kb"]
            self.blame("memory grows", f"from {first} kB when warm to {last} kB")

    def _check_words(self, seen: Message) -> None:
        if "Traceback" in seen.get("stderr", ""):
            self.blame("a traceback on stderr", seen["stderr"][-1500:])
        for line in seen.get("bugs", ()):
            self.blame("an unexpected error in the journal", line)

    def _forget(self) -> None:
        self._requests.clear()
        self._pings.clear()
        self._tasks.clear()
        self._asked.clear()
        self._questions.clear()
        self._timers.clear()
        self._settled_id = max(self._told, default=self._settled_id)
        self._told.clear()

    def _take_ended(self, seen: Message) -> None:
        """The proxy is gone. What was in flight when we hung up may have gone unanswered."""
        if not self._hung_up:
            self._check_answered()
        self.survivors = seen["survivors"]
        if seen["code"] != 0:
            last_words = seen["stderr"][-1500:]
            self.blame("the proxy ended badly", f"exit code {seen['code']}: {last_words}")
        if seen["survivors"]:
            self.blame("a process survives", seen["survivors"])
        self._check_words(seen)
