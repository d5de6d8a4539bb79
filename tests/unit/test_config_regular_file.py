import os
import stat
from pathlib import Path

import pytest

from emceepee_stdio.config.edit import Change
from emceepee_stdio.config.load import load_file
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.storage.file_lock import take_lock
from emceepee_stdio.storage.private_file import make_private, read_regular
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.trust.tool_pins import Pins

pytestmark = pytest.mark.posix_only("pipes and modes of POSIX")


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    assert read_regular(tmp_path / "f") == b"x" * 100_000


def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(pipe(tmp_path / "f"))
    with pytest.raises(ConfigInvalid, match="not a regular file"):
        load_file(tmp_path / "f", environ={})
    pipe(tmp_path / "trust" / "pins.json")
    with pytest.raises(OSError, match="not a file of ours"):
        TrustStore(tmp_path / "trust").pinned("x")


def test_a_lock_that_somebody_holds_is_an_error_and_no_wait_without_end(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    with (tmp_path / "lock").open("wb") as held:
        assert take_lock(held.fileno())
        with pytest.raises(OSError, match="another process holds its lock"):
            store.pin("x", Pins(tools={}))
    store.pin("x", Pins(tools={}))
    assert store.pinned("x") == Pins(tools={})


def test_directories_that_we_make_are_for_their_owner_alone_whatever_the_umask(
    tmp_path: Path,
) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
        Change(path=tmp_path / "c" / "d" / "config.json", before=None, after="{}").apply()
    finally:
        os.umask(before)
    for made in ("a", "a/b", "c", "c/d"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700
