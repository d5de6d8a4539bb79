"""What a server answers to somebody without a token: the challenge from which a sign-in begins."""

from typing import NamedTuple

import httpx2
import msgspec

from emceepee_stdio.auth.endpoint_client import EndpointClient
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.foreign_json import decode_object
from emceepee_stdio.versions import LEGACY_VERSIONS

__all__ = ["Challenge", "challenge_of"]

_SUCCESS = range(200, 300)
_NO_POST = 405
_MEDIA_TYPES = ("application/json", "text/event-stream")
_HELLO: dict[str, object] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": LEGACY_VERSIONS[0],
        "capabilities": {},
        "clientInfo": {"name": "emceepee", "version": "0"},
    },
}


class Challenge(NamedTuple):
    """The answer, as far as it says whether a person has to sign in."""

    status: int
    authenticate: str
    media_type: str
    is_json_rpc: bool

    @property
    def is_of_mcp(self) -> bool:
        """Whether an MCP server answers so.

        A modern one refuses `initialize` by an error, one of the older SSE transport a POST.
        """
        is_answer = self.status in _SUCCESS and self.media_type in _MEDIA_TYPES
        return is_answer or self.is_json_rpc or self.status == _NO_POST

    def __str__(self) -> str:
        status = f"HTTP status {self.status}"
        if self.status not in _SUCCESS:
            return status
        return f"{status} and the content type {self.media_type!r}"


async def challenge_of(server: ServerConfig, client: EndpointClient) -> Challenge:
    headers = {
        **server.headers,
        "accept": ", ".join(_MEDIA_TYPES),
        "content-type": "application/json",
    }
    body = msgspec.json.encode(_HELLO)
    request = httpx2.Request("POST", server.url or "", content=body, headers=headers)
    answer = await client.send(request)
    return Challenge(
        status=answer.status_code,
        authenticate=answer.headers.get("www-authenticate", ""),
        media_type=answer.headers.get("content-type", "").partition(";")[0].strip().lower(),
        is_json_rpc=_is_json_rpc(answer.content),
    )


def _is_json_rpc(body: bytes) -> bool:
    try:
        return decode_object(body).get("jsonrpc") == "2.0"
    except (msgspec.MsgspecError, RecursionError):
        return False
