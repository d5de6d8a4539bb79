"""Opens an address in the person's own browser, by a private page on disk that leads there.

Not by `webbrowser`, which may start a console browser on our pipes. The browser is no server of
ours: it carries no mark of ours, and nobody ends it. The serving process is given the orphans of
its servers, whom it kills, and a browser is an orphan soon. So it opens one by this module in a
process of its own, which is given that orphan instead, and stays for as long as the browser does.

Every user of the machine sees the arguments of a browser in the list of processes. So what a
browser is given is a page of ours, in a file that only its owner can read, which leads on.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from emceepee_stdio.storage.private_file import make_private, state_directory, write_new
from emceepee_stdio.wire import system

PAGE_SWITCH = "EMCEEPEE_PAGE"  # "off": no page is opened, whatever the desktop
_REMOTE = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_SANDBOXES = ("/snap/", "snapd", "flatpak")
_OURS = ("EMCEEPEE_OWNER", "EMCEEPEE_DEPTH")
_KEPT_S = 600.0  # a browser that starts for the first time is slow; a sign-in takes 5 minutes
_RANDOM_BYTES = 16
_DEFAULT_BROWSER = ("xdg-settings", "get", "default-web-browser")
_DEFAULT_BROWSER_TIMEOUT_S = 2.0  # a script that reads a few files
# These give the address to a browser of another machine or system, which cannot read our files.
_ELSEWHERE = ("browser.sh", "wslview")  # of VS Code, and of Windows' subsystem for Linux
_LEADS_ON = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>emceepee</title>
<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">
<meta http-equiv="content-security-policy" content="default-src 'none'">
<meta http-equiv="refresh" content="0;url={url}"></head>
<body><p><a href="{url}">Go on</a></p></body></html>
"""


def finds_browser(environ: Mapping[str, str]) -> bool:
    """Whether there is something that opens addresses."""
    command = _command(environ)
    if not command:
        return command is not None
    return shutil.which(command[0], path=environ.get("PATH")) is not None


def has_desktop(environ: Mapping[str, str]) -> bool:
    """Whether a page that we open is seen by the person at this machine, as far as can be told.

    Who came by SSH has a desktop elsewhere, also where one is forwarded.
    """
    if any(environ.get(name) for name in _REMOTE) or environ.get(PAGE_SWITCH) == "off":
        return False
    return _shows_windows(environ) and finds_browser(environ)


def reads_private_files(environ: Mapping[str, str]) -> bool:
    """Whether the browser opens files of ours: in a sandbox of snap or flatpak it cannot."""
    command = _command(environ)
    if system.HAS_DESKTOP or not command:
        return True
    about = shutil.which(command[0], path=environ.get("PATH")) or ""
    if command == ["xdg-open"]:
        about = _desktop_entry(environ)
    return not any(sandbox in about for sandbox in _SANDBOXES)


def _desktop_entry(environ: Mapping[str, str]) -> str:
    """That of the person's own browser, with its place; nothing if it is unknown."""
    home = environ.get("XDG_DATA_HOME") or f"{environ.get('HOME', '')}/.local/share"
    shared = environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    name = Path(_default_browser(environ)).name
    for place in (home, *shared.split(":")):
        entry = Path(place, "applications", name)
        with suppress(OSError):
            return f"{entry} {entry.read_text(errors='replace')}"
    return ""


def open_browser(url: str, environ: Mapping[str, str]) -> bool:
    """Whether something was started that opens this address, or this page of ours in a file."""
    command = _command(environ)
    if command is None:
        return False
    # No other user sees what Windows itself opens.
    is_elsewhere = not command or Path(command[0]).name in _ELSEWHERE
    is_one_time = url.startswith("http://127.0.0.1:") and not reads_private_files(environ)
    if url.startswith("file:") or is_elsewhere or is_one_time:
        return _start(command, url, environ)
    import html  # noqa: PLC0415 - its tables take 0.5 MB, and most sessions open no page

    return open_page(_LEADS_ON.format(url=html.escape(url)), environ)


def open_page(text: str, environ: Mapping[str, str]) -> bool:
    """Whether something was started that shows this page; only its owner can read it."""
    command = _command(environ)
    if command is None:
        return False
    try:
        page = _written(text, _directory(command, environ))
    except OSError:
        return False
    return _start(command, page.as_uri(), environ)


def _start(command: list[str], address: str, environ: Mapping[str, str]) -> bool:
    try:
        if not command:
            system.open_address(address)
            return True
        subprocess.Popen(  # noqa: S603 - the person's own browser, without a shell
            [*command, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in environ.items() if name not in _OURS},
        )
    except OSError:
        return False
    return True


def _written(text: str, directory: Path) -> Path:
    """A new page; those of before, which have been read, are removed."""
    make_private(directory)
    page = directory / f"emceepee-{os.urandom(_RANDOM_BYTES).hex()}.html"
    write_new(page, text.encode())
    now = page.stat().st_mtime
    for old in directory.glob("emceepee-*.html"):
        with suppress(OSError):
            if now - old.lstat().st_mtime > _KEPT_S:
                old.unlink()
    return page


def _directory(command: list[str], environ: Mapping[str, str]) -> Path:
    """Where the browser can read: one that is a snap reads no hidden directory but its own."""
    snap = _snap(command, environ) if command else None
    home = environ.get("HOME")
    if snap is not None and home is not None:
        own = Path(home, "snap", snap, "common")
        if own.is_dir():
            return own
    return page_directory(environ)


def page_directory(environ: Mapping[str, str]) -> Path:
    return state_directory(environ) / "pages"


def _snap(command: list[str], environ: Mapping[str, str]) -> str | None:
    """The snap that the browser is, by its place or by the name of its desktop entry."""
    found = Path(shutil.which(command[0], path=environ.get("PATH")) or command[0])
    if found.parts[:3] == ("/", "snap", "bin"):
        return found.name.partition(".")[0]
    if found.name != "xdg-open":
        return None
    snap, joint, _ = _default_browser(environ).partition("_")
    return snap if joint and snap.replace("-", "").isalnum() else None


def _default_browser(environ: Mapping[str, str]) -> str:
    """The name of its desktop entry, as the system tells; nothing if it does not."""
    try:
        ran = subprocess.run(  # noqa: S603 - a constant
            _DEFAULT_BROWSER,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEFAULT_BROWSER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout.decode(errors="replace").strip()


def _command(environ: Mapping[str, str]) -> list[str] | None:
    """What opens an address: none where nothing does, empty where the system itself does."""
    if system.OPENER and (chosen := environ.get("BROWSER")):
        return shlex.split(chosen.split(os.pathsep)[0].replace("%s", "")) or None
    return [*system.OPENER] if _shows_windows(environ) else None


def _shows_windows(environ: Mapping[str, str]) -> bool:
    return system.HAS_DESKTOP or any(map(environ.get, _DISPLAYS))


def _main() -> None:
    """The address comes on stdin."""
    system.adopt_orphans()
    open_browser(sys.stdin.readline().strip(), os.environ)
    system.await_children()


if __name__ == "__main__":
    _main()
