"""The tools of the well-behaved server, one for each thing that a server can do to a client."""

import base64
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dual
import rpc
from calls import Call, NeedsInputError, StoppedError, Tool
from rpc import Message, RpcError, text

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
    "required": ["name"],
}
COUNTED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

TOOLS: list[Tool] = []


def tool(**fields: Any) -> Callable[[Callable[..., Message]], Callable[..., Message]]:
    def keep(function: Callable[..., Message]) -> Callable[..., Message]:
        TOOLS.append(Tool(function, **fields))
        return function

    return keep


@tool(annotations={"readOnlyHint": True})
def echo(_: Call, *, message: str) -> Message:
    """Say it back."""
    return text(message)


@tool()
def add(_: Call, *, a: float, b: float) -> Message:
    """Add two numbers."""
    return text(json.dumps(a + b))


@tool()
def slow(call: Call, *, seconds: float) -> Message:
    """Take that long; can be cancelled."""
    if call.stopped.wait(seconds):
        rpc.record("cancelled", tool="slow", id=call.id)
    return text(f"slept {seconds}")


@tool()
def progress(call: Call, *, steps: int, interval: float = 0.01) -> Message:
    """Report every step."""
    for step in range(1, steps + 1):
        if call.stopped.wait(interval):
            break
        call.progress(step, steps)
    return text(f"{steps} steps")


@tool()
def big(_: Call, *, bytes: int) -> Message:  # noqa: A002 - the name on the wire
    """A text of that size."""
    return text("x" * bytes)


@tool()
def image(_: Call) -> Message:
    """A text and a picture, annotated."""
    block = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    block["annotations"] = {"audience": ["user"], "priority": 0.5}
    return {"content": [{"type": "text", "text": "a pixel"}, block], "_meta": {"fixture/key": 1}}


@tool(outputSchema=COUNTED)
def structured(_: Call, *, say: bool = True) -> Message:
    """Structured content, said in a text block too unless `say` is false."""
    content = text('{"n": 1}')["content"] if say else []
    return {"content": content, "structuredContent": {"n": 1}}


@tool()
def fail(_: Call) -> Message:
    """A tool error."""
    return text("it failed", isError=True)


@tool()
def rpc_error(_: Call, *, code: int) -> Message:
    """A JSON-RPC error of that code."""
    raise RpcError(code, f"error {code} as asked", {"asked": code})


def _form(message: str) -> Message:
    return {"mode": "form", "message": message, "requestedSchema": FORM}


