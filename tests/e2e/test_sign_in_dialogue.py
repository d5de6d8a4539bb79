"""A client that can send its person to an address is asked to, and the call waits meanwhile."""

from pathlib import Path

import anyio
import httpx2
import pytest

from tests.e2e.persons import person
from tests.e2e.sign_in_harness import Place, protected


@pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
async def test_the_client_sends_its_person_to_the_sign_in_and_the_call_goes_on(
    tmp_path: Path, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with person(tmp_path, modern=modern, servers={"s": place.entry()}) as client:
            call = client.begin("echo", args={"message": "hello"})
            asked = client.asked(call)
            assert asked["mode"] == "url"
            assert "wants you to open 127.0.0.1" in asked["message"].splitlines()[0]
            page = httpx2.get(asked["url"], follow_redirects=True, timeout=60).text
            assert "Signed in to s" in page
            said = client.said_to(client.say(call, {"action": "accept"}))
            assert said.result["content"][0]["text"] == "hello"
            assert client.pending() == []

    async with protected() as place:
        await anyio.to_thread.run_sync(play, place)
    assert len(place.issuer.visits) == 1


async def test_a_person_who_declines_can_still_sign_in_later(tmp_path: Path) -> None:
    def play(place: Place) -> None:
        with person(tmp_path, modern=False, servers={"s": place.entry()}) as client:
            call = client.begin("echo", args={"message": "hello"})
            url = client.asked(call)["url"]
            said = client.said_to(client.say(call, {"action": "decline"}))
            assert "`emceepee login s`" in said.text
            assert "Signed in" in httpx2.get(url, follow_redirects=True, timeout=60).text
            task = said.text.partition('"task_id":"')[2].partition('"')[0]
            done = client.use("get_task_result", task_id=task, timeout_ms=20_000)
            assert done.result["content"][0]["text"] == "hello"

    async with protected() as place:
        await anyio.to_thread.run_sync(play, place)
