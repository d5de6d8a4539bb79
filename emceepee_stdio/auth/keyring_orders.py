"""What the helper for the keyring is asked to do, and what it answers: the words between the two.

Without the package keyring itself, so that the serving process can give the orders.
"""

from msgspec import Struct

__all__ = ["KeyringAnswer", "KeyringOrder"]


class KeyringOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to store, to remove and to look up, in this order."""

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

    def __repr__(self) -> str:
        return f"<KeyringAnswer {list(self.values)} {self.problem}>"
