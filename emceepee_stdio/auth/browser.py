"""Opens an address in the person's own browser.

Not by `webbrowser`, which may start a console browser on our pipes. The browser is no server of
ours: it carries no mark of ours, and nobody ends it. The serving process is given the orphans of
its servers, whom it kills, and a browser is an orphan soon. So it opens one by this module in a
process of its own, which is given that orphan instead, and stays for as long as the browser does.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

_OURS = ("EMCEEPEE_OWNER", "EMCEEPEE_DEPTH")
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h


def finds_browser(environ: Mapping[str, str]) -> bool:
    """Whether there is something that opens addresses."""
    if sys.platform == "win32":
        return True
    command = _command(environ)
    return command is not None and shutil.which(command[0], path=environ.get("PATH")) is not None


def open_browser(url: str, environ: Mapping[str, str]) -> bool:
    """Whether something was started that opens it."""
    if sys.platform == "win32":
        os.startfile(url)  # noqa: S606 - an http(s) address, checked before
        return True
    command = _command(environ)
    if command is None:
        return False
    try:
        subprocess.Popen(  # noqa: S603 - the person's own browser, without a shell
            [*command, url],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in environ.items() if name not in _OURS},
        )
    except OSError:
        return False
    return True


def _command(environ: Mapping[str, str]) -> list[str] | None:
    if chosen := environ.get("BROWSER"):
        return shlex.split(chosen.split(os.pathsep)[0].replace("%s", "")) or None
    if sys.platform == "darwin":
        return ["open"]
    has_display = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    return ["xdg-open"] if has_display else None


def _adopt_browser() -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not for who only looks whether there is a browser

        with suppress(OSError, AttributeError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _main() -> None:
    """The address comes on stdin."""
    _adopt_browser()
    open_browser(sys.stdin.readline().strip(), os.environ)
    with suppress(ChildProcessError):
        while sys.platform != "win32":
            os.waitpid(-1, 0)


if __name__ == "__main__":
    _main()
