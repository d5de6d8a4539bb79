"""What is published: a wheel and an sdist that hold what they need, install and run.

The environment that a wheel is installed into has its declared dependencies and nothing else, taken
from ours, so that nothing is fetched.
"""

import contextlib
import email.parser
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Generator, Mapping, Sequence
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import emceepee_stdio
from scripts.peers import python_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".cache"
WAIT_S = 100
CHANGED = "9.8.7"

pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def our_turn() -> Generator[None]:
    CACHE.mkdir(exist_ok=True)
    with (CACHE / ".builder.lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ran(
    command: Sequence[object],
    *,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    said: str = "",
) -> str:
    """What a command said, if it went well."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=cwd,
        env=env,
        input=said,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def builder() -> Path:
    """An interpreter that has the build backend: ours, or one made once and kept."""
    if importlib.util.find_spec("hatchling") is not None:
        return Path(sys.executable)
    place = CACHE / "builder"
    stamp = place / ".whole"
    with our_turn():
        if not stamp.exists():
            venv.create(place, clear=True, symlinks=os.name != "nt", with_pip=False)
            pip = [sys.executable, "-m", "pip", "--python", str(python_of(place)), "install", "-qq"]
            constraints = ["--constraint", str(ROOT / "constraints.txt"), "hatchling"]
            done = subprocess.run([*pip, *constraints], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                why = "hatchling is not installed and cannot be fetched"
                (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
            stamp.touch()
    return python_of(place)


def built(builder: Path, source: Path, target: Path, *kinds: str) -> list[Path]:
    wanted = [part for kind in kinds for part in ("-t", kind)]
    ran([builder, "-m", "hatchling", "build", "-d", target, *wanted], cwd=source)
    return sorted(target.iterdir())


@pytest.fixture(scope="module")
def published(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel of this tree."""
    found = built(builder, ROOT, tmp_path_factory.mktemp("dist"), "sdist", "wheel")
    wheel, sdist = sorted(found, key=lambda path: path.suffix != ".whl")
    return sdist, wheel


