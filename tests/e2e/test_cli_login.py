"""`emceepee login` and `logout`, and what doctor says of a server that wants a sign-in."""

import json
import re
import stat
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.harness import free_port
from tests.e2e.servers.http_wire import Exchange
from tests.e2e.sign_in_harness import BROWSER, protected, visit


@pytest.fixture
def home(tmp_path: Path) -> Home:
    path = tmp_path / "home"
    return Home(path, env={"EMCEEPEE_STATE_DIR": str(path / "state"), "BROWSER": BROWSER})


async def test_signing_in_once_is_enough_for_every_command(home: Home):
    async with protected() as place:
        place.server.scope = "read"
        home.write({"vault": place.entry()})
        before = await home.run("doctor", "vault")
        assert before.code == 3
        assert "emceepee login vault" in before.out
        ran = (await home.run("login", "vault")).well()
        assert ran.out == ("Signed in to vault until the server ends it, with the scopes read.\n")
        (record,) = place.records(home.path)
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert (await home.run("call", "vault", "echo", "message=hi")).well().out == "hi\n"
        after = (await home.run("doctor", "vault", "--json")).well()
        (check,) = json.loads(after.out)["checks"]
        assert check["details"]["signed_in"] == "until the server ends it, with the scopes read"
        assert len(place.issuer.visits) == 1
        for text in (ran.out, ran.err, after.out):
            assert not any(secret in text for secret in place.issuer.secrets)


async def test_signing_out_forgets_the_tokens_and_may_tell_the_server(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).well()
        ran = (await home.run("logout", "vault", "--revoke")).well()
        assert ran.out == "Signed out of vault.\n"
        assert place.issuer.revoked == list(place.issuer.refresh_tokens)
        assert place.records(home.path) == []
        assert (await home.run("doctor", "vault")).code == 3
        assert (await home.run("logout", "vault")).well().out.startswith("Nobody was signed in")


async def test_without_a_browser_here_the_address_is_printed_and_one_is_typed_in(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry()})
        with home.screen("login", "vault", "--paste", columns=4000, color=False) as screen:
            await anyio.to_thread.run_sync(screen.until_said, "Address:")
            url = re.search(r"http://\S+/authorize\S+", screen.text)[0]
            back = await redirected(url)
            screen.type("http://127.0.0.1/callback?code=x&state=wrong\n")
            await anyio.to_thread.run_sync(screen.until_said_times, "Address:", 2)
            assert "That is not the address at which this sign-in ends" in screen.words
            screen.type(f"{back}\n")
            assert await anyio.to_thread.run_sync(screen.wait) == 0
        assert "Signed in to vault" in screen.words


async def test_ctrl_c_ends_the_wait_for_an_address_at_once(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry()})
        with home.screen("login", "vault", "--paste") as screen:
            await anyio.to_thread.run_sync(screen.until_said, "Address:")
            screen.type("\x03")
            assert await anyio.to_thread.run_sync(screen.wait) == 130
        assert "Traceback" not in screen.text


async def redirected(url: str) -> str:
    async with httpx2.AsyncClient() as browser:
        return (await browser.get(url)).headers["location"]


async def test_a_person_who_says_no_is_told_so_here_and_in_the_browser(home: Home):
    async with protected() as place:
        place.issuer.denies = True
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).said("Not signed in to vault", "access_denied")
        assert place.records(home.path) == []


async def test_a_client_that_is_configured_is_used_and_its_secret_stays_where_it_is(home: Home):
    async with protected() as place:
        place.issuer.registers, place.issuer.wants_secret = False, "hidden-brook"
        port = free_port()
        oauth = {
            "client_id": "ours",
            "client_secret": "${SECRET}",
            "issuer": place.issuer.url,
            "redirect_port": port,
            "resource": False,
            "scope": "files",
        }
        home.write({"vault": place.entry(oauth=oauth)})
        home.env["SECRET"] = "hidden-brook"
        (await home.run("login", "vault")).well()
        (seen,) = place.issuer.visits
        assert (seen["client_id"], seen["scope"]) == ("ours", "files")
        assert seen["redirect_uri"] == f"http://127.0.0.1:{port}/callback"
        assert "resource" not in seen
        assert not place.issuer.registrations
        (record,) = place.records(home.path)
        assert "hidden-brook" not in record.read_text()
        place.issuer.expire()
        assert (await home.run("call", "vault", "echo", "message=hi")).well().out == "hi\n"


async def test_a_sign_in_that_a_newer_version_keeps_is_left_alone_and_the_next_step_is_named(
    home: Home,
):
    async with protected() as place:
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).well()
        (record,) = place.records(home.path)
        newer = record.read_text().replace("{", '{"version":2,', 1)
        record.write_text(newer)
        ran = await home.run("login", "vault")
        assert ran.code == 3
        ran.said("A newer emceepee keeps this sign-in", "emceepee logout vault")
        assert record.read_text() == newer
        (await home.run("logout", "vault")).well()
        (await home.run("login", "vault")).well()
        assert len(place.issuer.visits) == 2


