"""What a command's exit code says to a script; docs/cli.md tells them, so they do not change."""

__all__ = ["CREDENTIALS_REFUSED", "FAILED", "SERVER_FAILED", "USAGE"]

FAILED = 1
USAGE = 2  # a mistake in the command line; mostly it is typer that gives it
CREDENTIALS_REFUSED = 3  # a server wants other credentials
SERVER_FAILED = 4
