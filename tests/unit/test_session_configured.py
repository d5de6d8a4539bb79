"""Following the file where looking itself fails, or there is nothing new to see."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.config.load import Source
from emceepee_stdio.config.settings import Config
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Environment
from emceepee_stdio.wire.process import StopTimes

# The file is looked at in a thread, which virtual time does not wait for.
EVERY = 0.001
WAIT_S = 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Looked(Source):
    """Counts the looks at the file; the test chooses which of them fail."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, environ={})
        self.looks = 0
        self.fails: Callable[[int], bool] = lambda _: False
        self._looked = anyio.Event()

    def stamp(self) -> tuple[int, ...] | None:
        anyio.from_thread.run_sync(self._note)
        if self.fails(self.looks):
            raise LookupError(f"look {self.looks}")
        return super().stamp()

    def _note(self) -> None:
        self.looks += 1
        self._looked.set()
        self._looked = anyio.Event()

    async def again(self, times: int = 3) -> None:
        """Wait until it was looked at so often from now on."""
        enough = self.looks + times
        with anyio.fail_after(WAIT_S):
            while self.looks < enough:
                await self._looked.wait()


def write(file: Path, *names: str) -> None:
    servers = {name: {"command": "/nowhere", "lazy": True} for name in names}
    file.write_text(json.dumps({"mcpServers": servers}))


@asynccontextmanager
async def following(source: Looked, config: Config, directory: Path) -> AsyncGenerator[Runtime]:
    clock = Clock()
    ids = Ids(clock)
    journal = Journal.open(directory=directory / "logs", session="s", clock=clock, stderr=None)
    runtime = Runtime(
        config,
        clock=clock,
        ids=ids,
        journal=journal,
        environment=Environment(
            environ={}, cwd=directory, home=directory, trust=directory, uniform=lambda low, _: low
        ),
        source=source,
        stamp=Source.stamp(source),
    )
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(runtime.run)
            await runtime.configured.start(runtime.group())
            watch = runtime.configured.watch
            tasks.start_soon(lambda: watch(runtime.group(), every=EVERY))
            yield runtime
            await runtime.stop(StopTimes(term=0, kill=0))
            tasks.cancel_scope.cancel()
    finally:
        journal.close()


def recorded(directory: Path, event: str) -> list[dict[str, Any]]:
    (path,) = (directory / "logs").iterdir()
    lines = map(json.loads, path.read_text().splitlines())
    return [line["data"] for line in lines if line["event"] == event]


def told(runtime: Runtime) -> list[str]:
    return [event.type for event in runtime.session.state.events.since(0)]


async def test_a_look_that_fails_is_noted_and_the_next_ones_go_on(tmp_path: Path):
    file = tmp_path / "config.json"
    write(file, "a")
    source = Looked(file)
    async with following(source, source.read(), tmp_path) as runtime:
        failing = [source.looks + 2, source.looks + 3]
        source.fails = failing.__contains__
        await source.again(6)
        assert runtime.servers.names() == ["a"]
        write(file, "a", "b")
        await source.again()
        assert runtime.servers.names() == ["a", "b"]
    errors = [data["error"] for data in recorded(tmp_path, "unexpected_error")]
    assert errors == [f"LookupError('look {look}')" for look in failing]


async def test_a_file_that_is_broken_from_the_start_is_not_complained_about_at_every_look(
    tmp_path: Path,
):
    file = tmp_path / "config.json"
    file.write_text("{")
    source = Looked(file)
    async with following(source, Config(), tmp_path) as runtime:
        await source.again(6)
        assert told(runtime) == [], "whoever started the proxy has said it"
        file.write_text("{{")
        await source.again(6)
        assert told(runtime) == ["config_rejected"]
    assert len(recorded(tmp_path, "config_invalid")) == 1
