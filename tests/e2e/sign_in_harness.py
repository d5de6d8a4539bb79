"""A server that wants a sign-in, its authorization server, and a person with a browser."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.e2e.client import Setting
from tests.e2e.servers.authorization import AuthorizationServer, ProtectedServer

# A browser that does what it is told: opens the address, and goes where it is sent.
BROWSER = f"{sys.executable} {Path(__file__).parent / 'servers' / 'browser.py'}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Both servers."""

    issuer: AuthorizationServer
    server: ProtectedServer

    def entry(self, **more: Any) -> dict[str, Any]:
        return {"url": self.server.url, **more}

    def records(self, home: Path) -> list[Path]:
        return [p for p in (home / "state" / "tokens").glob("*.json") if p.name.count(".") == 1]

    def found_in(self, setting: Setting, *texts: str) -> list[str]:
        """Secrets of the sign-in that stand where nobody may read them."""
        places = [*texts, *(path.read_text() for path in (setting.home / "logs").glob("*"))]
        return [secret for secret in self.issuer.secrets for text in places if secret in text]


@asynccontextmanager
async def protected(**options: Any) -> AsyncIterator[Place]:
    issuer = AuthorizationServer()
    await issuer.http.start()
    server = ProtectedServer(issuer, **options)
    await server.mcp.http.start()
    try:
        yield Place(issuer=issuer, server=server)
    finally:
        await server.mcp.http.stop()
        await issuer.http.stop()


async def visit(url: str) -> str:
    """The last page that the person sees."""
    async with httpx2.AsyncClient(follow_redirects=True, timeout=60) as browser:
        return (await browser.get(url)).text