def closure(requirements: Sequence[str]) -> dict[str, metadata.Distribution]:
    """The distributions that these requirements come to, with all that they require in turn."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        if wanted.name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[wanted.name] = metadata.distribution(wanted.name)
        waiting += [Requirement(text) for text in found[wanted.name].requires or ()]
    return found


class Installed:
    """A wheel in an environment of its own, run from a directory that has nothing to do with it."""

    def __init__(self, wheel: Path, place: Path) -> None:
        self.place = place / "env"
        self.elsewhere = place / "elsewhere"
        self.elsewhere.mkdir(parents=True)
        venv.create(self.place, symlinks=os.name != "nt", with_pip=False)
        self.python = python_of(self.place)
        pip = [sys.executable, "-m", "pip", "--python", self.python]
        ran([*pip, "install", "-qq", "--no-index", "--no-deps", wheel])
        packages = self.python_says("import sysconfig; print(sysconfig.get_path('purelib'))")
        self.packages = Path(packages)
        for dependency in closure(about(wheel).get_all("Requires-Dist", [])).values():
            self._lend(dependency)

    def python_says(self, program: str) -> str:
        return self.run(self.python, "-c", program)

    def emceepee(self, *arguments: str, said: str = "") -> str:
        name = "emceepee.exe" if os.name == "nt" else "emceepee"
        return self.run(self.python.parent / name, *arguments, said=said)

    def run(self, *command: object, said: str = "") -> str:
        kept = {"PATH", "LANG", "SYSTEMROOT", "TEMP", "TMP"}
        env = {name: value for name, value in os.environ.items() if name in kept}
        env |= {"HOME": str(self.elsewhere), "NO_COLOR": "1"}
        return ran(command, cwd=self.elsewhere, env=env, said=said).strip()

    def _lend(self, dependency: metadata.Distribution) -> None:
        for name in {file.parts[0] for file in dependency.files or ()} - {"..", "__pycache__"}:
            link = self.packages / name
            if not link.exists():
                link.symlink_to(Path(str(dependency.locate_file(name))).resolve())


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.Parser().parsestr(archive.read(name).decode())


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def names_in(archive: Path) -> set[str]:
    """The files of an archive; those of an sdist without the folder that they all are in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def package_files() -> set[str]:
    """Everything in the package that is no leftover of running it."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "emceepee_stdio").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_whole_package_and_nothing_else(published: tuple[Path, Path]) -> None:
    _, wheel = published
    names = names_in(wheel)
    info = {name for name in names if re.match(r"emceepee_stdio-[^/]+\.dist-info/", name)}
    assert names - info == package_files()
    for needed in ("front/tools.json", "cli/demo_server.py", "trace/page/trace.html", "py.typed"):
        assert f"emceepee_stdio/{needed}" in names
    assert {name.partition("/")[2] for name in info} >= {
        "METADATA",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_the_sdist_holds_what_a_build_needs_and_no_tests(published: tuple[Path, Path]) -> None:
    sdist, _ = published
    names = names_in(sdist)
    assert names >= package_files() | {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"}
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {"tests", "bench", "scripts", ".venv", ".cache", ".ci"}


@pytest.mark.slow
def test_the_installed_wheel_runs_the_demo_with_its_declared_dependencies_alone(
    published: tuple[Path, Path], tmp_path: Path
) -> None:
    installed = Installed(published[1], tmp_path)
    where = installed.python_says("import emceepee_stdio; print(emceepee_stdio.__file__)")
    assert Path(where).is_relative_to(installed.place)
    assert installed.emceepee("--version").split()[-1] == emceepee_stdio.__version__
    assert "All of this happened" in installed.emceepee("demo")


@pytest.mark.parametrize(
    ("platform", "python", "wanted"),
    [
        ("linux", "CPython", True),
        ("darwin", "CPython", True),
        ("win32", "CPython", False),
        ("linux", "PyPy", False),
    ],
)
def test_uvloop_is_required_where_it_can_run(
    published: tuple[Path, Path], platform: str, python: str, *, wanted: bool
) -> None:
    required = [Requirement(text) for text in about(published[1]).get_all("Requires-Dist", [])]
    (marker,) = [requirement.marker for requirement in required if requirement.name == "uvloop"]
    there = {"extra": "", "sys_platform": platform, "platform_python_implementation": python}
    assert marker is not None
    assert marker.evaluate(there) == wanted


def unpacked(sdist: Path, place: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (source,) = place.iterdir()
    return source


def test_the_sdist_builds_the_same_wheel(
    builder: Path, published: tuple[Path, Path], tmp_path: Path
) -> None:
    sdist, wheel = published
    source = unpacked(sdist, tmp_path / "unpacked")
    (again,) = built(builder, source, tmp_path / "dist", "wheel")
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def test_the_version_is_said_in_one_place(
    builder: Path, published: tuple[Path, Path], tmp_path: Path
) -> None:
    sdist, wheel = published
    assert about(wheel)["Version"] == emceepee_stdio.__version__
    assert sdist.name == f"emceepee_stdio-{emceepee_stdio.__version__}.tar.gz"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    source = unpacked(sdist, tmp_path / "unpacked")
    (source / "PKG-INFO").unlink()  # the version of a release is kept there for good
    said = source / "emceepee_stdio" / "__init__.py"
    words = said.read_text(encoding="utf-8")
    said.write_text(words.replace(emceepee_stdio.__version__, CHANGED), encoding="utf-8")
    (changed,) = built(builder, source, tmp_path / "dist", "wheel")
    assert changed.name == f"emceepee_stdio-{CHANGED}-py3-none-any.whl"
    installed = Installed(changed, tmp_path)
    assert installed.emceepee("--version").split()[-1] == CHANGED
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    answer = json.loads(installed.emceepee(said=json.dumps(hello) + "\n").splitlines()[0])
    assert answer["result"]["serverInfo"]["version"] == CHANGED
