"""The names of the secrets that we put into the keyring, which cannot list them itself.

One empty file for each name: no two processes can get into each other's way.
"""

from collections.abc import Iterable, Mapping

from emceepee_stdio.auth.token_store import default_token_directory
from emceepee_stdio.config.expand import KEYRING_NAME
from emceepee_stdio.config.regular_file import make_private

__all__ = ["StoredNames"]


class StoredNames:
    """What is on record; what else the keyring has is not known here."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = default_token_directory(environ).parent / "secrets"

    def __repr__(self) -> str:
        return f"<StoredNames {len(self.all())}>"

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
