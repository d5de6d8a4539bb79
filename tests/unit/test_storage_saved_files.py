"""Files that a model names: where they may be, and that nothing else is ever written to."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.storage.saved_files import NotSavedError, SavedFiles, place_of

posix_only = pytest.mark.posix_only("links, pipes and modes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("quiet-river")
    made = tmp_path / "root"
    (made / "data").mkdir(parents=True)
    return made


def save(
    root: Path,
    path: str,
    data: bytes = b"new",
    *,
    overwrite: bool = False,
    by: SavedFiles | None = None,
) -> Path:
    place = place_of(path, [root])
    (by or SavedFiles()).write(place, data, overwrite=overwrite)
    return Path(str(place))


def everything(place: Path) -> dict[str, bytes]:
    return {
        one.relative_to(place).as_posix(): one.read_bytes()
        for one in sorted(place.rglob("*"))
        if one.is_file() and not one.is_symlink()
    }


def test_a_new_file_is_written_by_a_relative_and_by_a_whole_path(root: Path) -> None:
    assert save(root, "data/issues.json", b"[1]").read_bytes() == b"[1]"
    assert save(root, str(root / "näme 2.json"), b"").read_bytes() == b""
    assert set(everything(root)) == {"data/issues.json", "näme 2.json"}
    if os.name == "posix":
        assert not (root / "data/issues.json").stat().st_mode & (stat.S_IXUSR | stat.S_IXGRP)


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret",
        "data/../../outside/new",
        "..",
        ".",
        "",
        "data/..",
        "{tmp}/outside/new",
        "{tmp}/root",
        "{tmp}/rootless",
        "{tmp}/root/../outside/new",
        "/etc/passwd",
        "/dev/null",
        ".bashrc",
        ".git/hooks/pre-commit",
        ".vscode/tasks.json",
        ".mcp.json",
        "data/.env",
        "data/.hidden/x",
        "no/such/directory",
        "data",
        "C:\\Windows\\x",
        "C:x",
        "\\\\server\\share\\x",
        "\\\\?\\C:\\x",
        "nowhere\\x",
        "con",
        "CON.txt",
        "nul",
        "aux .json",
        "data/COM1",
        "lpt¹.txt",
        "CONIN$",
        "x.json:stream",
        "x::$DATA",
        "x.",
        "x ",
        "GIT~1/x",
        "GITHUB~1",
        "a<b",
        "a|b",
        "a?b",
        'a"b',
        "a\x00b",
        "a\nb",
        "a\x1b[31m",
        "a\u202eb",
        "\u200c.git",
        "\ufeff.git/x",
        "a\ud800",
        "x" * 300,
        "é" * 200,
    ],
)
def test_nothing_is_written_where_it_may_not_be(root: Path, tmp_path: Path, path: str) -> None:
    before = everything(tmp_path)
    with pytest.raises(NotSavedError):
        save(root, path.replace("{tmp}", str(tmp_path)), overwrite=True)
    assert everything(tmp_path) == before


def test_without_roots_and_between_several_it_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSavedError, match="no directory to save in"):
        place_of(str(root / "x"), [])
    other = tmp_path / "outside"
    with pytest.raises(NotSavedError, match="begins with none of"):
        place_of("x", [root, other])
    assert place_of(str(other / "x"), [root, other]).root == other
    assert place_of(str(root / "data" / "x"), [root, root / "data"]).names == ("x",)


def test_what_is_there_is_not_replaced_unless_it_was_written_here(root: Path) -> None:
    by = SavedFiles()
    (root / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(NotSavedError):
            save(root, "mine.txt", overwrite=overwrite, by=by)
    save(root, "ours.txt", b"first and longer", by=by)
    with pytest.raises(NotSavedError, match="overwrite is not true"):
        save(root, "ours.txt", by=by)
    assert save(root, "ours.txt", b"second", overwrite=True, by=by).read_bytes() == b"second"
    # Somebody changed it, or put another one in its place.
    (root / "ours.txt").write_text("edited by hand")
    with pytest.raises(NotSavedError, match="changed since"):
        save(root, "ours.txt", overwrite=True, by=by)
    save(root, "again.txt", by=by)
    (root / "other").write_text("new")
    (root / "other").replace(root / "again.txt")
    with pytest.raises(NotSavedError, match="changed since"):
        save(root, "again.txt", overwrite=True, by=by)
    save(root, "third.txt", by=by)
    with pytest.raises(NotSavedError):
        save(root, "third.txt", overwrite=True, by=SavedFiles())  # of another session
    assert (root / "mine.txt").read_text() == "mine"
    assert (root / "ours.txt").read_text() == "edited by hand"


def link_file(root: Path) -> str:
    (root / "x").symlink_to(root.parent / "outside" / "secret")
    return "x"


def dangling(root: Path) -> str:
    (root / "x").symlink_to(root.parent / "outside" / "new")
    return "x"


def link_directory(root: Path) -> str:
    (root / "d").symlink_to(root.parent / "outside")
    return "d/new"


def link_inside(root: Path) -> str:
    (root / "d").symlink_to(root / "data")
    return "d/new"


def link_deeper(root: Path) -> str:
    (root / "data" / "d").symlink_to("../../outside")
    return "data/d/secret"


def hard(root: Path) -> str:
    (root / "x").hardlink_to(root.parent / "outside" / "secret")
    return "x"


def fifo(root: Path) -> str:
    os.mkfifo(root / "x")
    return "x"


def bound(root: Path) -> str:
    before = Path.cwd()
    os.chdir(root)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("x")
    finally:
        os.chdir(before)
    return "x"


def directory(root: Path) -> str:
    (root / "x").mkdir()
    return "x"


def below_a_file(root: Path) -> str:
    (root / "x").write_text("a")
    return "x/y"


@posix_only
@pytest.mark.parametrize(
    "trap",
    [link_file, dangling, link_directory, link_inside, link_deeper, hard, fifo, bound, directory,
     below_a_file],
)  # fmt: skip
@pytest.mark.parametrize("overwrite", [False, True])
def test_no_link_pipe_or_device_is_written_to(
    root: Path, tmp_path: Path, trap: Callable[[Path], str], *, overwrite: bool
) -> None:
    path = trap(root)
    before = everything(tmp_path)
    with pytest.raises(NotSavedError):
        SavedFiles().check(place_of(path, [root]), overwrite=overwrite)
    with pytest.raises(NotSavedError):
        save(root, path, overwrite=overwrite)
    assert everything(tmp_path) == before


@posix_only
def test_a_directory_that_becomes_a_link_after_the_check_leads_nowhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each opening on the way somebody exchanges what comes next."""
    opened = os.open

    def exchange(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        file = opened(path, flags, mode, dir_fd=dir_fd)
        if Path(path) == root:
            (root / "data").rename(root / "moved")
            (root / "data").symlink_to(tmp_path / "outside")
        return file

    by, place = SavedFiles(), place_of("data/new", [root])
    by.check(place, overwrite=False)
    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(NotSavedError, match="a link"):
        by.write(place, b"x", overwrite=False)
    assert set(everything(tmp_path / "outside")) == {"secret"}


@posix_only
def test_a_file_that_appears_or_becomes_a_link_at_the_last_moment_is_left_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by, opened = SavedFiles(), os.open
    ours = save(root, "x", b"ours", by=by)

    def exchange(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "x" and not flags & os.O_CREAT and ours.exists():
            ours.rename(root / "y")
            ours.symlink_to(tmp_path / "outside" / "secret")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(NotSavedError):
        save(root, "x", b"evil", overwrite=True, by=by)
    assert (tmp_path / "outside" / "secret").read_text() == "quiet-river"


@posix_only
@pytest.mark.parametrize("change", ["link", "hard link", "mode", "name", "content"])
def test_a_file_of_ours_that_was_linked_or_changed_is_not_written(
    root: Path, tmp_path: Path, change: str
) -> None:
    by = SavedFiles()
    name, ours, probe = "ours", save(root, "ours", by=by), tmp_path / "probe"
    before = ours.stat()
    while not probe.exists() or probe.stat().st_ctime_ns <= before.st_ctime_ns:
        probe.write_bytes(b"")  # the clock of files goes on in steps
    if change == "link":
        name = "link"
        (root / name).symlink_to(ours)
    elif change == "hard link":
        (tmp_path / "outside" / "same").hardlink_to(ours)
    elif change == "mode":
        ours.chmod(0o755)
    elif change == "name":
        name = "Makefile"
        ours.rename(root / name)
    else:
        ours.write_bytes(b"old")
        os.utime(ours, ns=(before.st_atime_ns, before.st_mtime_ns))
    there = everything(root)
    with pytest.raises(NotSavedError, match=r"link|not written by save_to"):
        save(root, name, b"EVIL", overwrite=True, by=by)
    assert everything(root) == there


def test_a_new_file_that_could_not_be_filled_is_taken_away(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NotSavedError, match="No space left"):
        save(root, "data/x", b"new")
    assert list((root / "data").iterdir()) == []


@given(st.text(max_size=40), st.lists(st.sampled_from(["..", ".", "a", ".b", "", "c\\d", "~1"])))
def test_no_path_leads_out_of_its_root(text: str, parts: list[str]) -> None:
    root = Path("/work/one").absolute()
    for path in (text, "/".join(parts), str(root) + "/" + "/".join([*parts, text])):
        try:
            place = place_of(path, [root])
        except NotSavedError:
            continue
        assert place.root == root
        assert place.names
        whole = Path(os.path.normpath(str(place)))
        assert whole.is_relative_to(root)
        assert not any(one.startswith(".") for one in whole.relative_to(root).parts)


def test_nothing_is_written_where_emceepee_itself_reads(root: Path, tmp_path: Path) -> None:
    """A configuration that was moved away, or never made, would start what it names."""
    state = root / "data" / "state"
    state.mkdir()
    linked = tmp_path / "linked.json"
    ours = [root / "servers.json", state, linked]
    if os.name == "posix":
        linked.symlink_to(root / "elsewhere.json")
    for path in ("servers.json", "SERVERS.json", "data/state/approvals.json", "data/state"):
        with pytest.raises(NotSavedError, match="emceepee itself reads"):
            save(root, path, by=SavedFiles(ours))
    if os.name == "posix":
        with pytest.raises(NotSavedError, match="emceepee itself reads"):
            save(root, "elsewhere.json", by=SavedFiles(ours))
    assert everything(root) == {}
    assert save(root, "servers.json5", by=SavedFiles(ours)).exists()


def test_a_root_that_is_replaced_is_no_place_any_more(root: Path, tmp_path: Path) -> None:
    by, place = SavedFiles(), place_of("x", [root])
    by.check(place, overwrite=False)
    root.rename(tmp_path / "before")
    root.mkdir()
    with pytest.raises(NotSavedError, match="another directory than before"):
        by.write(place, b"x", overwrite=False)
    assert everything(root) == {}
