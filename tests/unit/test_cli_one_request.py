"""What a command that makes one request says when the server cannot be used."""

from pathlib import Path
from typing import Any

import anyio
import pytest
import trio.testing

from emceepee_stdio.auth.bearer import SignInNeeded, SignInOrder
from emceepee_stdio.cli.call import remedy
from emceepee_stdio.cli.one_shot import OneShotSession
from emceepee_stdio.cli.shared_options import ServerChoice
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Settings

URL = "https://mcp.example/mcp"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Virtual time: it jumps to the next deadline."""
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


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


@pytest.mark.parametrize(("server_s", "is_over"), [(9, False), (11, True)])
async def test_the_time_of_a_person_is_not_that_of_the_server(
    *, server_s: float, is_over: bool
) -> None:
    runtime: Any = None  # no server is asked
    here = OneShotSession(runtime)
    here.limit.deadline = anyio.current_time() + 10
    with here.limit:
        with here.person_answers():
            await anyio.sleep(1_000)
        await anyio.sleep(server_s)
    assert here.limit.cancelled_caught is is_over
