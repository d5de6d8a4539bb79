"""The entry for a running front, as `install --http` writes it, in real hosts."""

from pathlib import Path

import pytest

from tests.e2e.front_harness import running_front
from tests.real_hosts.dialects import Call
from tests.real_hosts.headless import Headless

pytestmark = pytest.mark.slow

READ = {"server": "library", "tool": "long_text", "args": {"chars": 20}}
READ_WELL = "第〇〇〇〇〇行"


def test_a_host_reaches_a_running_front_with_the_token_of_its_environment(
    host: Headless, tmp_path: Path
) -> None:
    place = tmp_path / "front"
    place.mkdir()
    with running_front(place, servers=host.servers) as front:
        host.front = front
        run = host.run(Call("execute_readonly_tool", READ), EMCEEPEE_HTTP_TOKEN=front.token or "")
        assert "execute_readonly_tool" in run.turns[0].tools
        assert READ_WELL in run.last.result
        files = [
            path for path in host.place.rglob("*") if path.is_file() and place not in path.parents
        ]
        assert not [path for path in files if (front.token or "").encode() in path.read_bytes()]
