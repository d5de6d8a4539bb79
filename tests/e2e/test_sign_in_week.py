"""A week of a sign-in in a minute: tokens of seconds that rotate, and whatever happens meanwhile.

Two proxies share the tokens. They are killed, stopped and started again; the sign-in server fails,
is slow, and the network is away. Nobody is asked a second time, and no spent token is sent again.
"""

import json
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.client import LEGACY, Setting
from tests.e2e.sign_in_harness import BROWSER, Place, protected
from tests.proxy_entry import proxy_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKEN_LIFE_S = 5
ROUNDS = 16  # each kind of weather twice
WAIT_S = 60.0
CALL = {
    "name": "execute_tool",
    "arguments": {"server": "s", "tool": "echo", "args": {"message": "hello"}},
}


class Desk:
    """One client with its proxy, which may be killed and started again."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.process: anyio.abc.Process | None = None
        self.ids = 0

    async def start(self) -> None:
        self.setting.write()
        self.process = await anyio.open_process(
            [*proxy_command({}), "serve", "--config", str(self.setting.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.setting.environ(),
        )
        self.rest = b""
        info = {"name": "raw", "version": "1"}
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
        await self.ask("initialize", hello)
        await self.say({"method": "notifications/initialized"})

    async def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        await self.process.wait()
        await self.process.aclose()

    async def say(self, message: dict[str, Any]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        self.ids += 1
        await self.say({"id": self.ids, "method": method, "params": params})
        while True:
            while b"\n" not in self.rest:
                self.rest += await self.process.stdout.receive()
            line, _, self.rest = self.rest.partition(b"\n")
            message = json.loads(line)
            if message.get("id") == self.ids and "method" not in message:
                return message["result"]

    async def call(self) -> None:
        """One whose answer nobody waits for."""
        self.ids += 1
        await self.say({"id": self.ids, "method": "tools/call", "params": CALL})

    async def until_it_works(self) -> None:
        """Calls until one is answered; what fails on the way is weather."""
        with anyio.fail_after(WAIT_S):
            while True:
                result = await self.ask("tools/call", CALL)
                if result["content"][0]["text"] == "hello":
                    return
                assert "wants a person to sign in" not in result["content"][0]["text"], result
                await anyio.sleep(0.5)


class SharedSetting(Setting):
    def environ(self) -> dict[str, str]:
        return super().environ() | {"EMCEEPEE_STATE_DIR": str(self.home.parent / "state")}


@asynccontextmanager
async def desks(tmp_path: Path, place: Place) -> AsyncIterator[list[Desk]]:
    home = Home(
        tmp_path / "person",
        env={"EMCEEPEE_STATE_DIR": str(tmp_path / "state"), "BROWSER": BROWSER},
    )
    home.write({"s": place.entry()})
    (await home.run("login", "s")).well()
    made = [
        Desk(SharedSetting(home=tmp_path / name, servers={"s": place.entry()})) for name in "ab"
    ]
    for desk in made:
        await desk.start()
    try:
        yield made
    finally:
        for desk in made:
            await desk.end(signal.SIGTERM)


class Weather:
    """What happens to a desk, or to all of them."""

    def __init__(self, place: Place) -> None:
        self.issuer = place.issuer
        self.servers = (place.issuer.http, place.server.mcp.http)

    async def killed(self, desk: Desk) -> None:
        await desk.end(signal.SIGKILL)
        await desk.start()

    async def restarted(self, desk: Desk) -> None:
        await desk.end(signal.SIGTERM)
        await desk.start()

    async def stopped(self, desk: Desk) -> None:
        """The machine sleeps for a token's life."""
        assert desk.process is not None
        desk.process.send_signal(signal.SIGSTOP)
        await anyio.sleep(TOKEN_LIFE_S)
        desk.process.send_signal(signal.SIGCONT)

    async def failing(self, _desk: Desk) -> None:
        self.issuer.answers_with = [(503, {}), (200, {"error": "server_error"}), (429, {})]

    async def away(self, _desk: Desk) -> None:
        """No network: neither the sign-in nor the server is reached."""
        for server in self.servers:
            await server.stop()
        await anyio.sleep(TOKEN_LIFE_S)  # long enough that somebody misses it
        for server in self.servers:
            await server.start()

    async def ended(self, _desk: Desk) -> None:
        self.issuer.expire()

    async def slow(self, desk: Desk) -> None:
        await self._waits_for_a_token(desk)
        self.issuer.gives.set()

    async def killed_while_it_is_slow(self, desk: Desk) -> None:
        await self._waits_for_a_token(desk)
        await desk.end(signal.SIGKILL)
        self.issuer.gives.set()
        await desk.start()

    async def _waits_for_a_token(self, desk: Desk) -> None:
        self.issuer.expire()
        self.issuer.gives.clear()
        with anyio.fail_after(WAIT_S):
            while not self.issuer.held:  # a call may still meet the weather of before
                await desk.call()
                await anyio.sleep(0.5)

    @property
    def kinds(self) -> list[Callable[[Desk], Awaitable[None]]]:
        return [
            self.killed,
            self.stopped,
            self.failing,
            self.away,
            self.ended,
            self.restarted,
            self.slow,
            self.killed_while_it_is_slow,
        ]


async def test_nobody_is_asked_twice_whatever_happens(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", "7"))
    chance = random.Random(seed)
    async with protected() as place:
        issuer, weather = place.issuer, Weather(place).kinds
        issuer.token_life = TOKEN_LIFE_S
        async with desks(tmp_path, place) as both:
            for round_ in range(ROUNDS):
                await weather[round_ % len(weather)](chance.choice(both))
                async with anyio.create_task_group() as tasks:
                    for desk in both:
                        tasks.start_soon(desk.until_it_works)
        assert len(issuer.visits) == len(issuer.registrations) == 1, f"seed {seed}"
        assert issuer.refreshes >= ROUNDS // 2
        assert issuer.replays == 0
