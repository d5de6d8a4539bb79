"""A small MCP server of both eras, for fixture servers to hang their tools on.

Each message is judged by itself: a protocol version in its `_meta` makes it modern and stateless,
anything else belongs to the one handshake session of the process. Tool calls run in threads, the
rest is answered by the reader.
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import rpc
from calls import CAPABILITIES, LEVELS, Call, Tool
from rpc import Message, RpcError

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
VERSION = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

LISTENED = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
    "notifications/resources/updated": "resourceSubscriptions",
}
CACHED = {
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}

Handler = Callable[[Message], Message | None]


class Server:
    """Routes messages by era; keeps the handshake session, the open calls and the streams."""

    def __init__(
        self,
        name: str,
        *,
        era: str = "both",
        newest: str = LEGACY[-1],
        paged: bool = False,
        ttl: int = 0,
        refused: Collection[str] = (),
        deaf: bool = False,
    ) -> None:
        self.info = {"name": name, "version": "1.0"}
        self.era, self.newest, self.paged = era, newest, paged
        self.ttl, self.refused, self.deaf = ttl, refused, deaf
        self.mute: set[str] = set()
        self.signed_in = False
        self.holds_answers = False
        self.capabilities: Message = {"tools": {"listChanged": True}}
        self.instructions = f"A fixture server called {name}."
        self.tools: dict[str, Tool] = {}
        self.version, self.level, self.client_capabilities = "", "debug", {}
        self.subscribed: set[str] = set()
        self.streams: dict[str | int, Message] = {}
        self.calls: dict[str | int, Call] = {}
        self.questions: dict[str | int, Call] = {}
        self.question_ids = itertools.count()
        self.shared: dict[str, Handler] = {"tools/list": self._tools, "tools/call": self._call}
        self.legacy: dict[str, Handler] = {
            "initialize": self._initialize,
            "ping": lambda _: {},
            "logging/setLevel": self._set_level,
            "resources/subscribe": lambda m: self.subscribed.add(m["params"]["uri"]) or {},
            "resources/unsubscribe": lambda m: self.subscribed.discard(m["params"]["uri"]) or {},
        }
        self.modern: dict[str, Handler] = {
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
        }

    def run(self) -> None:
        """Serve until stdin ends, then end the process."""
        for message in rpc.messages():
            self.take(message)
        rpc.leave(0)

    def take(self, message: Message) -> None:
        """One message of the client."""
        if "method" not in message:
            asking = self.questions.pop(message.get("id"), None)
            if asking:
                asking.replies.put(message)
        elif "id" in message:
            with rpc.speaking_for(message["id"]):
                self._answer(message)
        elif message["method"] == "notifications/cancelled":
            self._cancel(message["params"].get("requestId"))

    def changed(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell everyone who listens for this change, each in the way of its era."""
        uri = (params or {}).get("uri")
        for stream, wanted in list(self.streams.items()):
            asked = wanted.get(LISTENED[method])
            if asked and (uri is None or uri in asked):
                rpc.notify(method, {**(params or {}), "_meta": {SUBSCRIPTION: stream}})
        if self.version and (uri is None or uri in self.subscribed):
            rpc.notify(method, params)

    def end_streams(self) -> None:
        """End every stream of changes with its result."""
        for stream in list(self.streams):
            del self.streams[stream]
            meta = {SUBSCRIPTION: stream, SERVER_INFO: self.info}
            rpc.send({"id": stream, "result": {"resultType": "complete", "_meta": meta}})

    def _answer(self, message: Message) -> None:
        method = message["method"]
        if method in self.mute:
            return
        modern = self.is_modern(message)
        try:
            handler = self._admit(message, modern=modern)
            result = handler(message)
        except RpcError as error:
            rpc.send({"id": message["id"], "error": error.body})
            return
        if result is not None:
            rpc.send({"id": message["id"], "result": self._stamped(method, result, modern=modern)})

    def is_modern(self, message: Message) -> bool:
        meta = (message.get("params") or {}).get("_meta") or {}
        return self.era != "legacy" and message["method"] != "initialize" and VERSION in meta

    def _admit(self, message: Message, *, modern: bool) -> Handler:
        method, params = message["method"], message.get("params") or {}
        if modern:
            meta = params["_meta"]
            if meta[VERSION] != MODERN:
                raise self._unsupported(meta[VERSION])
            if not isinstance(meta.get(CAPABILITIES), dict):
                raise RpcError(-32602, f"_meta lacks {CAPABILITIES}")
        elif self.era == "modern":
            raise self._unsupported(params.get("protocolVersion", ""))
        known = self.shared | (self.modern if modern else self.legacy)
        if method not in known or method in self.refused:
            raise RpcError(-32601, "Method not found")
        if not modern and not self.version and method not in ("initialize", "ping"):
            raise RpcError(-32600, "initialize comes first")
        return known[method]

    def _unsupported(self, requested: str) -> RpcError:
        data = {"supported": [MODERN], "requested": requested}
        return RpcError(-32022, f"Unsupported protocol version: only {MODERN} is served here", data)

    def _stamped(self, method: str, result: Message, *, modern: bool) -> Message:
        if not modern or not isinstance(result, dict):
            return result
        meta = {**result.get("_meta", {}), SERVER_INFO: self.info}
        stamped = {"resultType": "complete", **result, "_meta": meta}
        return stamped | ({"ttlMs": self.ttl, "cacheScope": "private"} if method in CACHED else {})

    def _initialize(self, message: Message) -> Message:
        params = message["params"]
        asked = params["protocolVersion"]
        self.version = asked if asked in LEGACY and asked < self.newest else self.newest
        self.client_capabilities = params["capabilities"]
        return {
            "protocolVersion": self.version,
            "capabilities": self.capabilities,
            "serverInfo": self.info,
            "instructions": self.instructions,
        }

    def _discover(self, _: Message) -> Message:
        return {
            "supportedVersions": [MODERN],
            "capabilities": self.capabilities,
            "instructions": self.instructions,
        }

    def _set_level(self, message: Message) -> Message:
        level = message["params"]["level"]
        if level not in LEVELS:
            raise RpcError(-32602, f"Unknown level: {level}")
        self.level = level
        return {}

    def _listen(self, message: Message) -> None:
        asked = message["params"].get("notifications")
        if not isinstance(asked, dict):
            raise RpcError(-32602, "notifications is missing")
        honoured = {kind: wanted for kind, wanted in asked.items() if kind in LISTENED.values()}
        if self.deaf:
            honoured.pop("resourceSubscriptions", None)
        rpc.notify(
            "notifications/subscriptions/acknowledged",
            {"notifications": honoured, "_meta": {SUBSCRIPTION: message["id"]}},
        )
        self.streams[message["id"]] = honoured

    def _tools(self, message: Message) -> Message:
        listed = [tool.listed for tool in self.tools.values()]
        cursor = (message.get("params") or {}).get("cursor")
        if cursor not in (None, "page-2") or (cursor and not self.paged):
            raise RpcError(-32602, "Unknown cursor")
        if not self.paged:
            return {"tools": listed}
        half = len(listed) // 2
        return (
            {"tools": listed[half:]} if cursor else {"tools": listed[:half], "nextCursor": "page-2"}
        )

    def _call(self, message: Message) -> None:
        tool = self.tools.get(message["params"]["name"])
        if tool is None:
            raise RpcError(-32602, f"Unknown tool: {message['params']['name']}")
        call = Call(self, message, modern=self.is_modern(message))
        self.calls[call.id] = call
        rpc.start_thread(self._finish, call, tool)

    def _finish(self, call: Call, tool: Tool) -> None:
        with rpc.speaking_for(call.id):
            self._conclude(call, tool)

    def _conclude(self, call: Call, tool: Tool) -> None:
        try:
            result = call.result(tool)
        except RpcError as error:
            if not call.stopped.is_set():
                rpc.send({"id": call.id, "error": error.body})
        else:
            if result is not None:
                result = self._stamped("tools/call", result, modern=call.modern)
                rpc.send({"id": call.id, "result": result})
        self.calls.pop(call.id, None)

    def _cancel(self, request: str | int) -> None:
        call = self.calls.get(request)
        if call:
            call.stop()
        self.streams.pop(request, None)
