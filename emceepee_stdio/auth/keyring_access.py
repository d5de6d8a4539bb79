"""The keyring of the person, by the package of that name: for a helper process alone.

A keyring may be locked, ask the person, or hang; whoever waits for it must be able to end it. What
a backend says in its errors is not repeated, because it may quote a secret.
"""

from typing import TYPE_CHECKING

from emceepee_stdio.auth.keyring_orders import (
    LIST_BACKENDS,
    NO_KEYRING,
    KeyringAnswer,
    KeyringOrder,
)

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

__all__ = ["carry_out"]

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
