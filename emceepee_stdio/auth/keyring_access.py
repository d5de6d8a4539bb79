"""The operating system's keyring, through the package `keyring`; only a helper process loads it.

A keyring may be locked, ask the person, or hang; whoever waits for it must be able to end it. What
a backend says in its errors is not repeated, because it may quote a secret.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from emceepee_stdio.auth.token_store import default_token_directory
from emceepee_stdio.config.fields import KEYRING_NAME
from emceepee_stdio.storage.private_file import make_private
from emceepee_stdio.visible_text import shell_line

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend


# What the helper for the keyring is asked to do, and what it answers: the words between the two.
#
# Without the package keyring itself, so that the serving process can give the orders.


KEYRINGS_PAGE = "https://pypi.org/project/keyring"
# With our own interpreter: another one may have other backends.
LIST_BACKENDS = shell_line([sys.executable, "-m", "keyring", "--list-backends"])


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


_SERVICE = "emceepee"  # under which all secrets of ours stand
_LONG_CHARS = 1_000  # the shortest limit that is known is about 1,280, on Windows


def carry_out(order: KeyringOrder) -> KeyringAnswer:
    """Do it; whatever goes wrong is told in words that hold no secret."""
    backend = ""
    try:
        import keyring  # noqa: PLC0415 - takes 0.3 s, and may fail

        chosen = keyring.get_keyring()
        if _keeps_nothing(chosen):
            return NO_KEYRING
        backend = str(chosen.name)[:100]
        values, is_plain = _done(order), _is_plain_file(chosen)
        return KeyringAnswer(values=values, backend=backend, is_plain=is_plain)
    except Exception as error:  # noqa: BLE001 - backends raise whatever they like
        problem, hint = _explained(error, backend, order)
        return KeyringAnswer(backend=backend, problem=problem, hint=hint)


def _keeps_nothing(backend: "KeyringBackend") -> bool:
    """What the package chooses where it finds no keyring, or where it was switched off."""
    from keyring.backends import chainer, fail, null  # noqa: PLC0415 - see above

    if isinstance(backend, chainer.ChainerBackend):
        return not backend.backends
    return isinstance(backend, fail.Keyring | null.Keyring)


def _is_plain_file(backend: "KeyringBackend") -> bool:
    """Whether it stores without encryption: a class of this name in the package keyrings.alt."""
    first = next(iter(getattr(backend, "backends", ())), backend)  # of several, the first stores
    return "PlaintextKeyring" in {kind.__name__ for kind in type(first).__mro__}


def _done(order: KeyringOrder) -> dict[str, str]:
    import keyring  # noqa: PLC0415 - see above

    for name, value in order.put.items():
        keyring.set_password(_SERVICE, name, value)
    for name in order.remove:
        if keyring.get_password(_SERVICE, name) is not None:
            keyring.delete_password(_SERVICE, name)
    held = {name: keyring.get_password(_SERVICE, name) for name in order.get}
    return {name: value for name, value in held.items() if value is not None}


_TOO_LONG = "Some take about 1,280 at most: refer to an environment variable instead, ${NAME}."
_FAULTY = f"See which keyrings the Python package keyring finds: `{LIST_BACKENDS}`."


def _explained(error: Exception, backend: str, order: KeyringOrder) -> tuple[str, str]:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    longest = max(map(len, order.put.values()), default=0)
    if "KeyringLocked" in kinds:
        return f"The keyring ({backend}) is locked", "Unlock it, and try again."
    if longest > _LONG_CHARS:
        fact = f"The keyring ({backend}) did not take a value of {longest} characters"
        return fact, _TOO_LONG
    where = f" ({backend})" if backend else ""
    return f"The keyring{where} cannot be used: {type(error).__name__}", _FAULTY


# The names of the secrets that we put into the keyring, which cannot list them itself.
#
# One empty file for each name: no two processes can get into each other's way.


class StoredNames:
    """What is on record; what else the keyring has is not known here."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = default_token_directory(environ).parent / "secrets"

    def all(self) -> list[str]:
        try:
            found = [path.name for path in self._directory.iterdir()]
        except OSError:
            return []
        return sorted(name for name in found if KEYRING_NAME.fullmatch(name))

    def add(self, names: Iterable[str]) -> None:
        make_private(self._directory)
        for name in names:
            (self._directory / name).touch()

    def discard(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)
