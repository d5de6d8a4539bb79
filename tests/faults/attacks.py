"""What one server does to harm the others: floods, what is slow to read, forks, stolen sockets."""

import signal
from random import Random
from typing import Any

from tests.faults import processes
from tests.faults.caller import Caller, word
from tests.faults.steps import COMMANDS, Step

# How many, and of how many bytes each.
_SIZES = ((200, 20_000), (60, 200_000), (20, 2 << 20))
_LARGE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("notify", {}),
    ("log", {"level": "warning"}),
    ("ping", {}),
)
# Forking on in a group of its own without a mark is for the end: until then nothing would stop it.
_WAYS_TO_HIDE = (("forks",), ("left", "forks"), ("unmarked", "left"))
EVERY_WAY = ("unmarked", "left", "forks")

_HELD_ANSWERS = 600
_MOST_SOCKETS = 300  # every URL has its calls, and eight for answers


class Attacks(Caller):
    """Carries them out."""

    async def _flood(self, step: Step, random: Random) -> None:
        number = random.choice((10, 100, 1000))
        await self._follow(await self._execute(step.server, "notify", n=number))

    async def _flood_logs(self, step: Step, random: Random) -> None:
        number = random.choice((10, 100, 1000))
        tool, args = random.choice(
            (("log", {"level": "warning"}), ("stderr", {"text": f"a line of {step.number}"}))
        )
        await self._follow(await self._execute(step.server, tool, n=number, **args))

    async def _flood_large(self, step: Step, random: Random) -> None:
        """Up to 40 MB in large messages; the text of logs is nearly a secret of that server."""
        number, size = random.choice(_SIZES)
        tool, args = random.choice(_LARGE)
        await self._follow(await self._execute(step.server, tool, n=number, size=size, **args))

    async def _slow_to_read(self, step: Step, random: Random) -> None:
        """A great many empty lines, or, behind a URL, a few bytes that would become as many."""
        number, packed = random.choice((10_000, 300_000)), random.random() < 0.5
        await self._follow(await self._execute(step.server, "blank_lines", n=number, packed=packed))

    async def _grandchild(self, step: Step, random: Random) -> None:
        """A server leaves something running behind, in its group or out of it."""
        self.spawned_on.add(step.server)
        args = {"seconds": 300, "escape": random.random() < 0.5}
        await self._follow(await self._execute(step.server, "spawn", **args))
        if random.random() < 0.5:
            await self._signal(step.server, signal.SIGKILL)

    async def _fork(self, step: Step, random: Random) -> None:
        """A descendant forks every millisecond, or hides from everything but its reaper."""
        self.spawned_on.add(step.server)
        where = str(self._proxy.home / f"{processes.HIDDEN}{step.number}")
        how = list(random.choice(_WAYS_TO_HIDE))
        await self._follow(await self._execute(step.server, "hide", where=where, how=how))
        if random.random() < 0.5:
            await self._signal(step.server, signal.SIGKILL)

    async def _steal(self, step: Step, random: Random) -> None:
        """It asks again and again, and takes none of our answers: others still get sockets."""
        await self._follow(await self._execute(step.server, "hold_answers", n=_HELD_ANSWERS))
        sockets = processes.descriptors(self._proxy.pid)["socket"]
        if sockets > _MOST_SOCKETS:
            self._proxy.model.blame("one server takes the descriptors", f"{sockets} sockets")
        other = random.choice(COMMANDS)
        await self._follow(await self._execute(other, "echo", message=word(step)))
        await self._proxy.call("reconnect_server", name=step.server)
