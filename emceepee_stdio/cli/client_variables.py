"""Variables that a person gives to emceepee in a client's file, where a secret is in plain text."""

from collections.abc import Mapping
from pathlib import Path

from emceepee_stdio.auth.keyring_orders import NO_KEYRING
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import secret_name, secrets_of
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.expand import keyring_reference

__all__ = ["note_given"]


def note_given(
    title: str, file: Path, variables: Mapping[str, str], *, undo: str, terminal: Terminal
) -> None:
    """Of variables that are in a client's file now; the command `undo` takes our entry out."""
    secrets = secrets_of({title: {"env": dict(variables)}})
    keys = [one.where.partition(".")[2] for one in secrets]
    if not keys:
        return
    if KeyringStorage().is_absent():
        way = f"{NO_KEYRING.problem}. Set {', '.join(keys)} where {title} is started instead."
    else:
        names = [secret_name("", key) for key in keys]
        way = with_command(
            "Keep secrets in the keyring instead, and refer to them in the configuration of "
            f"emceepee as {', '.join(map(keyring_reference, names))}",
            "\n".join(f"emceepee secrets set {name}" for name in names),
        )
    where = ", ".join(one.where for one in secrets)
    out = with_command("Then take our entry out of the file, and install it without them", undo)
    terminal.note(f"In plain text in {file}: {where}.\n{way}\n{out}")
