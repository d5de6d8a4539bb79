"""A new token for one that is refused or due: a single request, without a person.

Only the token endpoint itself ends a sign-in, by refusing the refresh token or the client. Whatever
else goes wrong passes, and the record stays as it is.
"""

import base64
from urllib.parse import quote

import httpx2
import msgspec

from emceepee_stdio.auth.endpoint_client import AddressRefused, NoAnswer, endpoint_client
from emceepee_stdio.auth.orders import HelperExit, RefreshOrder
from emceepee_stdio.auth.token_store import OAuthClient, TokenRecord, TokenStore, sendable
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import OAuthConfig
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.json_values import mapping

__all__ = ["error_code", "read_answer", "refresh", "revoke"]

_OK = 200
_REFUSED = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
_ERROR_CHARS = 60  # error codes are words of the RFCs


async def refresh(order: RefreshOrder, store: TokenStore, clock: Clock) -> HelperExit:
    with store.writing():
        record = store.read()
        if record is not None and record.access_token not in (None, order.seen):
            return HelperExit.STORED  # another process was faster
        if record is None or record.client is None or not _may_refresh(record, order.oauth):
            return HelperExit.PERSON_NEEDED
        now = clock.epoch(clock.now())
        try:
            anywhere = order.oauth.issuer is not None
            async with endpoint_client(order.server, anywhere=anywhere) as client:
                said = await client.send(_request(record, record.client, order.oauth))
        except (NoAnswer, AddressRefused):
            return HelperExit.TRY_AGAIN
        answer = read_answer(said)
        if said.status_code == _OK and sendable(answer.get("access_token")):
            store.write(record.taken(answer, now=now))
            return HelperExit.STORED
        code = error_code(answer)  # looked at with any status, also with 200
        if code not in _REFUSED:
            return HelperExit.TRY_AGAIN
        left = record.without_tokens()
        if code != "invalid_grant":  # the registration is gone, too
            left = msgspec.structs.replace(left, client=None)
        store.write(left)
        return HelperExit.PERSON_NEEDED


def _may_refresh(record: TokenRecord, oauth: OAuthConfig) -> bool:
    return record.refresh_token is not None and _may_send(record, oauth)


def _may_send(record: TokenRecord, oauth: OAuthConfig) -> bool:
    """Tokens go to the issuer that they came from, a configured secret to a configured issuer."""
    is_configured = record.client is not None and record.client.is_configured
    return record.is_of(oauth.issuer) and not (is_configured and oauth.is_unbound_secret)


async def revoke(record: TokenRecord, oauth: OAuthConfig) -> bool:
    """Tell the server that the tokens are not needed any more (RFC 7009); whether it took it."""
    if record.revocation_endpoint is None or record.client is None:
        return False
    if not _may_send(record, oauth):
        return False
    token = record.refresh_token or record.access_token
    if token is None:
        return False
    fields = {"token": token}
    request = _authorized(record.revocation_endpoint, fields, record.client, oauth)
    try:
        async with endpoint_client(record.server, anywhere=oauth.issuer is not None) as client:
            return (await client.send(request)).status_code == _OK
    except (NoAnswer, AddressRefused):
        return False


def _request(record: TokenRecord, client: OAuthClient, oauth: OAuthConfig) -> httpx2.Request:
    fields = {"grant_type": "refresh_token", "refresh_token": record.refresh_token or ""}
    if record.resource is not None:
        fields["resource"] = record.resource
    return _authorized(record.token_endpoint, fields, client, oauth)


def _authorized(
    url: str, fields: dict[str, str], client: OAuthClient, oauth: OAuthConfig
) -> httpx2.Request:
    """As the client that signed in, in the way that it did then."""
    secret = oauth.client_secret if client.is_configured else client.client_secret
    headers = {"accept": "application/json"}
    fields = {**fields, "client_id": client.client_id}
    if secret and client.token_endpoint_auth_method == "client_secret_post":  # noqa: S105
        fields["client_secret"] = secret
    elif secret and client.token_endpoint_auth_method != "none":  # noqa: S105
        pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return httpx2.Request("POST", url, data=fields, headers=headers)


def read_answer(said: httpx2.Response) -> dict[str, object]:
    """The object in a body; empty where it holds none."""
    try:
        return dict(mapping(decode_value(said.content)))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {}


def error_code(answer: dict[str, object]) -> str | None:
    """The error by its RFC name, which holds no secret; what a server adds may."""
    code = answer.get("error")
    if isinstance(code, str) and code.isascii() and code.replace("_", "").isalpha():
        return code[:_ERROR_CHARS]
    return None
