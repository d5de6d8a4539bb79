"""What is exposed, as it changes: on virtual time, without any server."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from trio.testing import MockClock

from emceepee_stdio.backends.interface import Kind, Seen
from emceepee_stdio.backends.lists import CatalogueRecord, added_to
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.native_surface import NativeSurface
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Environment


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


def surface_of(directory: Path, *servers: ServerConfig) -> NativeSurface:
    clock = Clock()
    runtime = Runtime(
        Config(servers=servers),
        clock=clock,
        ids=Ids(clock),
        journal=Journal.open(directory=directory, session="s", clock=clock, stderr=None),
        environment=Environment(
            environ={}, cwd=directory, home=directory, trust=directory, uniform=lambda low, _: low
        ),
    )
    return runtime.surface


class Listing:
    """A catalogue in which a server has one tool."""

    tool = ""

    def record(self, _config: ServerConfig) -> CatalogueRecord:
        tools = [{"name": self.tool, "inputSchema": {"type": "object"}}]
        seen = Seen(kind=Kind.TOOLS, items=tools, hello=None, at="T")
        return added_to(CatalogueRecord(identity="i"), seen)

    def unpinned(self, _config: ServerConfig, _record: CatalogueRecord) -> frozenset[str]:
        return frozenset()


async def test_a_server_that_changes_its_tools_all_the_time_is_told_of_once_a_second(
    tmp_path: Path,
) -> None:
    surface = surface_of(tmp_path, ServerConfig(name="s", command="x", expose=True))
    catalogue: Any = Listing()
    surface.catalogue = catalogue
    told: list[float] = []
    last: list[bytes] = []

    def on_lists(lists: Any) -> None:
        told.append(anyio.current_time())
        last.append(lists["tools"])

    surface.on_lists = on_lists
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(surface.run)
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        for n in range(200):
            catalogue.tool = f"t{n}"
            surface.recall({})
            surface.touch()
            await anyio.sleep(0.05)
        assert told[0] - began < 0.2, "the first change is told at once"
        assert 9 <= len(told) <= 11
        await anyio.sleep(2)
        assert b"s__t199" in last[-1], "what came last is not lost"
        tasks.cancel_scope.cancel()
