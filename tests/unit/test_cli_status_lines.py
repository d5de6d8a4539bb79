"""What `emceepee status` makes of the files that proxies write."""

import msgspec
import pytest

from emceepee_stdio.cli import status
from emceepee_stdio.session.proxy_status import ProxyStatus, ServerStatus
from emceepee_stdio.visible_text import shell_word

PROXY = ProxyStatus(
    pid=7,
    process_started="1",
    host="here",
    session="S",
    version="1",
    client_name="c",
    client_version="1",
    started_at=1_700_000_000.0,
    directory="/",
    config="",
)


def lines_of(name: str, phase: str, *, in_file: bool = True) -> list[str]:
    server = ServerStatus(name=name, phase=phase, in_file=in_file)
    proxy = msgspec.structs.replace(PROXY, servers=(server,))
    return status._unwell([proxy])


def test_no_name_or_phase_in_a_file_steers_the_terminal() -> None:
    (line,) = lines_of("\x1b[31mred", "failed\u202e\nnext")
    assert line.isprintable()


def test_an_entry_that_is_wrong_is_not_told_as_one_that_was_switched_off() -> None:
    assert lines_of("s", "disabled") == ["s: broken (pid 7). See: emceepee config check"]


def test_the_next_step_for_a_server_is_one_that_knows_it() -> None:
    name = shell_word("a b")
    assert lines_of("a b", "failed") == [f"a b: failed (pid 7). See: emceepee doctor {name}"]
    (line,) = lines_of("a b", "failed", in_file=False)
    assert line == f"a b: failed (pid 7). See: emceepee tail-logs --server {name}"


@pytest.mark.parametrize("moment", [1e300, -1e18])
def test_a_moment_that_no_clock_shows_makes_a_file_a_damaged_one(moment: float) -> None:
    text = msgspec.json.encode(msgspec.structs.replace(PROXY, started_at=moment))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=ProxyStatus)
