"""Which client advice is about: one that this machine has."""

from emceepee_stdio.cli.install import is_installed, locate
from emceepee_stdio.config.clients import CLIENTS, Client
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["client_here"]


def client_here() -> Client:
    """The first client that is installed; Claude Desktop where none is found."""
    found = (client for client in CLIENTS.values() if is_installed(client, locate(client)))
    usual = CLIENTS["claude-desktop"]
    try:
        return next(found, usual)
    except ConfigInvalid:  # without a home directory nobody can tell
        return usual
