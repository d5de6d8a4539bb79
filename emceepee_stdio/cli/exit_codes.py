"""What a command's exit code says to a script; docs/cli.md tells them, so they do not change."""

__all__ = ["CREDENTIALS_REFUSED", "FAILED", "SERVER_FAILED"]

FAILED = 1
# 2 is a mistake in the command line, and typer gives it.
CREDENTIALS_REFUSED = 3  # a server wants other credentials
SERVER_FAILED = 4