async def test_a_configured_client_that_is_refused_names_what_to_check(home: Home):
    async with protected() as place:
        place.issuer.registers, place.issuer.wants_secret = False, "hidden-brook"
        oauth = {"client_id": "ours", "client_secret": "another-brook"}
        oauth["issuer"] = place.issuer.url
        home.write({"vault": place.entry(oauth=oauth)})
        ran = await home.run("login", "vault")
        ran.said("invalid_client", "check oauth.client_id and oauth.client_secret")
        assert "another-brook" not in ran.err


async def test_a_call_from_the_shell_names_the_sign_in_that_is_missing(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry()})
        ran = await home.run("call", "vault", "echo", "message=hi")
        ran.said("vault wants a person to sign in", "Sign in: emceepee login vault")
        assert ran.code == 3


@pytest.mark.parametrize(
    "endpoint",
    ["file:///etc/passwd", "javascript:alert(1)", "http://127.0.0.1@127.0.0.2:9/authorize"],
)
async def test_no_browser_is_opened_at_an_address_that_is_no_plain_page(home: Home, endpoint: str):
    async with protected() as place:
        place.issuer.authorization_endpoint = endpoint
        home.write({"vault": place.entry()})
        opened = home.path / "opened"
        home.env["BROWSER"] = f"touch {opened}"
        (await home.run("login", "vault")).said("Not signed in to vault")
        assert not opened.exists()


async def test_without_registration_the_next_step_is_named(home: Home):
    async with protected() as place:
        place.issuer.registers = False
        home.write({"vault": place.entry()})
        ran = (await home.run("login", "vault")).said("registers no clients", "oauth.client_id")
        port = re.search(r"http://127.0.0.1:(\d+)/callback", ran.err)[1]
        ran.said(f"oauth.redirect_port ({port})")
        assert all(e.path != "/register" for e in place.server.mcp.http.received)


async def test_where_nothing_is_announced_a_token_is_named_as_the_next_step(home: Home):
    async with protected() as place:
        place.server.announces = False
        home.write({"vault": place.entry()})
        ran = await home.run("login", "vault")
        ran.said("announces no sign-in", '"Authorization": "Bearer ${TOKEN}"', "config edit")
        assert ran.code == 3


@pytest.mark.parametrize(
    "named", ["http://169.254.169.254/latest", "https://10.1.2.3", "http://192.0.2.7"]
)
async def test_an_authorization_server_at_a_forbidden_address_is_not_called(home: Home, named: str):
    async with protected() as place:
        place.server.names = named
        home.write({"vault": place.entry()})
        (await home.run("login", "vault")).said("sends us where it may not")


async def test_another_issuer_than_the_configured_one_is_shown_nothing(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry(oauth={"issuer": "https://id.example"})})
        (await home.run("login", "vault")).said("oauth.issuer is another issuer")
        assert not place.issuer.registrations


async def test_what_the_browser_shows_is_plain_and_loads_nothing(home: Home):
    async with protected() as place:
        home.write({"vault": place.entry()})
        home.env.pop("BROWSER")
        with home.screen("login", "vault", columns=4000, color=False) as screen:
            pattern = re.compile(r"http://\S+/authorize\S+")
            await anyio.to_thread.run_sync(
                screen.until, lambda: pattern.search(screen.text), "the address"
            )
            url = pattern.search(screen.text)[0]
            page = await visit(url)
            assert await anyio.to_thread.run_sync(screen.wait) == 0
    assert "<h1>Signed in to vault</h1>" in page
    assert not re.search(r"src=|href=|url\(|<script", page)


async def test_a_server_that_asks_nobody_is_left_alone(home: Home):
    async with protected() as place:
        place.server.mcp.before = None
        home.write({"open": place.entry(), "cmd": {"command": "true"}})
        assert (await home.run("login", "open")).well().out == "open asks nobody to sign in.\n"
        url = place.server.url
        assert (await home.run("login", url)).well().out == "The server asks nobody to sign in.\n"
        (await home.run("login", "cmd")).said("is a command")


@pytest.mark.parametrize(
    ("status", "content_type", "said"),
    [
        (404, "text/html", "HTTP status 404"),
        (404, "application/json", "HTTP status 404"),
        (200, "text/html", "HTTP status 200 and the content type 'text/html'"),
    ],
)
async def test_what_is_no_mcp_server_does_not_count_as_open(
    home: Home, status: int, content_type: str, said: str
):
    async def answer(exchange: Exchange) -> bool:
        await exchange.reply(status, b"{}", kind=content_type)
        return True

    async with protected() as place:
        place.server.mcp.before = answer
        home.write({"p404": place.entry()})
        ran = await home.run("login", "p404")
        there = f"answered with {said}, which no MCP server does here"
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"emceepee: p404 {there}; see: emceepee doctor p404\n"
        (await home.run("login", place.server.url)).said(f"The server {there}; check its URL.")


@pytest.mark.parametrize("status", [404, 405])
async def test_an_open_server_of_another_era_asks_nobody(home: Home, status: int):
    """A modern one refuses `initialize` by an error, one of the older SSE transport a POST."""

    async def refuse(exchange: Exchange) -> bool:
        error = {"code": -32601, "message": "Method not found"}
        await exchange.reply(status, {"jsonrpc": "2.0", "error": error} if status == 404 else b"")
        return True

    async with protected() as place:
        place.server.mcp.before = refuse
        home.write({"open": place.entry()})
        assert (await home.run("login", "open")).well().out == "open asks nobody to sign in.\n"
