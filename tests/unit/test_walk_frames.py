"""How the frames of a walk are counted."""

from scripts.walk import Entry, coroutine_frames


def entered(frame: int, *, is_start: bool, is_coroutine: bool = True) -> Entry:
    return Entry("m", "f", 0, frame, is_coroutine=is_coroutine, is_start=is_start)


def test_a_coroutine_counts_once_however_often_it_is_resumed() -> None:
    walk = [
        entered(1, is_start=True),
        entered(2, is_start=False),
        entered(1, is_start=False),
        entered(2, is_start=False),
    ]
    assert coroutine_frames(walk) == 2


def test_a_coroutine_in_the_memory_of_a_finished_one_counts_too() -> None:
    assert coroutine_frames([entered(1, is_start=True), entered(1, is_start=True)]) == 2
    assert coroutine_frames([entered(1, is_start=False), entered(1, is_start=True)]) == 2


def test_a_plain_function_is_no_coroutine() -> None:
    assert coroutine_frames([entered(1, is_start=True, is_coroutine=False)]) == 0
