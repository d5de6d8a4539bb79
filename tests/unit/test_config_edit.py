import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.config import edit
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_backup, read_file
from emceepee_stdio.config.jsonc import CannotEdit, Unreadable
from emceepee_stdio.storage import private_file

posix_only = pytest.mark.posix_only("modes and links of POSIX")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_change_is_written_and_the_file_as_it_was_is_kept_beside(tmp_path: Path):
    path = tmp_path / "c.json"
    path.write_bytes(b"old\r\n")
    change = Change(path=path, before=read_file(path), after="new ü")
    assert change.apply() == tmp_path / "c.json.bak"
    assert path.read_bytes() == "new ü".encode()
    assert (tmp_path / "c.json.bak").read_bytes() == b"old\r\n"
    assert read_backup(path) == "old\r\n"
    assert names(tmp_path) == ["c.json", "c.json.bak"]


def test_a_missing_file_is_made_with_its_directory_and_needs_no_backup(tmp_path: Path):
    path = tmp_path / "a" / "b" / "c.json"
    assert Change(path=path, before=read_file(path), after="x").apply() is None
    assert path.read_text() == "x"
    assert names(path.parent) == ["c.json"]


def test_a_file_is_removed_when_that_is_the_change(tmp_path: Path):
    path = tmp_path / "c.json"
    path.write_text("x")
    change = Change(path=path, before="x", after=None, backs_up=False)
    assert repr(change) == f"<Change {path} removed>"
    assert change.apply() is None
    assert names(tmp_path) == []


def test_no_change_writes_nothing(tmp_path: Path):
    path = tmp_path / "c.json"
    path.write_text("x")
    before = path.stat()
    change = Change(path=path, before="x", after="x")
    assert change.apply() is None
    assert change.diff() == ""
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(tmp_path) == ["c.json"]


@posix_only
def test_a_file_keeps_its_mode_and_what_we_make_is_private(tmp_path: Path):
    path = tmp_path / "c.json"
    path.write_text("x")
    path.chmod(0o640)
    Change(path=path, before="x", after="y").apply()
    assert mode(path) == 0o640
    assert mode(tmp_path / "c.json.bak") == 0o600
    fresh = tmp_path / "fresh.json"
    Change(path=fresh, before=None, after="y").apply()
    assert mode(fresh) == 0o600


@posix_only
def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path):
    (tmp_path / "dotfiles").mkdir()
    target, path = tmp_path / "dotfiles" / "real.json", tmp_path / "c.json"
    target.write_text("x")
    path.symlink_to(Path("dotfiles") / "real.json")
    Change(path=path, before="x", after="y").apply()
    assert path.is_symlink()
    assert target.read_text() == "y"
    assert names(target.parent) == ["real.json"]
    assert (tmp_path / "c.json.bak").read_text() == "x"
    dangling = tmp_path / "d.json"
    dangling.symlink_to(tmp_path / "later" / "d.json")
    Change(path=dangling, before=None, after="y").apply()
    assert dangling.is_symlink()
    assert (tmp_path / "later" / "d.json").read_text() == "y"


def test_a_file_that_changed_in_between_is_not_overwritten(tmp_path: Path):
    path = tmp_path / "c.json"
    path.write_text("theirs")
    with pytest.raises(EditRefused, match="another program"):
        Change(path=path, before="x", after="y").apply()
    assert path.read_text() == "theirs"
    assert names(tmp_path) == ["c.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_on_the_way_leaves_the_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    path = tmp_path / "c.json"
    path.write_text("x")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail) if step == "fsync" else monkeypatch.setattr(
        Path, "replace", fail
    )
    with pytest.raises(EditRefused, match="no space left on device") as caught:
        Change(path=path, before="x", after="y").apply()
    assert "Nothing was changed" in str(caught.value)
    assert path.read_text() == "x"
    assert names(tmp_path) == ["c.json"]


