"""Which addresses a configured issuer opens."""

import pytest

from emceepee_stdio.auth.bearer import SignInOrder
from emceepee_stdio.auth.sign_in import Announcement, SignInRules
from emceepee_stdio.config.server import OAuthConfig

SERVER = "https://mcp.example/mcp"
ISSUER = "https://login.example/tenant"

UNKNOWN = Announcement(issuer="https://mcp.example", is_named=False)
NAMED = Announcement(issuer=ISSUER, is_named=True)
READ = Announcement(issuer=ISSUER, is_named=True, has_metadata=True)
OTHER = Announcement(issuer="https://other.example", is_named=True, has_metadata=True)


def rules(issuer: str | None) -> SignInRules:
    oauth = OAuthConfig(issuer=issuer)
    return SignInRules(SignInOrder(directory="/", name="s", server=SERVER, oauth=oauth))


@pytest.mark.parametrize(
    ("found", "url", "may"),
    [
        (UNKNOWN, "https://mcp.example/.well-known/oauth-protected-resource", True),
        (UNKNOWN, "https://login.example/admin?do=x", False),
        (UNKNOWN, "https://inside.example/admin?do=x", False),
        (NAMED, "https://login.example/.well-known/oauth-authorization-server/tenant", True),
        (NAMED, "https://inside.example/.well-known/openid-configuration", False),
        (READ, "https://tokens.example/token", True),
        (OTHER, "https://tokens.example/token", False),
    ],
)
def test_a_configured_issuer_opens_its_own_addresses_and_those_of_the_server(
    found: Announcement, url: str, *, may: bool
):
    assert rules(ISSUER).may_be_anywhere(found, url) is may
    assert not rules(None).may_be_anywhere(found, url)
