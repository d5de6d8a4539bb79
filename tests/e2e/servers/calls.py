"""One tool of a fixture server, and one call of it while it runs, in either era."""

import base64
import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import rpc
from rpc import Message, RpcError

if TYPE_CHECKING:
    from dual import Server

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
SINCE = {"form": "2025-06-18", "url": "2025-11-25"}
JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}


class NeedsInputError(Exception):
    """The call cannot go on before the client answered; carries the `input_required` result."""

    def __init__(self, result: Message) -> None:
        super().__init__()
        self.result = result


class RefusedError(Exception):
    """The client answered our question with an error, or cannot be asked."""


class StoppedError(Exception):
    """The client cancelled the call that was asking."""


class Tool:
    """A function of a `Call` and keyword arguments; its signature is the input schema."""

    def __init__(self, function: Callable[..., Message], **fields: Any) -> None:
        self.function = function
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.listed: Message = {
            "name": function.__name__,
            "description": function.__doc__ or function.__name__,
            "inputSchema": {
                "type": "object",
                "properties": {p.name: {"type": JSON_TYPES[p.annotation]} for p in parameters},
                "required": [p.name for p in parameters if p.default is p.empty],
                "additionalProperties": False,
            },
            **fields,
        }


class Call:
    """One tools/call while it runs: its arguments, its way to the client, whether it counts."""

    def __init__(self, server: "Server", message: Message, *, modern: bool) -> None:
        params = message["params"]
        meta = params.get("_meta") or {}
        self.server, self.id, self.modern = server, message["id"], modern
        self.arguments = params.get("arguments") or {}
        self.token = meta.get("progressToken")
        self.level = meta.get(LOG_LEVEL) if modern else server.level
        self.capabilities = meta[CAPABILITIES] if modern else server.client_capabilities
        self.answers = _unpack(params.get("requestState")) | (params.get("inputResponses") or {})
        self.stopped = rpc.Signal()
        self.replies = rpc.Mailbox()

    def stop(self) -> None:
        self.stopped.set()
        self.replies.put(None)

    def progress(self, done: int, total: int) -> None:
        if self.token is not None:
            params = {"progressToken": self.token, "progress": done, "total": total}
            rpc.notify("notifications/progress", {**params, "message": f"step {done}"})

    def log(self, level: str, data: Any) -> None:
        if self.level is not None and LEVELS.index(level) >= LEVELS.index(self.level):
            rpc.notify("notifications/message", {"level": level, "logger": "plain", "data": data})

    def ask(self, key: str, method: str, params: Mapping[str, Any] | None = None) -> Message:
        """The client's answer to one question, in the way of the call's era."""
        question: Message = (
            {"method": method} if params is None else {"method": method, "params": dict(params)}
        )
        lacking = _lacking(self.capabilities, question)
        if not self.modern:
            return self._ask_by_request(question, lacking)
        if key in self.answers:
            return self.answers[key]
        if lacking:
            data = {"requiredCapabilities": lacking}
            raise RpcError(-32021, "Missing required client capability", data)
        state = base64.b64encode(json.dumps(self.answers).encode()).decode()
        raise NeedsInputError(
            {
                "resultType": "input_required",
                "inputRequests": {key: question},
                "requestState": state,
            }
        )

    def ask_all(self, questions: Mapping[str, Message]) -> Message:
        """The client's answers to several questions, put to it at once."""
        if self.modern:
            missing = {key: q for key, q in questions.items() if key not in self.answers}
            if missing:
                raise NeedsInputError({"resultType": "input_required", "inputRequests": missing})
            return {key: self.answers[key] for key in questions}
        keys: dict[Any, str] = {}
        for key, question in questions.items():
            keys[asked := next(self.server.question_ids)] = key
            self.server.questions[asked] = self
            rpc.record("asked", id=asked, method=question["method"])
            rpc.send({"id": asked, **question})
        answers: Message = {}
        while len(answers) < len(keys):
            reply = self.replies.get()
            if reply is None:
                raise StoppedError
            if "error" in reply:
                for asked in keys:
                    if asked in self.server.questions:
                        rpc.notify("notifications/cancelled", {"requestId": asked})
                raise RefusedError(json.dumps(reply["error"]))
            answers[keys[reply["id"]]] = reply["result"]
        return answers

    def _ask_by_request(self, question: Message, lacking: Message | None) -> Message:
        if lacking:
            raise RefusedError(f"the client did not declare {json.dumps(lacking)}")
        params = question.get("params", {})
        if "mode" in params and self.server.version < SINCE[params["mode"]]:
            raise RefusedError(f"{params['mode']} elicitation needs {SINCE[params['mode']]}")
        if self.server.version < SINCE["url"]:
            params.pop("mode", None)
        # Integers from 0, as real servers count: they collide with the client's own ids.
        asked = next(self.server.question_ids)
        self.server.questions[asked] = self
        rpc.record("asked", id=asked, method=question["method"])
        rpc.send({"id": asked, **question})
        reply = self.replies.get()
        if reply is None:
            rpc.notify("notifications/cancelled", {"requestId": asked})
            raise StoppedError
        if "error" in reply:
            raise RefusedError(json.dumps(reply["error"]))
        return reply["result"]

    def result(self, tool: Tool) -> Message | None:
        """What to answer, or None when nobody waits for it any more."""
        try:
            result = tool.function(self, **self.arguments)
        except NeedsInputError as need:
            result = need.result
        except (RefusedError, TypeError, ValueError) as error:
            result = rpc.text(str(error), isError=True)
        except StoppedError:
            return None
        return None if self.stopped.is_set() else result


def _lacking(capabilities: Message, question: Message) -> Message | None:
    """The part of the capabilities that the question needs and the client did not declare."""
    top = question["method"].partition("/")[0]
    mode = question["params"].get("mode", "form") if top == "elicitation" else None
    declared = capabilities.get(top)
    # An empty elicitation capability means forms.
    if declared is not None and (mode is None or mode in (declared or {"form"})):
        return None
    return {top: {mode: {}} if mode else {}}


def _unpack(state: str | None) -> Message:
    if state is None:
        return {}
    try:
        return json.loads(base64.b64decode(state, validate=True))
    except ValueError:
        raise RpcError(-32602, "requestState is not ours") from None
