"""Opens an address in the person's own browser.

Not by `webbrowser`, which may start a console browser on our pipes. The browser is no server of
ours: it carries no mark of ours, and nobody ends it.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping

__all__ = ["open_browser"]

_OURS = ("EMCEEPEE_OWNER", "EMCEEPEE_DEPTH")


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
