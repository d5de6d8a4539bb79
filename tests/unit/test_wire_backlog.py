from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.wire.framing import Backlog


def test_answers_count_until_they_have_left_and_requests_never_do():
    backlog = Backlog(10)
    backlog.request(100)
    backlog.answer(11)
    assert backlog.is_over
    backlog.written(100)
    assert backlog.is_over
    backlog.written(101)
    assert not backlog.is_over
    assert repr(backlog) == "<Backlog 10/10>"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 20)) | st.integers(0, 30), max_size=60))
def test_the_backlog_agrees_with_a_plain_list_of_bytes(steps: list[tuple[bool, int] | int]):
    backlog = Backlog(10)
    queued: list[bool] = []
    written = 0
    for step in steps:
        if isinstance(step, int):
            written = min(written + step, len(queued))
            backlog.written(written)
        else:
            is_answer, size = step
            (backlog.answer if is_answer else backlog.request)(size)
            queued += [is_answer] * size
        assert backlog.answers == sum(queued[written:])
        assert backlog.is_over == (sum(queued[written:]) > 10)
