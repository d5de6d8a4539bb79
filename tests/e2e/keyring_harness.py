"""A home with a keyring of its own: the real package keyring, with a backend for tests."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.cli_harness import Home
from tests.e2e.client import Setting
from tests.peers import SERVERS


def keyring_environ(home: Path, backend: str = "FileKeyring") -> dict[str, str]:
    """What makes the package keyring use that backend; one with a dot is not ours."""
    chosen = backend if "." in backend else f"keyring_backends.{backend}"
    return {
        "PYTHON_KEYRING_BACKEND": chosen,
        "PYTHONPATH": str(SERVERS),
        "KEYRING_FILE": str(home / "keyring.json"),
    }


class KeyringHome(Home):
    """Commands in a home, and a proxy beside them, with the same keyring."""

    def __init__(self, path: Path, backend: str = "FileKeyring") -> None:
        super().__init__(path)
        path.mkdir(parents=True, exist_ok=True)
        self.use(backend)

    def use(self, backend: str) -> None:
        state = {"EMCEEPEE_STATE_DIR": str(self.path / "state")}
        self.env = keyring_environ(self.path, backend) | state

    @property
    def file(self) -> Path:
        return self.path / "keyring.json"

    @property
    def held(self) -> dict[str, str]:
        """What the keyring holds of ours, by name."""
        held = json.loads(self.file.read_text()) if self.file.exists() else {}
        return {name.removeprefix("emceepee/"): value for name, value in held.items()}

    def hold(self, **secrets: str) -> None:
        held = {f"emceepee/{name}": value for name, value in {**self.held, **secrets}.items()}
        self.file.write_text(json.dumps(held))

    def asked(self) -> list[str]:
        """Which names were looked up."""
        path = self.file.with_suffix(".asked")
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1] for line in lines]

    def proxy(self, servers: dict[str, Any], **fixed: float) -> Setting:
        made = Setting(home=self.path, servers=servers, fixed=fixed)
        made.environ = lambda: Setting.environ(made) | self.env  # type: ignore[method-assign]
        return made
