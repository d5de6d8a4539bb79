"""The official JSON schema as judge of every message that we send.

The source of the mcp SDK brings it for two versions. A `Judge` follows one conversation: it is told
what each side says, finds the version and the method that a result answers, and keeps what does
not fit. Older versions are left to `judge`, which knows the SDK's types.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from tests.peers import PeerMissingError, sdk_source

Message = Mapping[str, Any]

_VERSION = "io.modelcontextprotocol/protocolVersion"
_LEGACY, _MODERN = "2025-11-25", "2026-07-28"
_OF_FIXTURE = '"pid": '  # in each line of a fixture server, and not in the journal
_EACH = 50  # messages of one kind in a conversation that are looked at: a flood says the same


judges: list["Judge"] = []  # of the test that runs now


class Judge:
    """Follows what is said to one side and by it, and keeps what that side should not have said."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._version: str | None = None
        self._asked: dict[object, tuple[str, str | None]] = {}
        self._seen: Counter[str] = Counter()
        judges.append(self)

    def hear(self, message: Message) -> None:
        """What the other side said: its requests are what results are for."""
        method = message.get("method")
        if "id" in message and isinstance(method, str) and _is_key(message["id"]):
            self._asked[message["id"]] = method, _version_of(message)

    def judge(self, message: Message) -> None:
        """What our side said."""
        method, version = message.get("method"), _version_of(message)
        if version is None and method == "server/discover":
            return
        if method is None:
            key = message.get("id")
            method, version = self._asked.get(key, ("", None)) if _is_key(key) else ("", None)
            if method == "initialize":
                version = self._version = message.get("result", {}).get("protocolVersion")
        elif method == "initialize":
            self._version = message["params"]["protocolVersion"]
        self._check(message, method, version or self._version)

    def _check(self, message: Message, method: str, version: str | None) -> None:
        kind = f"{method} {'result' if 'method' not in message else ''}"
        self._seen[kind] += 1
        if version not in (_LEGACY, _MODERN) or self._seen[kind] > _EACH or not is_here():
            return
        name = _definition(version, method, message)
        if name is None:
            return
        body = message.get("result", message)
        for error in _validator(version, name).iter_errors(body):
            self.faults.append(f"{kind} of {version}, {name}: {error.message[:300]}")


def judge_log(lines: Iterable[Message]) -> list[str]:
    """What a fixture server received from us, by its log."""
    judge = Judge()
    for line in lines:
        if line.get("event") == "requested":
            judge.hear(line["message"])
        if line.get("event") == "received":
            judge.judge(line["message"])
    return judge.faults


def logs_in(place: Path) -> list[str]:
    """The faults in every log of a fixture server below this folder."""
    faults: list[str] = []
    for path in place.rglob("*.jsonl"):
        text = path.read_text(errors="replace").rpartition("\n")[0]
        lines = [json.loads(line) for line in text.split("\n") if _OF_FIXTURE in line]
        faults += judge_log(line for line in lines if isinstance(line.get("message"), dict))
    return faults


def _version_of(message: Message) -> str | None:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta.get(_VERSION) if isinstance(meta, dict) else None


def _is_key(value: object) -> bool:
    return isinstance(value, str | int)


def _definition(version: str, method: str, message: Message) -> str | None:
    name = _by_method(version).get(method)
    if "method" in message or name is None:
        return name
    if "error" in message:
        return "JSONRPCErrorResponse"
    if message["result"].get("resultType") == "input_required":
        return "InputRequiredResult"
    result = name.removesuffix("Request") + "Result"
    return result if result in _schema(version)["$defs"] else "Result"


@cache
def _schema(version: str) -> dict[str, Any]:
    return json.loads((sdk_source() / "schema" / f"{version}.json").read_text())


@cache
def _by_method(version: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, definition in _schema(version)["$defs"].items():
        method = definition.get("properties", {}).get("method", {}).get("const")
        if method is not None:
            found[method] = name
    return found


@cache
def _validator(version: str, name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/$defs/{name}", "$defs": _schema(version)["$defs"]}
    )


@cache
def is_here() -> bool:
    """Whether the schemas are installed; without them nothing is judged here."""
    try:
        return sdk_source().exists()
    except PeerMissingError:
        return False
