"""`emceepee trace --follow`: it may run for days, beside a proxy that is never quiet."""

import gc
import json
from pathlib import Path

import msgspec
import pytest

from emceepee_stdio.cli.trace import trace
from tests.unit.test_trace_exports import record

BATCH = 50  # requests between two polls
POLLS = 40
LEGS = (("server", 77.125),)  # no other object of this process is equal


def write_batch(path: Path, number: int) -> None:
    requests = [record(number * BATCH + one, legs=LEGS) for one in range(BATCH)]
    with path.open("ab") as file:
        file.writelines(msgspec.json.encode(request) + b"\n" for request in requests)


def records_in_memory() -> int:
    wanted = list(LEGS)
    return sum(type(one) is list and one == wanted for one in gc.get_objects())


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "piped text"])
def test_following_prints_what_is_new_and_keeps_none_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,  # noqa: FBT001 - pytest gives it
):
    path = tmp_path / "requests-1.jsonl"
    write_batch(path, 0)
    polls, most = 0, 0

    def poll(_seconds: float) -> bool:
        nonlocal polls, most
        polls += 1
        most = max(most, records_in_memory())
        write_batch(path, polls)
        return polls > POLLS

    monkeypatch.setattr("emceepee_stdio.cli.log_reading.reader_leaves_within", poll)
    trace(follow=True, lines=BATCH, as_json=as_json, session="all", log_dir=tmp_path)
    shown = capsys.readouterr().out.splitlines()
    if as_json:
        numbers = [int(json.loads(line)["id"]) for line in shown]
        assert numbers == list(range((POLLS + 1) * BATCH))
    else:
        assert len(shown) == (POLLS + 1) * BATCH + 1
    assert most <= 2 * BATCH
