"""What a command that makes one request says when the server cannot be used."""

from pathlib import Path

from emceepee_stdio.auth.bearer import SignInNeeded, SignInOrder
from emceepee_stdio.cli.call import remedy
from emceepee_stdio.cli.shared_options import ServerChoice
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Settings

URL = "https://mcp.example/mcp"


async def _never() -> bool:
    return False


def test_who_needs_more_rights_is_given_the_command_that_asks_for_them(tmp_path: Path) -> None:
    needed = SignInNeeded(
        "s wants a sign-in with more rights for this.",
        command="emceepee login s --scope 'read write'",
        order=SignInOrder(directory=str(tmp_path), name="s", server=URL, status=403),
        is_met=_never,
    )
    choice = ServerChoice(
        server=ServerConfig(name="s", url=URL), settings=Settings(), words="s", is_configured=True
    )
    assert remedy(choice, needed) == "Sign in: emceepee login s --scope 'read write'"
