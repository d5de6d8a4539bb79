"""A process that hides from whoever wants to end it with the server that started it.

Usage: descendant.py FILE [unmarked] [left] [forks]

`unmarked` clears its environment, `left` leaves its group and its parent, `forks` goes on in a new
process every millisecond. It writes its group and the number of its forks to FILE. One that does
not fork ends by itself after five minutes.
"""

import os
import sys
import time
from pathlib import Path


def main(where: str, *how: str) -> None:
    if "unmarked" in how and "EMCEEPEE_OWNER" in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {})
    if "left" in how:
        os.setsid()
        if os.fork():
            os._exit(0)
    forks = 0
    _tell(where, forks)
    while "forks" in how:
        time.sleep(0.001)
        forks += 1
        if os.fork():
            os._exit(0)
        _tell(where, forks)
    time.sleep(300)


def _tell(where: str, forks: int) -> None:
    new = Path(where + ".new")
    new.write_text(f"{os.getpgrp()} {forks}")
    new.rename(where)


if __name__ == "__main__":
    main(*sys.argv[1:])
