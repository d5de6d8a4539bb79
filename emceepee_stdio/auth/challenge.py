"""What a server answers to somebody without a token: the challenge from which a sign-in begins."""

import httpx2
import msgspec

from emceepee_stdio.auth.endpoint_client import EndpointClient
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.versions import LEGACY_VERSIONS

__all__ = ["challenge_of"]

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


async def challenge_of(server: ServerConfig, client: EndpointClient) -> tuple[int, str]:
    """Status and WWW-Authenticate of the answer."""
    headers = {
        **server.headers,
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    body = msgspec.json.encode(_HELLO)
    request = httpx2.Request("POST", server.url or "", content=body, headers=headers)
    answer = await client.send(request)
    return answer.status_code, answer.headers.get("www-authenticate", "")
