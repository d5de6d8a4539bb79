"""Messages between the proxy and its sign-in helpers: orders, exit codes, failures.

Without the SDK and the HTTP client, so that the serving process can give the orders.
"""

import re
import shlex
from collections.abc import Awaitable, Callable
from enum import IntEnum

import anyio
import msgspec
from msgspec import Struct

from emceepee_stdio.config.server import OAuthConfig
from emceepee_stdio.errors import NeedsSignIn

_LOOK_EVERY_S = 1.0  # somebody who has signed in is noticed so soon
_CHALLENGE_CHARS = 4_000  # of a header that may come from anywhere
_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, 3.3
_MAX_SCOPES = 50  # of a challenge: what nobody would read is not asked for
_CHALLENGE_FIELD = re.compile(r'\b(resource_metadata|scope|error)\s*=\s*(?:"([^"]*)"|([^\s",]+))')
STEP_UP_STATUS = 403  # with a challenge: the token is good, but not for this


class HelperExit(IntEnum):
    """How a helper ends; any other number, such as that of a signal, is `TRY_AGAIN`."""

    STORED = 0
    PERSON_NEEDED = 3
    TRY_AGAIN = 75


class RefreshOrder(Struct, frozen=True, kw_only=True):
    """Which record, and the token that is refused or due: where another is kept, all is done."""

    directory: str
    server: str
    oauth: OAuthConfig = msgspec.field(default_factory=OAuthConfig)
    seen: str


def challenge_fields(header: str) -> dict[str, str]:
    """What a WWW-Authenticate header says that matters to signing in."""
    found = _CHALLENGE_FIELD.findall(header[:_CHALLENGE_CHARS])
    return {name: quoted or plain for name, quoted, plain in found}


def challenged_scope(header: str) -> str:
    """The scopes that it names, without what is none."""
    words = challenge_fields(header).get("scope", "").split()
    return " ".join([word for word in words if _SCOPE_TOKEN.fullmatch(word)][:_MAX_SCOPES])


class SignInFailed(Exception):
    """Why it came to nothing, in words that hold no secret, with the next step."""


class ConsentNeeded(SignInFailed):
    """The server sends us to another host, and no person has agreed to that."""

    def __init__(self, server: str, host: str) -> None:
        super().__init__(f"{server} wants a sign-in at another host, {host}.")
        self.host = host


class ClientRefused(SignInFailed):
    """The registration is gone: the next sign-in makes another."""


class NewerRecord(SignInFailed):
    """What is kept was written by a newer version, and is not ours to replace."""

    def __init__(self, server: str) -> None:
        super().__init__(
            "A newer emceepee keeps this sign-in: update this one, or forget it with "
            f"`{shlex.join(['emceepee', 'logout', server])}`."
        )


class SignInOrder(Struct, frozen=True, kw_only=True):
    """What to sign in to. `status` and `challenge` are what the server answered with.

    `trusted`: a person named this server, so that it may name an authorization server elsewhere;
    `agreed_hosts` are other hosts that a person agreed to.
    """

    directory: str
    name: str
    server: str
    status: int = 401
    challenge: str = ""
    oauth: OAuthConfig = msgspec.field(default_factory=OAuthConfig)
    trusted: bool = False
    agreed_hosts: tuple[str, ...] = ()


class SignInNeeded(NeedsSignIn):
    """A person has to sign in: `order` says to what; `is_met` looks whether they have."""

    def __init__(
        self,
        fact: str,
        *,
        command: str,
        order: SignInOrder,
        is_met: Callable[[], Awaitable[bool]],
    ) -> None:
        super().__init__(
            fact,
            hint=f"Ask the person to run `{command}`; the server connects by itself then.",
            command=command,
        )
        self.order = order
        self.is_step_up = order.status == STEP_UP_STATUS
        self.is_met = is_met

    async def signed_in(self) -> None:
        """Returns when they have; whoever led them there tells nobody."""
        while True:
            if await self.is_met():
                return
            await anyio.sleep(_LOOK_EVERY_S)
