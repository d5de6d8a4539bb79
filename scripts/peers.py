"""Install the third-party MCP peers that the end-to-end tests drive, into `.cache/peers/`.

Usage: python scripts/peers.py [tests|slow|bundle|bench] [--check] [--require-npm]

The pins are in `tests/peers/`. One of them is the source of the mcp SDK, for its example servers
and the official schemas. `slow` stands for what the slow tests need beside them: the official
conformance suite with a Node.js that it accepts (x86-64 Linux alone has one on npm; elsewhere the
one on PATH is taken), the hosts that a scripted model drives (1.3 GB), uv, our own dependencies in
the lowest versions that `pyproject.toml` allows, and what packs our bundle for Claude Desktop;
`bundle` stands for that last one alone. `bench` stands for the proxies
that the benchmarks measure beside ours; they are pinned in `bench/peers.txt`, and no test needs
them.

Each peer is installed into a folder beside its place and renamed into it when whole, so what is
there is complete; a stamp inside holds a hash of its pins, so a second run does nothing and needs
no network. Two runs at once take turns (on POSIX).

Console scripts of the Python peers name the folder they were installed in: start these peers with
`python -m`, as `tests/peers` does.
"""

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tests" / "peers"
CACHE = ROOT / ".cache" / "peers"
COMMAND = "python scripts/peers.py"

NPM = "npm"
PYTHONS = ("py-mcp1", "py-servers", "py-old")
SDK_SOURCE = "mcp-sdist"
APPS = "npm-apps"
PEERS = (NPM, APPS, *PYTHONS, SDK_SOURCE)
SUITE = "npm-suite"
HOSTS = "npm-hosts"
BUNDLE = "npm-bundle"
UV = "py-uv"
LOWEST = "py-lowest"
SLOW = (SUITE, HOSTS, BUNDLE, UV, LOWEST)
BENCH = "py-bench"
NPM_PEERS = {
    NPM: PINS,
    APPS: PINS / "apps",
    SUITE: PINS / "suite",
    HOSTS: PINS / "hosts",
    BUNDLE: PINS / "bundle",
}


def command_for(peer: str) -> str:
    """What installs a peer."""
    of = " bench" if peer == BENCH else " slow" if peer in SLOW else ""
    return f"{COMMAND}{of}"


def folder(peer: str) -> Path:
    """Where a peer is, once installed."""
    return CACHE / peer


def python_of(place: Path) -> Path:
    """The interpreter of the virtual environment at `place`."""
    return place / "Scripts" / "python.exe" if os.name == "nt" else place / "bin" / "python"


def is_installed(peer: str) -> bool:
    """Whether the peer is there, whole, and of the versions now pinned."""
    try:
        return (folder(peer) / ".stamp").read_text() == _stamp(peer)
    except FileNotFoundError:
        return False


def _pin_files(peer: str) -> tuple[Path, ...]:
    if pins := NPM_PEERS.get(peer):
        return (pins / "package.json", pins / "package-lock.json")
    if peer == BENCH:
        return (ROOT / "bench" / "peers.txt",)
    if peer == LOWEST:
        return (ROOT / "pyproject.toml",)
    return (PINS / f"{peer}.txt",)


def _stamp(peer: str) -> str:
    digest = hashlib.sha256()
    for path in _pin_files(peer):
        digest.update(path.read_bytes())
    if peer not in NPM_PEERS:
        # A virtual environment belongs to the interpreter it was made with.
        digest.update(f"{sys.version_info[:2]} {sys.base_prefix}".encode())
    return digest.hexdigest()


def _install_npm(place: Path, peer: str) -> None:
    npm = str(shutil.which("npm"))
    for path in _pin_files(peer):
        shutil.copy(path, place)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run([npm, "ci", *options], cwd=place, check=True, stdout=sys.stderr)


def _install_python(place: Path, pins: Path) -> None:
    venv.create(place, symlinks=os.name != "nt", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
    install = ["--python", python_of(place), "install", "--requirement", pins]
    subprocess.run([*pip, *install], check=True, stdout=sys.stderr)


def _install_lowest(place: Path, project: Path) -> None:
    wanted = tomllib.loads(project.read_text())["project"]["dependencies"]
    pins = place / "lowest.txt"
    pins.write_text("\n".join(re.sub("[>~]=", "==", line, count=1) for line in wanted))
    _install_python(place, pins)


def _install_source(place: Path, pins: Path) -> None:
    """The source distribution as it is, of which nothing is built or installed."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download"]
    options = ["--no-deps", "--no-binary=:all:", "--dest", place, "--requirement", pins]
    # The build backend, which pip asks for the name of the package, comes as a wheel.
    subprocess.run([*pip, *options], check=True, stdout=sys.stderr)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(place, filter="data")
    archive.unlink()
    (folder_inside,) = place.iterdir()
    folder_inside.rename(place / "source")


def _install(peer: str) -> None:
    # A fresh name each time: what an interrupted run started may still be writing to its own.
    for leftover in CACHE.glob(".new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=f".new-{peer}-", dir=CACHE))
    if peer in NPM_PEERS:
        _install_npm(new, peer)
    elif peer == SDK_SOURCE:
        _install_source(new, *_pin_files(peer))
    elif peer == LOWEST:
        _install_lowest(new, *_pin_files(peer))
    else:
        _install_python(new, *_pin_files(peer))
    (new / ".stamp").write_text(_stamp(peer))
    shutil.rmtree(folder(peer), ignore_errors=True)
    new.rename(folder(peer))


@contextlib.contextmanager
def _our_turn() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _wanted(of: str, *, require_npm: bool) -> tuple[str, ...] | None:
    """The peers to have, or None when npm is required and not there."""
    wanted = {"tests": PEERS, "slow": SLOW, "bundle": (BUNDLE,), "bench": (BENCH,)}[of]
    if not NPM_PEERS.keys() & set(wanted) or (shutil.which("node") and shutil.which("npm")):
        return wanted
    if require_npm:
        _say("node and npm are required here and not on PATH: install Node.js 20 or newer.")
        return None
    _say("The npm peers are left out: node and npm are not on PATH. Tests that need them skip.")
    return tuple(peer for peer in wanted if peer not in NPM_PEERS)


def _install_missing(wanted: tuple[str, ...]) -> int:
    with _our_turn():
        for peer in wanted:
            if is_installed(peer):
                continue
            _say(f"Installing {peer} …")
            try:
                _install(peer)
            except (OSError, subprocess.CalledProcessError) as error:
                _say(f"{peer} could not be installed: {error}")
                return 1
    return 0


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Install the peers of the tests, of the slow tests, or of the benchmarks."
    )
    parser.add_argument(
        "of", nargs="?", choices=("tests", "slow", "bundle", "bench"), default="tests"
    )
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    parser.add_argument(
        "--require-npm",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="fail when node or npm is missing (the default where CI=true)",
    )
    options = parser.parse_args()
    wanted = _wanted(options.of, require_npm=options.require_npm)
    if wanted is None:
        return 1
    missing = tuple(peer for peer in wanted if not is_installed(peer))
    if options.check:
        for peer in missing:
            _say(f"{peer} is missing or not of the pinned versions; run: {command_for(peer)}")
        return 1 if missing else 0
    return _install_missing(missing) if missing else 0


if __name__ == "__main__":
    sys.exit(main())
