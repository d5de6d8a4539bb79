"""Asks the keyring through a helper process, in bounded time: it may be locked, or hang.

One helper at a time, so that a locked keyring asks the person once: who comes while one is at work
is served by the next, together with all others that wait by then.
"""

from collections.abc import Iterable, Mapping, Sequence

import anyio
import msgspec

from emceepee_stdio.auth.keyring_orders import LIST_BACKENDS, KeyringAnswer, KeyringOrder
from emceepee_stdio.errors import SecretUnavailable
from emceepee_stdio.wire.helper_process import HelperProcess

__all__ = ["KeyringClient", "require"]

_HELPER = "emceepee_stdio.cli.keyring_helper"
_KILL_S = 10.0  # a killed process ends in milliseconds, unless the kernel holds it
_MAX_ANSWER_BYTES = 4 << 20  # no keyring holds as much for us


class _Wanted:
    """One who waits for secrets, and what came."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self.answer: KeyringAnswer | None = None


class KeyringClient:
    """The way to the keyring. `within` is how long it may take, in seconds."""

    def __init__(self, environ: Mapping[str, str], *, within: float) -> None:
        self._environ = environ
        self._within = within
        self._turn = anyio.Lock()
        self._waiting: list[_Wanted] = []

    def __repr__(self) -> str:
        return f"<KeyringClient {len(self._waiting)} waiting>"

    async def look_up(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these names that the keyring has."""
        wanted = _Wanted(names)
        self._waiting.append(wanted)
        async with self._turn:
            if wanted.answer is None:
                batch, self._waiting = [wanted, *self._waiting], []
                every = dict.fromkeys(name for one in batch for name in one.names)
                answer = await self._ask(KeyringOrder(get=tuple(every)))
                for one in batch:
                    one.answer = answer
        return _checked(wanted.answer or KeyringAnswer()).values

    async def change(self, order: KeyringOrder) -> KeyringAnswer:
        """Store and remove; raises where the keyring refuses."""
        async with self._turn:
            return _checked(await self._ask(order))

    async def is_absent(self) -> bool:
        """Whether there is no keyring at all; one that does not answer is there."""
        async with self._turn:
            return (await self._ask(KeyringOrder())).is_absent

    async def _ask(self, order: KeyringOrder) -> KeyringAnswer:
        helper = HelperProcess.start(
            _HELPER, order=msgspec.json.encode(order), environ=self._environ, answers=True
        )
        line = b""
        try:
            with anyio.move_on_after(self._within) as waited:
                line = await helper.answer(_MAX_ANSWER_BYTES)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_KILL_S):
                await helper.kill()
        if waited.cancelled_caught:
            return KeyringAnswer(
                problem=f"The keyring did not answer within {self._within:g} s",
                hint="It may be locked and wait for a person: unlock it, and try again.",
            )
        try:
            return msgspec.json.decode(line, type=KeyringAnswer)
        except msgspec.MsgspecError:
            return KeyringAnswer(
                problem="The helper that asks the keyring ended without an answer",
                hint=f"See which keyrings the Python package keyring finds: `{LIST_BACKENDS}`.",
            )


def require(names: Sequence[str], found: Mapping[str, str]) -> None:
    """Raises where one of these was not found."""
    missing = [name for name in names if name not in found]
    if missing:
        command = f"emceepee secrets set {missing[0]}"
        raise SecretUnavailable(
            f"The keyring has no secret {', '.join(missing)}.",
            hint=f"Store it: {command}",
            command=command,
        )


def _checked(answer: KeyringAnswer) -> KeyringAnswer:
    if answer.problem:
        raise SecretUnavailable(f"{answer.problem}.", hint=answer.hint)
    return answer
