"""One call of a tool, as a person is asked about it and as their answer is remembered.

What they read is what is sent: the arguments are written anew from what was read, so that a key
that stands there twice cannot be one thing to them and another to the server.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.journal.redact import redact_text
from emceepee_stdio.trust.approval_request import shown, shown_item

__all__ = ["ToolCallRequest", "tool_call_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRequest:
    """A call that somebody wants. `target` is what the server is, `definition` what the tool is.

    `sorted_args` are the same arguments in an order that does not depend on who wrote them.
    """

    server: str
    tool: str
    args: Raw
    sorted_args: bytes
    target: str
    definition: str

    def __repr__(self) -> str:
        return f"<ToolCallRequest {shown(self.server)}/{shown(self.tool)}>"

    def digest(self, key: bytes) -> str:
        """The same for the same server, tool and arguments, and no other."""
        return _keyed(key, "call", self.target, self.tool, self.sorted_args.decode())

    def standing_digest(self, key: bytes) -> str:
        """The same for every call of this tool, as long as its server says the same of it."""
        return _keyed(key, "tool", self.target, self.tool, self.definition)

    def lines(self) -> tuple[str, str]:
        """What a person is shown in a client: who and what, then with which arguments."""
        who = f"Server {shown_item(self.server)}, tool {shown_item(self.tool)}"
        return who, shown(self._arguments())

    def text(self, *, hides: bool = False) -> str:
        """All of it; `hides` leaves secrets out, for what is kept or shown to others."""
        arguments = shown(self._arguments())
        return "\n".join(
            (
                f"Server: {shown(self.server)}",
                f"Tool: {shown(self.tool)}",
                f"Arguments: {redact_text(arguments) if hides else arguments}",
            )
        )

    def _arguments(self) -> str:
        return bytes(self.args).decode()


def tool_call_request(
    *, server: str, tool: str, args: Raw, target: str, definition: str
) -> ToolCallRequest:
    try:
        read = decode_value(args)
        written = Raw(msgspec.json.encode(read))
        ordered = msgspec.json.encode(read, order="sorted")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise InvalidArguments(f"The args of {tool} cannot be read.") from None
    return ToolCallRequest(
        server=server,
        tool=tool,
        args=written,
        sorted_args=ordered,
        target=target,
        definition=definition,
    )


def _keyed(key: bytes, *parts: str) -> str:
    text = json.dumps(parts, separators=(",", ":"))
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
