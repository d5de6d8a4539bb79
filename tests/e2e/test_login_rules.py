"""`emceepee login` at servers that break the rules: what is sent to nobody, and what is said."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from emceepee_stdio.trust.targets import Area, area_of
from tests.e2e.cli_harness import Home
from tests.e2e.servers import http_wire
from tests.e2e.sign_in_harness import BROWSER, Place, protected
from tests.e2e.test_addresses import Listener, listening, own_address

pytestmark = pytest.mark.slow

SECRET = "hidden-brook"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    path = tmp_path / "home"
    return Home(path, env={"EMCEEPEE_STATE_DIR": str(path / "state"), "BROWSER": BROWSER})


@pytest.fixture
def inside() -> Iterator[Listener]:
    """Somebody in a private network, where the servers of these tests are not."""
    address = own_address()
    if area_of(address) is not Area.NEAR:
        pytest.skip("this machine has no private address")
    with listening(address) as listener:
        yield listener


def url_of(listener: Listener) -> str:
    return f"https://{listener.socket.getsockname()[0]}:{listener.port}"


def with_client(home: Home, place: Place, **more: Any) -> None:
    place.issuer.registers, place.issuer.wants_secret = False, SECRET
    oauth = {"client_id": "ours", "client_secret": SECRET, **more}
    home.write({"vault": place.entry(oauth=oauth)})


async def test_a_configured_secret_goes_to_nobody_before_its_issuer_is_configured(home: Home):
    async with protected() as place:
        with_client(home, place)
        ran = await home.run("login", "vault")
        line = f'"issuer": "{place.issuer.url}"'
        ran.said(f"announces the issuer {place.issuer.url}", line, "emceepee config path")
        assert ran.code == 3
        assert "out and in again" not in ran.err
        assert (place.issuer.visits, place.issuer.grants) == ([], [])
        doctor = await home.run("doctor", "vault", "--json")
        (check,) = json.loads(doctor.out)["checks"]
        assert (doctor.code, check["status"]) == (3, "auth")
        assert "oauth.issuer" in check["remediation"]
        with_client(home, place, issuer=place.issuer.url)
        (await home.run("login", "vault")).well()


async def test_a_token_is_not_refreshed_with_a_secret_that_is_for_another_issuer(home: Home):
    async with protected() as place:
        with_client(home, place, issuer=place.issuer.url)
        (await home.run("login", "vault")).well()
        with_client(home, place)
        warned = (await home.run("doctor", "vault", "--json")).well()
        (check,) = json.loads(warned.out)["checks"]
        assert (check["status"], "oauth.issuer" in check["summary"]) == ("warning", True)
        place.issuer.expire()
        for other in ({}, {"issuer": "https://id.example"}):
            with_client(home, place, **other)
            assert (await home.run("call", "vault", "echo", "message=hi")).code == 3
        assert place.issuer.refreshes == 0
        with_client(home, place, issuer=place.issuer.url)
        assert (await home.run("call", "vault", "echo", "message=hi")).well().out == "hi\n"


async def test_what_a_server_grants_is_shown_without_what_would_steer_a_terminal(home: Home):
    async with protected() as place:
        place.issuer.grants_with = {"scope": "read\x1b]0;pwned\x07\x1b[2J" + " more" * 500}
        home.write({"vault": place.entry()})
        ran = (await home.run("login", "vault")).well()
        assert "read\\x1b]0;pwned" in ran.out
        assert "\x1b" not in ran.out + ran.err
        assert len(ran.out) < 600


@pytest.mark.parametrize("life", [10**18, "soon"])
async def test_a_lifetime_that_makes_no_sense_breaks_no_sign_in(home: Home, life: object):
    async with protected() as place:
        place.issuer.refreshes_tokens = False
        place.issuer.grants_with = {"expires_in": life}
        home.write({"vault": place.entry()})
        ran = (await home.run("login", "vault")).well()
        assert "Signed in to vault until" in ran.out


async def test_the_query_of_an_authorization_endpoint_is_kept(home: Home):
    async with protected() as place:
        place.issuer.authorization_endpoint = f"{place.issuer.url}/authorize?tenant=a%20b&x"
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).well()
        (seen,) = place.issuer.visits
        assert seen["tenant"] == "a b"
        assert seen["response_type"] == "code"


@pytest.mark.parametrize(
    ("tail", "word"), [("#part", "a fragment"), ("?state=mine", "names state itself")]
)
async def test_an_authorization_endpoint_that_spoils_the_request_is_not_visited(
    home: Home, tail: str, word: str
):
    async with protected() as place:
        place.issuer.authorization_endpoint = f"{place.issuer.url}/authorize{tail}"
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).said(word)
        assert place.issuer.visits == []


@pytest.mark.parametrize("methods", [None, ["plain"]])
async def test_without_the_proof_of_pkce_nobody_signs_in(home: Home, methods: list[str] | None):
    async with protected() as place:
        place.issuer.says = {"code_challenge_methods_supported": methods}
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).said("PKCE", "S256")
        assert (place.issuer.visits, place.issuer.registrations) == ([], [])
        home.write({"vault": place.entry(oauth={"issuer": place.issuer.url})})
        vouched = await home.run("login", "vault")
        assert vouched.code == (0 if methods is None else 3)


async def test_a_token_endpoint_that_may_not_be_called_is_noticed_before_anybody_visits(home: Home):
    async with protected() as place:
        place.issuer.says = {"token_endpoint": "http://169.254.169.254/token"}
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).said("sends us where it may not")
        assert place.issuer.visits == []


@pytest.mark.parametrize("named", ["metadata", "metadata at the issuer", "another issuer"])
async def test_an_issuer_that_is_configured_opens_no_other_private_address(
    home: Home, inside: Listener, named: str
):
    async with protected() as place:
        private, issuer = url_of(inside), place.issuer.url
        if named == "another issuer":
            place.server.names = private
        else:
            asked = f'Bearer resource_metadata="{private}/internal/admin?do=x"'
            place.server.challenge = lambda: asked
        if named == "metadata at the issuer":
            issuer = private
        home.write({"vault": place.entry(oauth={"client_id": "ours", "issuer": issuer})})
        (await home.run("login", "vault")).said("sends us where it may not")
        assert inside.came == 0


@pytest.mark.parametrize("part", ["issuer", "token_endpoint"])
async def test_an_issuer_that_is_configured_and_its_endpoints_may_be_at_a_private_address(
    home: Home, inside: Listener, part: str
):
    async with protected() as place:
        private, issuer = url_of(inside), place.issuer.url
        if part == "issuer":
            issuer = place.server.names = private
        else:
            place.issuer.says = {part: f"{private}/token"}
        home.write({"vault": place.entry(oauth={"client_id": "ours", "issuer": issuer})})
        (await home.run("login", "vault")).said("did not answer")  # it does not know TLS
        assert inside.came == 1


async def test_no_proxy_of_the_environment_sees_a_sign_in_at_this_machine(
    home: Home, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_wire, "LOOPBACK", "127.0.0.2")
    with listening() as proxy:
        home.env["HTTP_PROXY"] = f"http://127.0.0.1:{proxy.port}"
        async with protected() as place:
            home.write({"vault": place.entry(headers={"X-Api-Key": SECRET})})
            ran = (await home.run("login", "vault")).well()
            assert (proxy.came, "Signed in to vault" in ran.out) == (0, True)
            place.issuer.expire()
            assert (await home.run("call", "vault", "echo", "message=hi")).well().out == "hi\n"
            (await home.run("logout", "vault", "--revoke")).well()
            assert (place.issuer.refreshes, len(place.issuer.revoked)) == (1, 1)
        assert proxy.came == 0


@pytest.mark.parametrize("token", ["quiet\r\nx-evil: 1", "st\xefll-river"])
async def test_a_token_that_no_header_can_carry_is_refused(home: Home, token: str):
    async with protected() as place:
        place.issuer.grants_with = {"access_token": token}
        home.write({"vault": place.entry()})
        ran = (await home.run("login", "vault")).said("gave a token that cannot be sent")
        assert token not in ran.err
        assert place.records(home.path) == []


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ({"issuer": "https://other.example"}, "what it announces"),
        ({"authorization_response_iss_parameter_supported": True}, "what came back"),
    ],
)
async def test_a_server_that_breaks_the_rules_is_told_in_words_with_the_next_step(
    home: Home, says: dict[str, Any], word: str
):
    async with protected() as place:
        place.issuer.says = says
        home.write({"vault": place.entry()})
        ran = (await home.run("login", "vault")).said(word, "whoever runs")
        assert "Error" not in ran.err


async def test_a_server_by_its_address_names_another_host_before_the_browser_opens(home: Home):
    async with protected() as place:
        place.issuer.is_elsewhere = True
        place.server.names = place.issuer.url
        ran = await home.run("login", place.server.url)
        ran.said("at another host, localhost", "emceepee config add NAME --url")
        for answer, code in (("n", 3), ("y", 0)):
            assert (place.issuer.http.received, place.issuer.visits) == ([], [])
            with home.screen("login", place.server.url, columns=4000, color=False) as screen:
                await anyio.to_thread.run_sync(screen.until_said, "localhost. Go there?")
                screen.type(f"{answer}\n")
                assert await anyio.to_thread.run_sync(screen.wait) == code
        assert len(place.issuer.visits) == 1


def leads_elsewhere(place: Place) -> None:
    """Its metadata leads to the sign-in at another host, and brings the code to itself."""
    elsewhere = place.issuer.url.replace("127.0.0.1", "localhost")
    place.issuer.authorization_endpoint = f"{elsewhere}/authorize"


async def test_a_sign_in_of_another_host_is_given_to_nobody_before_a_person_trusts_both(home: Home):
    async with protected() as place:
        leads_elsewhere(place)
        home.write({"vault": place.entry()})
        ran = await home.run("login", "vault")
        ran.said("gives a sign-in at localhost to 127.0.0.1", "oauth.issuer")
        for answer, code in (("n", 3), ("y", 0)):
            assert (place.issuer.visits, place.issuer.grants) == ([], [])
            with home.screen("login", "vault", columns=4000, color=False) as screen:
                await anyio.to_thread.run_sync(screen.until_said, "127.0.0.1. Trust both?")
                screen.type(f"{answer}\n")
                assert await anyio.to_thread.run_sync(screen.wait) == code
        assert len(place.issuer.grants) == 1


async def test_an_issuer_that_is_configured_or_named_in_the_answer_may_sign_in_at_two_hosts(
    home: Home,
):
    async with protected() as place:
        leads_elsewhere(place)
        home.write({"vault": place.entry(oauth={"issuer": place.issuer.url})})
        (await home.run("login", "vault")).well()
        home.write({"vault": place.entry()})
        (await home.run("logout", "vault")).well()
        place.issuer.says = {"authorization_response_iss_parameter_supported": True}
        ran = await home.run("login", "vault")  # and without it in the answer it is refused
        ran.said("Not signed in to vault", "names another issuer")
        assert (len(place.issuer.visits), len(place.issuer.grants)) == (2, 1)


async def test_pasting_ends_when_nobody_types_any_more(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry()})
        ran = await home.run("login", "vault", "--paste")
        ran.said("Not signed in to vault", "input ended")
        assert ran.code == 3
