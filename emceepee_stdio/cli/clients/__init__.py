"""Clients on this machine: `install`, `uninstall`, and taking over their servers."""
