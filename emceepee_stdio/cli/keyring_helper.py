"""The helper process for the keyring: `python -m emceepee_stdio.cli.keyring_helper`.

The order is one line of JSON on stdin, the answer one line on stdout. It ends when whoever started
it is gone. Programs that a keyring starts inherit neither pipe.
"""

import os
import threading
from io import BufferedReader, BufferedWriter, FileIO

import msgspec

from emceepee_stdio.auth.keyring_access import KeyringOrder, carry_out
from emceepee_stdio.wire.own_process import protect_memory


def main() -> None:
    protect_memory()
    orders, answers = BufferedReader(_taken(0)), _taken(1)
    order = msgspec.json.decode(orders.readline(), type=KeyringOrder)
    threading.Thread(target=_end_with_owner, args=(orders,), daemon=True).start()
    with BufferedWriter(answers) as out:
        out.write(msgspec.json.encode(carry_out(order)) + b"\n")


def _taken(descriptor: int) -> FileIO:
    """The pipe under another number, which no child inherits; nothing is left in its place."""
    taken = FileIO(os.dup(descriptor), "wb" if descriptor else "rb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return taken


def _end_with_owner(orders: BufferedReader) -> None:
    orders.read()
    os._exit(1)


if __name__ == "__main__":
    main()
    # Not by returning: a thread may still wait for stdin.
    os._exit(0)
