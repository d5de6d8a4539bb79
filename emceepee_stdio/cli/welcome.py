"""What a person sees who starts the proxy at a terminal, where there is no client to serve."""

from emceepee_stdio.cli.client_here import client_here
from emceepee_stdio.cli.install import registered_in
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import CLIENTS

__all__ = ["welcome"]


def welcome() -> None:
    """Say what this is, and the way to a client that uses it."""
    terminal = Terminal()
    client = client_here().key
    others = ", ".join(key for key in CLIENTS if key != client)
    terminal.line("emceepee is an MCP proxy: one server for your client, any number behind it.")
    terminal.line("Your client starts it by itself; at a terminal there is nothing to serve.")
    terminal.line()
    terminal.line(f"  {f'emceepee install {client}':<37} register it in your client")
    terminal.line(
        f"  {f'emceepee config import {client}':<37} take over the servers you have there"
    )
    terminal.line("  emceepee config add NAME -- COMMAND   add another server")
    terminal.line("  emceepee doctor                       see whether all of it works")
    terminal.line("  emceepee demo                         watch it at work, in seconds")
    terminal.line()
    terminal.line(f"Other clients: {others}.")
    titles = registered_in()
    terminal.line(f"Registered in: {', '.join(titles) or 'none yet'}.")
    terminal.line("All commands: emceepee --help")
