"""An authorization server on loopback that a test can bend, and a guard for an MCP server.

Everybody who comes with a good request is signed in at once, as the person would have clicked.
Refresh tokens rotate; one that is used twice is a replay, which ends the whole sign-in, as strict
servers do. What happened is counted.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange, HttpServer

Fields = dict[str, Any]


class AuthorizationServer:
    """Its switches are attributes; a test may change them while it runs."""

    def __init__(self) -> None:
        self.http = HttpServer(self.handle)
        self.numbers = itertools.count(1)
        self.token_life: int | None = 3600
        self.refreshes_tokens = True
        self.registers = True
        self.scopes: list[str] | None = None
        self.is_elsewhere = False  # under the name of another host than the server's
        self.authorization_endpoint: str | None = None  # another than its own
        self.issuer: str | None = None  # another than its own address
        self.says: Fields = {}  # more in its metadata, or other; None leaves a field out
        self.grants_with: Fields = {}  # more in its tokens, or other
        self.answers_with: list[tuple[int, Fields]] = []  # the next answers of its token endpoint
        self.revoked_at_once = 0  # so many of the next tokens end before anybody uses them
        self.denies = False
        self.gives = asyncio.Event()  # while it is not set, nobody gets a token
        self.gives.set()
        self.held = 0  # how many wait for that
        self.welcomes = asyncio.Event()  # while it is not set, no visitor is answered
        self.welcomes.set()
        self.wants_secret: str | None = None
        self.visits: list[Fields] = []
        self.registrations: list[Fields] = []
        self.grants: list[Fields] = []
        self.revoked: list[str] = []
        self.replays = 0
        self.codes: dict[str, Fields] = {}
        self.tokens: dict[str, float] = {}
        self.scope_of: dict[str, str] = {}
        self.refresh_tokens: dict[str, str] = {}  # still good, with the scope that they are for
        self.spent: set[str] = set()

    @property
    def url(self) -> str:
        url = self.http.url.removesuffix("/mcp")
        return url.replace("127.0.0.1", "localhost") if self.is_elsewhere else url

    @property
    def refreshes(self) -> int:
        return sum(grant["grant_type"] == "refresh_token" for grant in self.grants)

    @property
    def secrets(self) -> list[str]:
        """All that nobody else may ever see."""
        verifiers = [g["code_verifier"] for g in self.grants if "code_verifier" in g]
        codes = [g["code"] for g in self.grants if "code" in g]
        return [*self.tokens, *self.refresh_tokens, *self.spent, *verifiers, *codes]

    def accepts(self, token: str) -> bool:
        return self.tokens.get(token, 0.0) > time.time()

    def expire(self) -> None:
        """Every token that was given out has ended; what refreshes it has not."""
        self.tokens = dict.fromkeys(self.tokens, 0.0)

    def end(self) -> None:
        """Nobody is signed in any more."""
        self.expire()
        self.refresh_tokens.clear()

    async def handle(self, exchange: Exchange) -> None:
        parts = urlsplit(exchange.path)
        if parts.path.startswith("/.well-known/oauth-authorization-server"):
            await exchange.reply(200, self.metadata())
        elif parts.path == "/register":
            await self.register(exchange)
        elif parts.path == "/authorize":
            await self.authorize(exchange, dict(parse_qsl(parts.query)))
        elif parts.path == "/token":
            await self.grant(exchange, dict(parse_qsl(exchange.body.decode())))
        elif parts.path == "/revoke":
            self.revoked.append(dict(parse_qsl(exchange.body.decode()))["token"])
            await exchange.reply(200)
        else:
            await exchange.reply(404)

    def metadata(self) -> Fields:
        found = {
            "issuer": self.issuer or self.url,
            "authorization_endpoint": self.authorization_endpoint or f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "revocation_endpoint": f"{self.url}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
        }
        if self.registers:
            found["registration_endpoint"] = f"{self.url}/register"
        if self.scopes is not None:
            found["scopes_supported"] = self.scopes
        found |= self.says
        return {name: value for name, value in found.items() if value is not None}

    async def register(self, exchange: Exchange) -> None:
        self.registrations.append(exchange.message)
        made = {**exchange.message, "client_id": f"client-{next(self.numbers)}"}
        await exchange.reply(201, {**made, "token_endpoint_auth_method": "none"})

    async def authorize(self, exchange: Exchange, asked: Fields) -> None:
        self.visits.append(asked)
        await self.welcomes.wait()
        back = {"state": asked["state"]}
        if self.denies:
            back["error"] = "access_denied"
        else:
            back["code"] = f"code-{next(self.numbers)}-of-a-visit"
            self.codes[back["code"]] = asked
        location = f"{asked['redirect_uri']}?{urlencode(back)}"
        await exchange.reply(302, b"", location=location)

    async def grant(self, exchange: Exchange, asked: Fields) -> None:
        self.grants.append(asked)
        self.held += 1
        await self.gives.wait()
        self.held -= 1
        if self.answers_with:
            status, body = self.answers_with.pop(0)
            await exchange.reply(status, body)
            return
        if self.wants_secret is not None and not self.knows(exchange):
            await exchange.reply(401, {"error": "invalid_client"})
            return
        found = self.exchanged(asked) if "code" in asked else self.rotated(asked)
        await exchange.reply(
            *((400, {"error": "invalid_grant"}) if found is None else (200, found))
        )

    def knows(self, exchange: Exchange) -> bool:
        given = exchange.headers.get("authorization", "").removeprefix("Basic ")
        return unquote(base64.b64decode(given).decode()).partition(":")[2] == self.wants_secret

    def exchanged(self, asked: Fields) -> Fields | None:
        visit = self.codes.pop(asked["code"], None)
        digest = hashlib.sha256(asked["code_verifier"].encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if visit is None or visit["code_challenge"] != proof:
            return None
        return self.issue(visit.get("scope", ""))

    def rotated(self, asked: Fields) -> Fields | None:
        token = asked["refresh_token"]
        if token in self.spent:
            self.replays += 1
            self.end()
        scope = self.refresh_tokens.pop(token, None)
        if scope is None:
            return None
        self.spent.add(token)
        return self.issue(scope)

    def issue(self, scope: str) -> Fields:
        number = next(self.numbers)
        made: Fields = {"access_token": f"access-{number}-quiet-river", "token_type": "Bearer"}
        life = (self.token_life or 3600) if not self.revoked_at_once else 0
        self.revoked_at_once = max(0, self.revoked_at_once - 1)
        self.tokens[made["access_token"]] = time.time() + life
        self.scope_of[made["access_token"]] = scope
        if self.token_life is not None:
            made["expires_in"] = self.token_life
        if scope:
            made["scope"] = scope
        if self.refreshes_tokens:
            made["refresh_token"] = f"refresh-{number}-silent-lake"
            self.refresh_tokens[made["refresh_token"]] = scope
        return made | self.grants_with


class ProtectedServer:
    """An MCP server that wants a token of an authorization server."""

    def __init__(self, issuer: AuthorizationServer, **options: Any) -> None:
        self.issuer = issuer
        self.mcp = McpServer(**options)
        self.mcp.before = self.guard
        self.announces = True  # what it protects, and who signs people in
        self.names = issuer.url  # the authorization server that it names
        self.scope: str | None = None  # that it asks for in its challenge
        self.needs: dict[str, str] = {}  # more scope, by method of the protocol
        self.seen: list[str] = []  # every token that came

    @property
    def url(self) -> str:
        return self.mcp.url

    async def guard(self, exchange: Exchange) -> bool:
        if exchange.path.startswith("/.well-known/oauth-protected-resource"):
            found = {"resource": self.url, "authorization_servers": [self.names]}
            await exchange.reply(200 if self.announces else 404, found if self.announces else None)
            return True
        token = exchange.headers.get("authorization", "").removeprefix("Bearer ")
        self.seen += [token] if token else []
        if not self.issuer.accepts(token):
            await exchange.reply(401, {"error": "no token"}, www_authenticate=self.challenge())
            return True
        needed = self.needs.get(json.loads(exchange.body or b"{}").get("method", ""), "")
        if not set(needed.split()) <= set(self.issuer.scope_of[token].split()):
            asked = f'Bearer error="insufficient_scope", scope="{needed}"'
            await exchange.reply(403, {"error": "more"}, www_authenticate=asked)
            return True
        return False

    def challenge(self) -> str:
        if not self.announces:
            return 'Bearer realm="vault"'
        origin = self.url.removesuffix("/mcp")
        where = f'resource_metadata="{origin}/.well-known/oauth-protected-resource/mcp"'
        return f"Bearer {where}" + (f', scope="{self.scope}"' if self.scope else "")
