"""Locks between processes. Two descriptors of one process stand in each other's way as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emceepee_stdio.storage import file_lock as file_lock_module
from emceepee_stdio.storage.file_lock import file_lock, is_locked

HOLDER = """
import sys
from pathlib import Path
from emceepee_stdio.storage.file_lock import file_lock
with file_lock(Path(sys.argv[1]), within=5):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_only_one_holds_it_and_the_others_are_told_in_time(tmp_path: Path):
    path = tmp_path / "lock"
    with file_lock(path, within=0.1):
        assert is_locked(path)
        with pytest.raises(TimeoutError), file_lock(path, within=0.1):
            pass
    assert not is_locked(path)
    with file_lock(path, within=0.1):
        pass
    assert path.exists()


def test_it_is_free_again_when_its_holder_is_killed(tmp_path: Path):
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        assert is_locked(path)
        holder.kill()
        holder.wait()
        with file_lock(path, within=5):
            pass


def test_two_who_look_do_not_see_each_other(tmp_path: Path):
    path = tmp_path / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert file_lock_module.take_lock(descriptor, shared=True)
        assert not is_locked(path)
    finally:
        os.close(descriptor)
