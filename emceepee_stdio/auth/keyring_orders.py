"""What the helper for the keyring is asked to do, and what it answers: the words between the two.

Without the package keyring itself, so that the serving process can give the orders.
"""

import shlex
import sys

from msgspec import Struct

__all__ = ["KEYRINGS_PAGE", "LIST_BACKENDS", "NO_KEYRING", "KeyringAnswer", "KeyringOrder"]

KEYRINGS_PAGE = "https://pypi.org/project/keyring"
# With our own interpreter: another one may have other backends.
LIST_BACKENDS = shlex.join([sys.executable, "-m", "keyring", "--list-backends"])


class KeyringOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to store, to remove and to look up, in this order.

    An empty one only tells whether there is a keyring: a locked one asks nobody for it.
    """

    put: dict[str, str] = {}
    remove: tuple[str, ...] = ()
    get: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<KeyringOrder {[*self.put, *self.remove, *self.get]}>"


class KeyringAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found, without the names that the keyring does not have; or why nothing was done."""

    values: dict[str, str] = {}
    backend: str = ""
    problem: str = ""
    hint: str = ""
    is_absent: bool = False  # there is no keyring, not even a locked one
    is_plain: bool = False  # the keyring is a file without encryption

    def __repr__(self) -> str:
        return f"<KeyringAnswer {list(self.values)} {self.problem}>"


NO_KEYRING = KeyringAnswer(
    problem="This machine has no keyring that can be used",
    hint="Refer to an environment variable: with `emceepee config edit`, write ${NAME} in place of "
    "the value, and set NAME where the client is started. Or install a keyring: "
    f"{KEYRINGS_PAGE} lists them.",
    is_absent=True,
)
