"""Putting secrets into the keyring so that they are there afterwards, or nothing has changed.

A keyring may take a value and forget it, or keep a part of it. What was stored is therefore read by
another process, and where that finds something else the keyring gets back what it had.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from emceepee_stdio.auth.keyring_orders import (
    KEYRINGS_PAGE,
    NO_KEYRING,
    KeyringAnswer,
    KeyringOrder,
)
from emceepee_stdio.auth.stored_names import StoredNames
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit_lock import alone
from emceepee_stdio.config.fixed import FixedValues
from emceepee_stdio.errors import SecretUnavailable

__all__ = ["KeyringStorage"]

_PLAIN_FILE = (
    "This keyring is a file without encryption (PlaintextKeyring of the package keyrings.alt): the "
    "secret is in plain text there. Install a keyring that encrypts, and store the secret again."
)
_VARIABLE_INSTEAD = (
    "Refer to an environment variable instead: `emceepee config add NAME -e K -- COMMAND` writes "
    f"${{K}}; set K where the client is started. Or install a keyring: {KEYRINGS_PAGE} lists them."
)


class KeyringStorage:
    """The keyring as commands use it. Each method waits until it has answered."""

    def __init__(self) -> None:
        # An event loop and processes: not for those who only want to see the help.
        from emceepee_stdio.session.keyring_client import KeyringClient  # noqa: PLC0415

        self._client = partial(KeyringClient, os.environ, within=FixedValues().keyring_s)
        self.names = StoredNames(os.environ)

    def __repr__(self) -> str:
        return f"<KeyringStorage {self.names!r}>"

    def is_absent(self) -> bool:
        """Whether this machine has no keyring that can be used. Nobody is asked to unlock one."""
        return interrupts.run(lambda: self._client().is_absent())

    def require(self) -> None:
        """Raises where there is no keyring."""
        if self.is_absent():
            raise SecretUnavailable(f"{NO_KEYRING.problem}.", hint=NO_KEYRING.hint)

    def require_for_server(self) -> None:
        """The same for a server that is to refer to it, and may refer to variables instead."""
        if self.is_absent():
            raise SecretUnavailable(f"{NO_KEYRING.problem}.", hint=_VARIABLE_INSTEAD)

    def look_up(self, names: Sequence[str]) -> dict[str, str]:
        """Those that the keyring has."""
        return interrupts.run(lambda: self._client().look_up(names)) if names else {}

    def secrets(self, names: Sequence[str]) -> dict[str, str]:
        """All of these; raises where one is not there."""
        from emceepee_stdio.session.keyring_client import require  # noqa: PLC0415 - see above

        found = self.look_up(names)
        require(names, found)
        return found

    def store(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """All of them or none; what the keyring held under these names before."""
        former = self.look_up(list(secrets))
        try:
            answer = self._change(KeyringOrder(put=dict(secrets)))
            self._check(secrets)
        except BaseException:
            self.restore(secrets, former)
            raise
        self.names.add(secrets)
        if answer.is_plain:
            Terminal().note(_PLAIN_FILE)
        return former

    @contextmanager
    def storing(self, secrets: Mapping[str, str]) -> Generator[None]:
        """They are there inside of it, and stay unless it fails."""
        with alone():  # else one that fails would take back what another has stored meanwhile
            former = self.store(secrets)
            try:
                yield
            except BaseException:
                self.restore(secrets, former)
                raise

    def restore(self, secrets: Mapping[str, str], former: Mapping[str, str]) -> None:
        """What was stored is taken back. A keyring that fails now holds more than it should."""
        new = tuple(name for name in secrets if name not in former)
        try:
            self._change(KeyringOrder(put=dict(former), remove=new))
        except SecretUnavailable:
            return
        for name in new:
            self.names.discard(name)

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        was_there = name in self.look_up([name])
        if was_there:
            self._change(KeyringOrder(remove=(name,)))
        self.names.discard(name)
        return was_there

    def _check(self, secrets: Mapping[str, str]) -> None:
        held = self.look_up(list(secrets))
        for name, value in secrets.items():
            if name not in held:
                raise SecretUnavailable(
                    f"The keyring took {name} and does not have it: it keeps nothing.",
                    hint="Choose another backend for the Python package keyring, or refer to an "
                    "environment variable instead, ${NAME}.",
                )
            if held[name] != value:
                raise SecretUnavailable(
                    f"The keyring took {name}, of {len(value)} characters, and gives back "
                    f"something else, of {len(held[name])}.",
                    hint="It may be too long for this keyring: refer to an environment variable "
                    "instead, ${NAME}.",
                )

    def _change(self, order: KeyringOrder) -> KeyringAnswer:
        return interrupts.run(lambda: self._client().change(order))
