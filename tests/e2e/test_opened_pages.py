"""What a browser is given to open: a page of ours, which only its owner can read."""

import html
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio.to_thread
import pytest

from emceepee_stdio.auth.browser import open_browser, open_page
from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import until
from tests.e2e.sign_in_harness import protected, visit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there it has the address")
URL = 'https://login.example/authorize?state=one&code_challenge=two"><script>'


def program(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o700)
    return place


class Desktop:
    """A machine with a browser that notes the arguments that it is given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self._noted = path / "noted"
        self.environ = {
            "PATH": f"{path / 'bin'}:{os.environ['PATH']}",
            "HOME": str(path / "home"),
            "EMCEEPEE_STATE_DIR": str(self.state),
            "BROWSER": str(self.browser("browser")),
        }

    def browser(self, name: str) -> Path:
        note = f'printf "%s\\n" "$@" > {self._noted}.new && mv {self._noted}.new {self._noted}'
        return program(self.path / "bin" / name, note)

    def open(self, url: str = URL) -> None:
        """By the process that the proxy starts for it."""
        command = [sys.executable, "-m", "emceepee_stdio.auth.browser"]
        subprocess.run(command, input=url.encode(), env=self.environ, check=True, umask=0)

    def given(self) -> str:
        """The one argument of the browser."""
        until(self._noted.exists, "the browser")
        [argument] = self._noted.read_text().splitlines()
        self._noted.unlink()
        return argument

    def page(self) -> Path:
        return Path(unquote(urlsplit(self.given()).path))


@pytest.fixture
def desktop(tmp_path: Path) -> Desktop:
    return Desktop(tmp_path)


def test_a_browser_is_given_a_private_page_that_leads_to_the_address(desktop: Desktop) -> None:
    desktop.open()
    page = desktop.page()
    assert page.parent == desktop.state / "pages"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    text = page.read_text()
    assert "<script" not in text, "nothing in an address is markup"
    [address] = re.findall('content="0;url=([^"]*)"', text)
    assert html.unescape(address) == URL


def test_no_page_has_a_name_that_can_be_guessed_and_old_ones_go(desktop: Desktop) -> None:
    pages: list[Path] = []
    for _ in range(2):
        desktop.open()
        pages.append(desktop.page())
    assert len({page.name for page in pages}) == 2
    assert all(len(page.name) > 32 for page in pages)
    os.utime(pages[0], (0, 0))
    desktop.open()
    assert not pages[0].exists()
    assert pages[1].exists(), "a browser may still be about to read it"


def test_where_no_page_can_be_written_nothing_is_opened(desktop: Desktop) -> None:
    desktop.state.write_text("a file in the place of the directory")
    assert not open_browser(URL, desktop.environ)
    assert not open_page("<p>one</p>", desktop.environ)


def test_a_browser_that_is_a_snap_is_given_a_page_that_it_can_read(desktop: Desktop) -> None:
    """It sees no hidden directory of its user, such as ~/.local/state, but one of its own."""
    own = desktop.path / "home" / "snap" / "fire-fox" / "common"
    own.mkdir(parents=True)
    desktop.environ |= {"DISPLAY": ":9"}
    del desktop.environ["BROWSER"]
    desktop.browser("xdg-open")
    for default, place in [
        ("fire-fox_fire-fox.desktop", own),
        ("firefox.desktop", desktop.state / "pages"),
        ("../../evil_evil.desktop", desktop.state / "pages"),
        ("absent_absent.desktop", desktop.state / "pages"),
    ]:
        program(desktop.path / "bin" / "xdg-settings", f"echo {default}")
        desktop.open()
        page = desktop.page()
        assert page.parent == place
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
    (desktop.path / "bin" / "xdg-settings").write_text("not a program")
    desktop.open()
    assert desktop.page().parent == desktop.state / "pages"


@pytest.mark.parametrize("name", ["browser.sh", "wslview"])
def test_a_browser_of_another_machine_is_given_the_address(desktop: Desktop, name: str) -> None:
    desktop.environ["BROWSER"] = str(desktop.browser(name))
    desktop.open()
    assert desktop.given() == URL


async def test_no_argument_of_a_browser_tells_the_address_of_a_sign_in(tmp_path: Path) -> None:
    """With its state and challenge another user could bring a sign-in of their own."""
    desktop = Desktop(tmp_path / "desktop")
    kept = {"EMCEEPEE_STATE_DIR": str(desktop.state), "BROWSER": desktop.environ["BROWSER"]}
    home = Home(tmp_path / "home", env=kept)
    async with protected() as place:
        home.write({"vault": place.entry()})
        process = home.start("login", "vault")
        page = await anyio.to_thread.run_sync(desktop.page)
        assert page.parent == desktop.state / "pages"
        [address] = re.findall('content="0;url=([^"]*)"', page.read_text())
        await visit(html.unescape(address))
        _, errors = await anyio.to_thread.run_sync(process.communicate)
        assert process.returncode == 0, errors
