"""The same conversation with a client whose person is asked what servers ask, and answers anyhow.

What must hold then, beside all the rest: a question is put to the person at most once and answered
at most once; none is left over when all is quiet; and no tool answers what the person is asked.
"""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import anyio

from tests.e2e.client import ENVELOPE, LEGACY, Answer, Setting
from tests.faults.model import Message, Model
from tests.faults.proxy import HangError, Pending, Proxy

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


_ELICITATION = {"elicitation": {"form": {}, "url": {}}}
_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_ACCEPT = {"action": "accept", "content": {"name": "Ada"}}
_OF_A_SERVER = "emceepee: the server "
_NEVER = None
_TWICE = "twice"
_SAYINGS: tuple[Any, ...] = (
    *([_ACCEPT] * 6),
    {"action": "decline"},
    {"action": "cancel"},
    {"action": "accept", "content": {"name": 7}},
    {"action": "perhaps"},
    _TWICE,
    _NEVER,
)


class PersonModel(Model):
    """Judges what the person is asked, too."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_natively: Counter[str] = Counter()
        self._put_to_person: set[str] = set()
        self._taken_back: set[object] = set()
        self._is_question = False  # what is judged now is no result yet

    def _take_sent(self, message: Message) -> None:
        if "method" in message:  # else it is an answer of the person
            super()._take_sent(message)

    def _take_received(self, line: str) -> None:
        message = json.loads(line)
        if message.get("method") == "elicitation/create":
            self._put(str(message["id"]), message["params"])
        elif message.get("method") == "notifications/cancelled":
            taken_back = message["params"]["requestId"]
            if str(taken_back) not in self._put_to_person or taken_back in self._taken_back:
                self.blame("taken back, but never asked", message)
            self._taken_back.add(taken_back)
        super()._take_received(line)

    def _put(self, question: str, params: Mapping[str, Any]) -> None:
        self._put_to_person.add(question)
        if not params["message"].startswith(_OF_A_SERVER):
            return  # we ask for consent
        self.asked_natively[question] += 1
        if self.asked_natively[question] > 1:
            self.blame("a person is asked twice", question)

    def _answered(self, message: Message) -> None:
        result = message.get("result")
        self._is_question = (
            isinstance(result, dict) and result.get("resultType") == "input_required"
        )
        if self._is_question:
            for question, request in result["inputRequests"].items():
                self._put(question, request["params"])
            message["result"] = {"content": []}
        super()._answered(message)

    def _judge_content(self, request: Any, answer: Answer) -> None:
        """A server may ask while any call of its waits: the call is made again, and judged then."""
        if not self._is_question:
            super()._judge_content(request, answer)

    def _event(self, event: Message) -> None:
        if event["type"] in ("elicitation_request", "elicitation_expired"):
            self.blame("the model is told of what the person is asked", event)
        super()._event(event)

    def _on_respond_to_elicitation(self, _request: Any, answer: Answer) -> None:
        if not answer.is_error:
            self.blame("the model answered what the person is asked", answer)


class _Pending(Pending):
    """A request whose answer may be a question: then it is made again with the person's word."""

    def __init__(self, request: Message, proxy: "PersonProxy") -> None:
        super().__init__(request)
        self._proxy = proxy

    async def answer(self) -> Answer | None:
        message = await self.response()
        result = {} if message is None else message.get("result", {})
        if result.get("resultType") != "input_required":
            return await super().answer()
        said = self._proxy.decide(
            may_leave=self.request["params"]["arguments"].get("tool") == "ask"
        )
        if said is _NEVER:
            return None
        params = self.request["params"]
        again = self._proxy.prepare(
            "tools/call",
            {
                "name": params["name"],
                "arguments": params["arguments"],
                "inputResponses": dict.fromkeys(result["inputRequests"], said),
                "requestState": result["requestState"],
            },
        )
        await self._proxy.send(again)
        return await again.answer()


class PersonProxy(Proxy):
    """A client that declares elicitation and asks somebody who says what they like."""

    model: PersonModel

    def __init__(self, setting: Setting, model: Model, *, modern: bool) -> None:
        # Whatever this person says is their own word, however fast.
        setting.fixed = {**setting.fixed, "automatic_answer_s": 0.0}
        super().__init__(setting, model, modern=modern)
        self._random = Random(str(setting.home))
        self._people: TaskGroup | None = None

    async def greet(self) -> None:
        if not self._modern:
            info = {"name": "faults", "version": "1"}
            params = {"protocolVersion": LEGACY, "capabilities": _ELICITATION, "clientInfo": info}
            await (await self.begin("initialize", params)).response()
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self.call("list_servers")

    def prepare(self, method: str, params: Mapping[str, Any] | None = None) -> Pending:
        pending = super().prepare(method, params)
        if self._modern:
            pending.request["params"]["_meta"] = {**ENVELOPE, _CAPABILITIES: _ELICITATION}
        return pending

    def expect(self, request: Message) -> Pending:
        pending = self._pending[request["id"]] = _Pending(request, self)
        return pending

    def decide(self, *, may_leave: bool = True) -> Any:
        said = self._random.choice(_SAYINGS)
        return _ACCEPT if said == _TWICE or (said is _NEVER and not may_leave) else said

    async def listen(self) -> None:
        async with anyio.create_task_group() as self._people:
            await super().listen()
            self._people.cancel_scope.cancel()

    def _take(self, line: str) -> None:
        message = json.loads(line)
        if message.get("method") == "elicitation/create" and self._people is not None:
            self.note("received", line)
            self._people.start_soon(self._ask_person, message["id"])
        else:
            super()._take(line)

    async def _ask_person(self, question: object) -> None:
        said = self._random.choice(_SAYINGS)
        await anyio.sleep(self._random.choice((0.0, 0.0, 0.05, 0.3, 0.8)))
        if said is _NEVER:
            return
        for _ in range(2 if said == _TWICE else 1):
            result = _ACCEPT if said == _TWICE else said
            with suppress(ValueError, HangError):  # we have hung up meanwhile
                await self.send({"jsonrpc": "2.0", "id": question, "result": result})

    async def hang_up(self) -> None:
        await super().hang_up()
        lines = [p.read_text() for p in (self.home / "logs").glob("emceepee-*.jsonl*")]
        noted = [json.loads(line) for text in lines for line in text.splitlines()]
        answered = Counter(
            line["data"].get("request_id") or line.get("request_id")
            for line in noted
            if line["event"] == "elicitation_responded"
        )
        for question, times in answered.items():
            if times > 1:
                self.model.blame("a question was answered twice", question)
        asked = sum(line["event"] == "elicitation_received" for line in noted)
        if self.model.asked_natively.total() > asked:
            self.model.blame("more was asked than servers have asked", asked)
