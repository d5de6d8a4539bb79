from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.state.machine import Deadlines

KEYS = st.sampled_from("abcdef")
WHEN = st.integers(0, 20).map(float)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, WHEN),
    st.tuples(st.just("clear"), KEYS, st.just(0.0)),
    st.tuples(st.just("pop"), st.just(""), WHEN),
)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEPS, max_size=60))
def test_deadlines_agree_with_a_plain_dictionary(steps: list[tuple[str, str, float]]):
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, float] = {}
    for step, key, when in steps:
        if step == "set":
            deadlines.set(key, when)
            model.pop(key, None)  # set again, it queues behind its equals
            model[key] = when
        elif step == "clear":
            deadlines.clear(key)
            model.pop(key, None)
        else:
            due = sorted((k for k in model if model[k] <= when), key=lambda k: model[k])
            assert deadlines.pop_due(now=when) == due
            for gone in due:
                del model[gone]
        assert len(deadlines) == len(model)
        assert deadlines.next() == min(model.values(), default=None)


def test_a_deadline_that_was_moved_counts_only_where_it_stands_now():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    assert deadlines.pop_due(now=4.0) == []
    assert deadlines.pop_due(now=5.0) == ["a"]


def test_clearing_what_was_never_set_is_harmless():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.clear("a")
    assert deadlines.next() is None


def test_keys_that_cannot_be_compared_may_share_an_instant():
    deadlines: Deadlines[object] = Deadlines()
    keys = [object() for _ in range(20)]
    for key in keys:
        deadlines.set(key, 1.0)
    assert deadlines.pop_due(now=1.0) == keys


def test_setting_again_and_again_takes_no_more_room():
    deadlines: Deadlines[int] = Deadlines()
    for n in range(10_000):
        deadlines.set(n % 3, float(n))
        assert len(deadlines._heap) <= 2 * 3 + 17
    assert deadlines.next() == 9997.0


def test_setting_and_clearing_again_and_again_takes_no_more_room():
    deadlines: Deadlines[int] = Deadlines()
    for n in range(10_000):
        deadlines.set(n, float(n))
        deadlines.clear(n)
    assert len(deadlines) == 0
    assert len(deadlines._heap) <= 17