def test_nobody_ever_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "c.json"
    path.write_text("x" * 100)
    seen: list[str] = []
    replace = Path.replace

    def looking(self: Path, target: Path) -> Path:
        seen.append(path.read_text())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", looking)
    Change(path=path, before="x" * 100, after="y" * 100).apply()
    assert seen == ["x" * 100] * 2
    assert path.read_text() == "y" * 100


@posix_only
def test_with_sudo_a_file_stays_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "c.json"
    path.write_text("x")
    given_to: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(os, "chown", lambda _, uid, gid: given_to.append((uid, gid)))
    Change(path=path, before="x", after="y").apply()
    assert given_to == [(path.stat().st_uid, path.stat().st_gid)]


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(EditRefused, match="not UTF-8 text at byte 0"):
        read_file(tmp_path / "latin")
    with pytest.raises(EditRefused, match="is a directory" if os.name == "posix" else "denied"):
        read_file(tmp_path)
    (tmp_path / "c.json").write_text("x")
    fact = "not a directory" if os.name == "posix" else "already exists"
    with pytest.raises(EditRefused, match=fact):
        Change(path=tmp_path / "c.json" / "d", before=None, after="y").apply()
    (tmp_path / "c.json.bak").mkdir()
    assert read_backup(tmp_path / "c.json") is None


def test_a_broken_file_is_named_with_the_place():
    with pytest.raises(EditRefused) as caught, guard(Path("f.json")):
        raise Unreadable("it is odd", line=3, column=4)
    assert caught.value.fact == "f.json is broken at line 3, column 4: it is odd."
    with pytest.raises(EditRefused) as caught, guard(Path("f.json")):
        raise CannotEdit("it is odd")
    assert caught.value.fact == "f.json was left as it is: it is odd."
    assert "by hand" in caught.value.next_step


texts = st.text(alphabet="ab\n\r\u2028\x0c", max_size=12)


@given(texts, texts)
def test_a_diff_keeps_every_line_to_the_letter(before: str, after: str):
    diff = Change(path=Path("c"), before=before, after=after).diff()
    lines = [line for line in edit._lines(diff) if not line.startswith(("---", "+++", "@@"))]
    parts = {"-": "", "+": ""}
    for index, line in enumerate(lines):
        if line.startswith("\\"):
            continue
        bare = index + 1 < len(lines) and lines[index + 1].startswith("\\")
        for side in parts:
            if line[0] in (" ", side):
                parts[side] += line[1:].removesuffix("\n") if bare else line[1:]
    if before != after:
        assert parts == {"-": before, "+": after}


def test_a_file_that_somebody_reads_for_a_moment_is_replaced_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "c.json"
    path.write_text("old")
    refusals = [PermissionError(5, "another process has it open")] * 2
    replace = Path.replace

    def refuse_at_first(new: Path, place: Path) -> Path:
        if refusals:
            raise refusals.pop()
        return replace(new, place)

    monkeypatch.setattr(private_file, "_REPLACES_OPEN_FILES", False)
    monkeypatch.setattr(Path, "replace", refuse_at_first)
    private_file.write_whole(path, b"new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["c.json"]
    refusals += [PermissionError(5, "another process has it open")] * 100
    with pytest.raises(PermissionError):
        private_file.write_whole(path, b"newer")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["c.json"]


@pytest.mark.parametrize(
    ("before", "after"), [("a\nb\n", "a\nc\n"), ("a", "a\nb"), (None, "x\n"), ("x\r\ny", None)]
)
def test_patch_takes_the_diff(tmp_path: Path, before: str | None, after: str | None):
    path = tmp_path / "c.json"
    if before is not None:
        path.write_bytes(before.encode())
    diff = Change(path=path, before=before, after=after).diff()
    try:
        subprocess.run(
            ["patch", "--binary", "-p0", "-d", "/"], input=diff.encode(), check=True, timeout=20
        )
    except FileNotFoundError:
        pytest.skip("patch is not installed")
    assert (path.read_bytes().decode() if path.exists() else None) == after