@tool()
def ask(call: Call, *, mode: str = "form") -> Message:
    """Ask the user: a form, or to visit a url."""
    if mode == "form":
        return text(json.dumps(call.ask("who", "elicitation/create", _form("Who are you?"))))
    question = {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in"}
    if call.modern:
        return text(json.dumps(call.ask("visit", "elicitation/create", question)))
    question["elicitationId"] = f"e-{call.id}"
    answer = call.ask("visit", "elicitation/create", question)
    done = {"elicitationId": question["elicitationId"]}
    rpc.notify("notifications/elicitation/complete", done)
    return text(json.dumps(answer))


@tool()
def ask_with_defaults(call: Call) -> Message:
    """Ask the user a form that has an answer ready for every field."""
    fields = {
        "name": {"type": "string", "default": "Ada"},
        "age": {"type": "integer", "default": 36},
    }
    question = {
        "mode": "form",
        "message": "Who are you?",
        "requestedSchema": {"type": "object", "properties": fields, "required": ["name"]},
    }
    return text(json.dumps(call.ask("who", "elicitation/create", question)))


@tool()
def transfer(call: Call, *, amount: int, to: str) -> Message:
    """Pay, if the user says so."""
    sure = {"type": "string", "enum": ["yes", "no"]}
    question = {
        "mode": "form",
        "message": f"Transfer {amount} EUR to {to}?",
        "requestedSchema": {"type": "object", "properties": {"sure": sure}, "required": ["sure"]},
    }
    answer = call.ask("sure", "elicitation/create", question)
    agreed = answer["action"] == "accept" and answer["content"]["sure"] == "yes"
    return text(f"{amount} EUR paid to {to}" if agreed else "nothing was paid")


@tool()
def ask_this(call: Call, *, question: str) -> Message:
    """Ask the user with these params, as JSON."""
    return text(json.dumps(call.ask("this", "elicitation/create", json.loads(question))))


@tool()
def ask_soon(call: Call) -> Message:
    """Ask the user once this call has been answered; only by request."""

    def later() -> None:
        while call.id in call.server.calls:
            rpc.pause(0.005)
        asked = next(call.server.question_ids)
        call.server.questions[asked] = call
        rpc.send({"id": asked, "method": "elicitation/create", "params": _form("By the way?")})
        rpc.record("answered", reply=call.replies.get())

    rpc.start_thread(later)
    return text("soon")


@tool()
def ask_twice(call: Call) -> Message:
    """Ask the user two things, one after the other."""
    first = call.ask("first", "elicitation/create", _form("First: who are you?"))
    second = call.ask("second", "elicitation/create", _form("Second: who else?"))
    return text(json.dumps([first, second]))


@tool()
def sample(call: Call, *, with_tools: bool = False) -> Message:
    """Ask the client's model, which may be offered a tool."""
    said = {"role": "user", "content": {"type": "text", "text": "Say something."}}
    params: Message = {"messages": [said], "systemPrompt": "Be brief.", "maxTokens": 10}
    if with_tools:
        params["tools"] = [{"name": "weather", "inputSchema": {"type": "object"}}]
        params["toolChoice"] = {"mode": "auto"}
    return text(json.dumps(call.ask("model", "sampling/createMessage", params)))


@tool()
def roots(call: Call) -> Message:
    """Ask for the client's roots."""
    return text(json.dumps(call.ask("roots", "roots/list")))


@tool()
def notify(call: Call, *, n: int, method: str = "notifications/fixture", size: int = 0) -> Message:
    """Send n notifications as fast as possible, each larger by that size."""
    larger = {"filler": "a" * size} if size else {}
    for i in range(n):
        params: Message = {"n": i, **larger}
        if method == "notifications/message":
            params = {"level": "info", "data": i}
        elif method == "notifications/progress":
            params = {"progressToken": 0 if call.token is None else call.token, "progress": i}
        elif method == "notifications/resources/updated":
            params = {"uri": "fixture://one"}
        if call.modern and method in dual.LISTENED:
            call.server.changed(method, params)
        else:
            rpc.notify(method, params)
    return text(f"{n} sent")


@tool()
def log(call: Call, *, level: str, n: int = 1, size: int = 0) -> Message:
    """Send n log messages, where that level is wanted; texts of that size, if one is given."""
    for i in range(n):
        call.log(level, "a" * size if size else {"line": i})
    return text(f"{n} logged")


@tool()
def stderr(_: Call, *, text: str, n: int = 1) -> Message:
    """Write n lines to stderr."""
    for _i in range(n):
        rpc.complain(text)
    return rpc.text(f"{n} written")


@tool()
def crash(_: Call, *, code: int = 1) -> Message:
    """Exit with that code, unanswered."""
    rpc.complain(f"crashing with code {code}, as asked")
    rpc.leave(code)


@tool()
def crash_signal(_: Call, *, sig: int = signal.SIGSEGV) -> Message:
    """Die of that signal, unanswered."""
    rpc.HOST.get().die(sig)


@tool()
def hang(_: Call) -> Message:
    """Never answer, whatever the client says."""
    rpc.pause_for_ever()


@tool()
def env(_: Call, *, show: list = ()) -> Message:
    """Names of the environment, values of those in `show`, and where the process is."""
    environ = rpc.HOST.get().environ
    shown = {name: environ.get(name) for name in show}
    where = {"cwd": str(Path.cwd()), "pid": os.getpid(), "pgid": os.getpgid(0), "sid": os.getsid(0)}
    return text(json.dumps({"names": sorted(environ), "values": shown, **where}))


@tool()
def grow(call: Call) -> Message:
    """Add a tool, and say so."""

    def grown(_: Call) -> Message:
        return text("grown")

    grown.__name__ = f"grown_{len(call.server.tools)}"
    call.server.tools[grown.__name__] = Tool(grown)
    call.server.changed("notifications/tools/list_changed")
    return text(grown.__name__)


@tool()
def touch(call: Call, *, uri: str) -> Message:
    """Say that a resource changed, to those who subscribed to it."""
    call.server.changed("notifications/resources/updated", {"uri": uri})
    return text(f"touched {uri}")


@tool()
def spawn(_: Call, *, seconds: float, escape: bool = False) -> Message:
    """Start a grandchild that sleeps, in a session of its own if `escape`; say its pid."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    child = subprocess.Popen(["sleep", str(seconds)], start_new_session=escape, **quiet)
    rpc.record("spawned", child=child.pid)
    return text(json.dumps({"pid": child.pid}))


@tool()
def ask_many(call: Call) -> Message:
    """Ask a form, the model and the roots, all at once."""
    said = {"role": "user", "content": {"type": "text", "text": "Say something."}}
    questions: dict[str, Message] = {
        "who": {"method": "elicitation/create", "params": _form("Who are you?")},
        "model": {
            "method": "sampling/createMessage",
            "params": {"messages": [said], "maxTokens": 10},
        },
        "roots": {"method": "roots/list"},
    }
    return text(json.dumps(call.ask_all(questions)))


@tool()
def ask_and_withdraw(call: Call) -> Message:
    """Ask, and take the question back at once; only by request."""
    asked = next(call.server.question_ids)
    rpc.send({"id": asked, "method": "elicitation/create", "params": _form("Never mind")})
    rpc.notify("notifications/cancelled", {"requestId": asked})
    return text("withdrawn")


@tool()
def ask_oddly(call: Call) -> Message:
    """Ask something that no client has received of."""
    return text(json.dumps(call.ask_all({"odd": {"method": "odd/question"}})))


@tool()
def ask_nothing(_: Call, *, how: str) -> Message:
    """Answer in the way of a round that makes no sense."""
    results: dict[str, Message] = {
        "empty": {"resultType": "input_required"},
        "broken": {"resultType": "input_required", "inputRequests": {"who": 7}},
    }
    return results[how]


@tool()
def insist(call: Call) -> Message:
    """Ask again and again, in the way of the era that asks inside an answer."""
    if not call.modern:
        raise _needs_visit()
    raise NeedsInputError(
        {
            "resultType": "input_required",
            "inputRequests": {
                "who": {"method": "elicitation/create", "params": _form("Who are you?")}
            },
        }
    )


@tool()
def poll(call: Call, *, times: int) -> Message:
    """Be called again that often before the result, with a state and no question."""
    done = len(call.answers)
    if call.modern and done < times:
        answers = call.answers | {str(done): done}
        state = base64.b64encode(json.dumps(answers).encode()).decode()
        raise NeedsInputError({"resultType": "input_required", "requestState": state})
    return text(f"polled {times}")


def _needs_visit(*, done: bool = True) -> RpcError:
    """The person is done there a while later, unless somebody else says so."""
    if done:
        rpc.later(0.5, _tell_visit)
    visit = {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in"}
    data = {"elicitations": [{**visit, "elicitationId": "e-1"}]}
    return RpcError(-32042, "URL elicitation required", data)


def _tell_visit() -> None:
    rpc.notify("notifications/elicitation/complete", {"elicitationId": "e-1"})


@tool()
def visit_first(call: Call) -> Message:
    """Works once `finish_visit` was called; only in the handshake era."""
    if call.server.signed_in:
        return text("visited")
    raise _needs_visit(done=False)


@tool()
def finish_visit(call: Call) -> Message:
    """The person is done at the URL."""
    call.server.signed_in = True
    _tell_visit()
    return text("done")


@tool()
def sign_in(call: Call) -> Message:
    """Works once the user was sent to a url; a handshake client is told so by an error."""
    if call.modern:
        visit = {"mode": "url", "message": "Sign in", "url": "https://example.com/sign-in"}
        return text(json.dumps(call.ask("visit", "elicitation/create", visit)["action"]))
    if not call.server.signed_in:
        call.server.signed_in = True
        raise _needs_visit()
    return text('"accept"')


@tool()
def verbatim(call: Call, *, result: str) -> Message:
    """Answer with exactly these bytes."""
    rpc.write(b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (call.id, result.encode()))
    raise StoppedError


@tool()
def end_streams(call: Call) -> Message:
    """End every stream of changes."""
    call.server.end_streams()
    return text("ended")


@tool()
def mute(call: Call, *, methods: list) -> Message:
    """Leave these methods unanswered from now on."""
    call.server.mute = set(methods)
    return text("muted")
