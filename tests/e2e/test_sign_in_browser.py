"""A real browser goes through a sign-in, and its last page is looked at."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import until
from tests.e2e.sign_in_harness import protected

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]

OPTIONS = (
    # It is given a page that leads on, and would show that one without a budget of time.
    "--virtual-time-budget=60000 "
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --window-size=900,600 "
    '--host-resolver-rules="MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"'
)


def chromium(place: Path) -> str:
    """The command of a browser that leaves its last page, a picture of it and all its requests."""
    files = f"--user-data-dir={place}/profile --screenshot={place}/page.png --dump-dom"
    run = f'chromium {OPTIONS} {files} --log-net-log={place}/net.json "$1"'
    script = place / "browser"
    script.write_text(
        f"#!/bin/sh\n{run} >{place}/page.part 2>/dev/null\nmv {place}/page.part {place}/page.html\n"
    )
    script.chmod(0o755)
    return shlex.quote(str(script))


class HomeWithBrowser(Home):
    """The browser lives in this home as well, and nobody ends it: it is waited for."""

    def left_over(self) -> list[int]:
        until(lambda: super(HomeWithBrowser, self).left_over() == [], "the end of the browser")
        return super().left_over()


def requests(place: Path) -> list[dict[str, Any]]:
    events = json.loads((place / "net.json").read_text())["events"]
    found = [event["params"] for event in events if isinstance(event.get("params"), dict)]
    return [params for params in found if "url" in params and "initiator" in params]


@pytest.mark.parametrize("denies", [False, True], ids=["signed-in", "refused"])
async def test_a_real_browser_signs_in_and_ends_at_a_page_that_says_so(
    tmp_path: Path, *, denies: bool
) -> None:
    place = tmp_path / "browser"
    place.mkdir()
    home = HomeWithBrowser(
        tmp_path / "home",
        env={"EMCEEPEE_STATE_DIR": str(tmp_path / "state"), "BROWSER": chromium(place)},
    )
    async with protected() as servers:
        servers.issuer.denies = denies
        home.write({"vault": servers.entry()})
        ran = await home.run("login", "vault")
        assert ran.code == (3 if denies else 0), ran
    page = (place / "page.html").read_text()
    assert f"<h1>{'Not signed in' if denies else 'Signed in to vault'}</h1>" in page
    assert "You can close this tab." in page
    assert (place / "page.png").stat().st_size > 0
    (seen,) = servers.issuer.visits
    back = urlsplit(seen["redirect_uri"])
    own = [r["url"] for r in requests(place) if r["initiator"] == f"http://{back.netloc}"]
    assert own == [], "the page loads nothing"
