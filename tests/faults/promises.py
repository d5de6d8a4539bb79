"""What the answer to a call has to be, read from the call itself, and what the proxy may hold.

Each call says something that no other call says (a word, a number), and its answer must say it too.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.e2e.client import Answer

Arguments = Mapping[str, Any]

# What a run of any length may hold beyond what it held when it was warm.
MEMORY_KB = 48 << 10
# Connections that the HTTP client keeps for the next request come and go.
_SPARE = {"socket": 4}

_WORD = re.compile(r"word-\d+-\d+")
_CODE = re.compile(r"\[([a-z_]+)\]")

_SAYS: dict[str, Callable[[Arguments], str]] = {
    "echo": lambda args: args["message"],
    "slow": lambda args: f"slept {args['seconds']}",
    "notify": lambda args: f"{args['n']} sent",
    "log": lambda args: f"{args['n']} logged",
    "stderr": lambda args: f"{args['n']} written",
    "ping": lambda args: f"{args['n']} pinged",
    "blank_lines": lambda args: f"{args['n']} written",
    "fail": lambda _: "it failed",
}


def broken(arguments: Arguments, answer: Answer) -> str | None:
    """Why this cannot be the answer to `execute_tool` with these arguments."""
    tool, args = arguments["tool"], arguments.get("args", {})
    foreign = set(_WORD.findall(answer.text)) - {args.get("message")}
    if tool == "ask":
        return None
    if foreign:
        return f"it speaks of {sorted(foreign)}"
    if answer.is_error:
        return None
    if tool == "big":
        return _unlike(args["bytes"], _length(answer))
    return _unlike(_SAYS[tool](args), answer.text) if tool in _SAYS else None


def promoted(answer: Answer) -> str | None:
    """The task that a call became."""
    if answer.is_error or not answer.blocks:
        return None
    text = answer.blocks[-1].get("text", "")
    return answer.task if text.startswith('{"proxy_task"') else None


def no_result_yet(answer: Answer) -> bool:
    return not answer.is_error and answer.text.startswith("No result yet")


def is_bug(answer: Answer) -> bool:
    return answer.is_error and "Something went wrong inside emceepee" in answer.text


def code_of(answer: Answer) -> str:
    codes = _CODE.findall(answer.text)
    return codes[-1] if codes else "a tool's own"


def more_descriptors(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, str]:
    """Where there are more than there were, beyond what comes and goes."""
    return {
        kind: f"{before.get(kind, 0)} then, {number} now"
        for kind, number in now.items()
        if number > before.get(kind, 0) + _SPARE.get(kind, 0)
    }


def _length(answer: Answer) -> int:
    last = answer.blocks[-1]["text"]
    if last.startswith('{"stored_result"'):
        return json.loads(last)["stored_result"]["chars"]
    return len(last)


def _unlike(expected: object, found: object) -> str | None:
    return None if expected == found else f"{expected!r} was expected, not {str(found)[:200]!r}"


class Notes:
    """Notifications that servers were told to send: each is told or dropped, and told once.

    A server that was interrupted may have sent some of them, and some of them late. Over HTTP some
    may find nobody who listens, so there only the upper bound counts.
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._confirmed: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._told_lately: Counter[str] = Counter()

    def asked(self, arguments: Arguments) -> None:
        if _sends(arguments):
            self._asked[arguments["server"]] += arguments["args"]["n"]

    def confirmed(self, arguments: Arguments) -> None:
        """The server has said that it sent them all."""
        if _sends(arguments) and arguments["server"] not in ("web", "net"):
            self._confirmed[arguments["server"]] += arguments["args"]["n"]

    def told(self, event: Mapping[str, Any]) -> None:
        if _method(event["data"]) == "notifications/fixture":
            self._told[event["server"]] += event.get("count", 1)
            self._told_lately[event["server"]] += event.get("count", 1)

    def settle(self) -> tuple[int, dict[str, int]]:
        """How many were certainly sent since the last time and never told; where too many were."""
        missing = sum((self._confirmed - self._told_lately).values())
        self._confirmed.clear()
        self._told_lately.clear()
        return missing, dict(self._told - self._asked)


def _sends(arguments: Arguments) -> bool:
    return arguments.get("tool") == "notify"


def _method(data: Any) -> str:
    """Of a notification; one that was cut is shown as the beginning of its JSON."""
    if isinstance(data, str):
        return data.removeprefix('{"method":"').partition('"')[0]
    return data["method"]
