"""Where a program keeps what it remembers between its runs."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["state_directory"]


def state_directory(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place."""
    if chosen := environ.get("EMCEEPEE_STATE_DIR"):
        return Path(chosen).expanduser()
    from platformdirs import user_state_path  # noqa: PLC0415 - often not needed

    return user_state_path("emceepee", appauthor=False)
