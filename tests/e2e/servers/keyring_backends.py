"""Keyrings for tests, chosen with PYTHON_KEYRING_BACKEND as any other: each behaves in one way."""

import json
import os
import signal
from pathlib import Path
from typing import ClassVar

from keyring import errors
from keyring.backend import KeyringBackend

LIMIT = 1_280


class FileKeyring(KeyringBackend):
    """Keeps secrets in the file that KEYRING_FILE names, and counts who asks."""

    priority = 1

    @property
    def _path(self) -> Path:
        return Path(os.environ["KEYRING_FILE"])

    def _read(self) -> dict[str, str]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def _write(self, held: dict[str, str]) -> None:
        self._path.write_text(json.dumps(held))

    def get_password(self, service: str, username: str) -> str | None:
        with self._path.with_suffix(".asked").open("a") as asked:
            asked.write(f"{os.getpid()} {username}\n")
        return self._read().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._write({**self._read(), f"{service}/{username}": password})

    def delete_password(self, service: str, username: str) -> None:
        held = self._read()
        if held.pop(f"{service}/{username}", None) is None:
            raise errors.PasswordDeleteError(username)
        self._write(held)


class PlaintextKeyring(FileKeyring):
    """Has the name by which the one of the package keyrings.alt is known."""


class LockedKeyring(FileKeyring):
    def get_password(self, service: str, username: str) -> str | None:
        raise errors.KeyringLocked(f"locked, and {self._read()} is in it")


class LockableKeyring(FileKeyring):
    """Locked as long as there is a file beside that of the secrets."""

    def get_password(self, service: str, username: str) -> str | None:
        if self._path.with_suffix(".locked").exists():
            raise errors.KeyringLocked("locked")
        return super().get_password(service, username)


class HangingKeyring(FileKeyring):
    """Waits for a person who never comes."""

    def get_password(self, service: str, username: str) -> str | None:
        self._path.with_suffix(".hangs").touch()
        while True:
            signal.pause()


class MemoryKeyring(FileKeyring):
    """Forgets everything with its process."""

    held: ClassVar[dict[str, str]] = {}

    def _read(self) -> dict[str, str]:
        return self.held

    def _write(self, held: dict[str, str]) -> None:
        MemoryKeyring.held = held


class LimitedKeyring(FileKeyring):
    """Refuses what is too long, and quotes it, as bad manners have it."""

    def set_password(self, service: str, username: str, password: str) -> None:
        if len(password) > LIMIT:
            raise errors.PasswordSetError(f"too long: {password}")
        super().set_password(service, username, password)


class CuttingKeyring(FileKeyring):
    """Keeps the beginning of what is too long, without a word."""

    def set_password(self, service: str, username: str, password: str) -> None:
        super().set_password(service, username, password[:LIMIT])


class MeddlingKeyring(FileKeyring):
    """While a secret is stored, another program writes the file that MEDDLE_WITH names."""

    def set_password(self, service: str, username: str, password: str) -> None:
        super().set_password(service, username, password)
        file = Path(os.environ["MEDDLE_WITH"])
        file.write_text(f"// meddled\n{file.read_text()}")
