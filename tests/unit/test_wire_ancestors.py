import subprocess
import sys
from pathlib import Path

import pytest

from emceepee_stdio.wire.own_process import is_ours, proxies_above


@pytest.mark.parametrize(
    "line",
    [
        "/venv/bin/python3.11 /venv/bin/emceepee serve",
        "python -m emceepee_stdio",
        "/opt/emceepee",
        "pypy3 /x/emceepee-stdio",
    ],
)
def test_a_proxy_is_known_by_its_command_line(line: str):
    assert is_ours(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "uvx emceepee",
        "sh -c emceepee",
        "npx emceepee",
        "python -m pytest emceepee_stdio",
        "python /x/emceepee_stdio/cli/demo_server.py",
        "vim emceepee",
        "python",
        "",
    ],
)
def test_what_only_speaks_of_it_is_none(line: str):
    assert not is_ours(line.split(" "))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ancestors are not looked at")
def test_those_above_are_counted_through_whatever_is_in_between(tmp_path: Path):
    script = tmp_path / "emceepee"
    inner = "from emceepee_stdio.wire.own_process import proxies_above; print(proxies_above())"
    script.write_text(
        "import subprocess, sys\n"
        "depth = int(sys.argv[1])\n"
        "again = [sys.executable, __file__, str(depth - 1)]\n"
        f"last = ['sh', '-c', 'exec \"$@\"', '-', sys.executable, '-c', {inner!r}]\n"
        "sys.exit(subprocess.call(again if depth else last))\n"
    )
    here = proxies_above()
    done = subprocess.run([sys.executable, script, "2"], capture_output=True, text=True, check=True)
    assert int(done.stdout) == here + 3
