"""Where a client finds emceepee later, also when it was run from a runner's cache just now."""

import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from emceepee_stdio import __version__
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import EditRefused
from emceepee_stdio.config.fields import is_object

__all__ = ["is_passing", "lasting_program"]

_NAME = "emceepee"
_PACKAGE = "emceepee-stdio"
# Directories of runners that clear what they made.
_PASSING = ("archive-v0", "builds-v0", ".cache")
_INSTALL_TIMEOUT_S = 600.0  # a slow line, and some 50 packages
_QUERY_TIMEOUT_S = 30.0  # uv answers in milliseconds


def lasting_program(*, dry_run: bool, terminal: Terminal) -> list[str]:
    """How to start this very emceepee from anywhere, at any time."""
    command = _this_program()
    if not is_passing(command[0]):
        return command
    if (uv := os.environ.get("UV") or shutil.which("uv")) is None:
        terminal.note(
            f"{command[0]} is in a cache that may be cleared. To stay, install the package first, "
            f"for example with: pipx install {shlex.quote(_source())}"
        )
        return command
    return [str(_install_with(uv, dry_run=dry_run, terminal=terminal))]


def is_passing(place: str) -> bool:
    """Whether a path lies in a cache that its runner may clear."""
    return any(part in _PASSING for part in Path(place).parts)


def _this_program() -> list[str]:
    script = Path(sys.argv[0]).absolute()
    for path in (script, script.with_suffix(".exe")):
        if path.stem == _NAME and path.is_file() and (path.suffix == ".exe" or os.name == "posix"):
            return [str(path)]
    return [str(Path(sys.executable).absolute()), "-m", "emceepee_stdio"]


def _install_with(uv: str, *, dry_run: bool, terminal: Terminal) -> Path:
    """Have uv keep what `uvx` only holds in its cache; where it then is."""
    folder = Path(_run([uv, "tool", "dir", "--bin"], _QUERY_TIMEOUT_S).strip())
    program = folder / (f"{_NAME}.exe" if sys.platform == "win32" else _NAME)
    install = [uv, "tool", "install", "--quiet", _source()]
    if dry_run:
        terminal.note(f"Would run first, so that it stays: {shlex.join(install)}")
        return program
    with terminal.waiting("Installing emceepee with uv"):
        _run(install, _INSTALL_TIMEOUT_S)
    terminal.note(
        f"Installed {program}, so that it stays when uv clears its cache; "
        f"`uv tool uninstall {_PACKAGE}` removes it."
    )
    if shutil.which(_NAME) is None:
        terminal.note(f"{folder} is not on your PATH; this puts it there: uv tool update-shell")
    return program


def _run(command: list[str], timeout: float) -> str:
    shown = shlex.join(command)
    try:
        ran = subprocess.run(  # noqa: S603 - uv, which started us
            command,
            timeout=timeout,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EditRefused(f"{shown} failed: {error}", hint="Nothing was changed.") from None
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or ["it said nothing"]
        raise EditRefused(
            f"{shown} failed: {lines[-1]}",
            hint="Nothing was changed; run that command yourself to see all it says.",
        ) from None
    return ran.stdout


def _source() -> str:
    """What this emceepee was installed from: a file, a repository, or a version on an index."""
    text = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
    origin: object = json.loads(text) if text else None
    url = origin.get("url") if is_object(origin) else None
    if not (is_object(origin) and isinstance(url, str)):
        return f"{_PACKAGE}=={__version__}"
    version = origin.get("vcs_info")
    if is_object(version):
        return f"{version.get('vcs')}+{url}@{version.get('commit_id')}"
    if not url.startswith("file:"):
        return url
    path = unquote(urlsplit(url).path)
    return path.lstrip("/") if sys.platform == "win32" else path  # there it begins with a drive
