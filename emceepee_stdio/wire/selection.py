"""Runs jq programs of models on results, in a helper process of this session.

The helper (`jq_helper`) starts at the first program and stays. It runs one program at a time,
within its limits. It is killed when a program takes too long, and when its call was cancelled; the
next program starts another.
"""

from collections.abc import Mapping

import anyio
import anyio.to_thread
import msgspec
from msgspec import Raw

from emceepee_stdio.errors import InvalidSelect
from emceepee_stdio.foreign_json import opened
from emceepee_stdio.jq_helper import LIMIT_S, MEMORY_BYTES, OUTPUT_BYTES
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.helper_process import HelperProcess

_MODULE = "emceepee_stdio.jq_helper"
# What an interpreter may need to start; the helper removes it before it loads a program.
_ENVIRONMENT = ("HOME", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "SYSTEMROOT")
_START_S = 10.0  # a tenth of a second on a quiet machine
_END_S = 3.0  # it is killed, so only the kernel is waited for
_MAX_PROGRAM_CHARS = 10_000
_FRAME_BYTES = 4_000  # of an answer, around its value


class Selected(msgspec.Struct, frozen=True):
    """What a program gave, as JSON, and in words what it was given."""

    value: Raw = Raw(b"null")
    error: str = ""
    about: str = ""


class Selection:
    """The helper of one session."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {name: environ[name] for name in _ENVIRONMENT if name in environ}
        self._helper: HelperProcess | None = None
        self._turn = anyio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the helper that waits for a program."""
        return None if self._helper is None else self._helper.pid

    async def stop(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            await _end(helper)

    async def run(self, program: str, text: str | None = None) -> Selected:
        """What it gives of a text; without one, raise unless it is a program."""
        if len(program) > _MAX_PROGRAM_CHARS or "\0" in program:
            raise InvalidSelect(f"A program has at most {_MAX_PROGRAM_CHARS} characters, none NUL.")
        given = None if text is None else text.encode(errors="replace")
        size = {} if given is None else {"bytes": len(given)}
        order = to_json({"program": program, **size})
        async with self._turn:
            line = await self._exchange(order, given)
        found = opened(line, Selected)
        if found is None:
            raise InvalidSelect("jq gave what cannot be read; it may be nested too deeply.")
        if found.error:
            about = f". It was given {found.about}." if found.about else ""
            raise InvalidSelect(f"{found.error.strip()}{about}")
        return found

    async def _exchange(self, order: bytes, text: bytes | None) -> bytes:
        """Send it, and wait for the answer, in threads: either may block."""
        helper = self._helper or await self._started()
        self._helper = None  # until it has answered, it is not to be used again
        try:
            with anyio.move_on_after(LIMIT_S) as time:
                message = order if text is None else b"%b\n%b" % (order, text)
                await anyio.to_thread.run_sync(helper.send, message, abandon_on_cancel=True)
                line = await helper.answer(OUTPUT_BYTES + _FRAME_BYTES, last=False)
                if line.endswith(b"\n"):
                    self._helper = helper
                    return line
        finally:
            if self._helper is None:
                with anyio.move_on_after(_END_S, shield=True):
                    await _end(helper)
        if time.cancelled_caught:
            raise InvalidSelect(f"The program took longer than {LIMIT_S:g} s.")
        raise InvalidSelect(
            f"jq ended without an answer: a program may take {MEMORY_BYTES >> 20} MB of memory."
        )

    async def _started(self) -> HelperProcess:
        helper = HelperProcess.start(_MODULE, order=b"", environ=self._environ, answers=True)
        line = b""
        try:
            with anyio.move_on_after(_START_S):
                line = await helper.answer(_FRAME_BYTES, last=False)
        finally:
            if not line:
                with anyio.move_on_after(_END_S, shield=True):
                    await _end(helper)
        if not line:
            raise InvalidSelect(
                "jq does not start here, so nothing can be selected.",
                hint="Call again without select, and read the result by pages.",
            )
        return helper


async def _end(helper: HelperProcess) -> None:
    await helper.kill()
    await helper.answer(1)  # closes the pipe, which has ended
