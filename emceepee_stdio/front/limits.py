"""How long each client waits for an answer before it gives up on it.

Clients tell their name and nothing of their patience; these are the ones that were seen to wait
longer than most. Progress does not extend the time.
"""

from collections.abc import Mapping

__all__ = ["ceiling_ms"]

# A minute less than the 300 s that they wait at least.
_KNOWN_CEILINGS_MS = {"codex": 240_000, "gemini": 240_000}


def ceiling_ms(client: str, *, default: int, configured: Mapping[str, int]) -> int:
    """The longest wait for this client: as configured for its name, as known, else the default."""
    name = client.lower()
    for known, ceiling in (*configured.items(), *_KNOWN_CEILINGS_MS.items()):
        if known.lower() in name:
            return ceiling
    return default
