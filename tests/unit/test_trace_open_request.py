from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.trace.request import MAX_LEGS, Leg, OpenRequest, current_request, on_leg


def begin(time: Callable[[], float], method: str = "") -> OpenRequest:
    now = time()
    return OpenRequest(now=time, method=method, started_at=now, since=now)


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def names(request: OpenRequest) -> list[str]:
    return [leg.name.lower() for leg, _ in request.legs]


def test_the_legs_of_a_request_are_in_order_and_add_up_to_its_time():
    time = Time()
    request = begin(time, "tools/call")
    time.now += 1
    request.enter(Leg.SERVER)
    time.now += 2
    request.leave(Leg.SERVER)
    time.now += 4
    request.end("ok")
    assert request.legs == [(Leg.RENDERING, 1), (Leg.SERVER, 2), (Leg.RENDERING, 4)]
    assert request.ended_at - request.started_at == 7
    assert repr(request) == "<OpenRequest tools/call - ok>"


def test_a_wait_inside_another_counts_for_itself_and_the_outer_one_goes_on_after_it():
    time = Time()
    request = begin(time)
    for leg in (Leg.SERVER, Leg.CONNECTING, Leg.PERSON):
        request.enter(leg)
        time.now += 1
    for leg in (Leg.PERSON, Leg.CONNECTING, Leg.SERVER):
        request.leave(leg)
        time.now += 1
    request.end("ok")
    assert names(request) == [
        "rendering", "server", "connecting", "person", "connecting", "server", "rendering",
    ]  # fmt: skip


def test_of_several_waits_on_one_leg_the_last_one_ends_it():
    time = Time()
    request = begin(time)
    request.enter(Leg.SERVER)
    request.enter(Leg.SERVER)
    time.now += 1
    request.leave(Leg.SERVER)
    time.now += 1
    request.leave(Leg.SERVER)
    request.end("ok")
    assert dict(request.legs)[Leg.SERVER] == 2


def test_a_promoted_request_ends_and_its_task_goes_on_where_the_call_waits():
    time = Time()
    request = begin(time)
    request.enter(Leg.SERVER)
    time.now += 1
    ended = request.end_but_go_on("promoted")
    request.become_task(2)
    time.now += 2
    request.leave(Leg.SERVER)
    request.end("ok")
    assert ended.legs[-1] == (Leg.SERVER, 1)
    assert ended.outcome == "promoted"
    assert request.legs == [(Leg.SERVER, 2), (Leg.RENDERING, 0)]
    assert request.parent is ended
    assert request.started_at == ended.ended_at


def test_what_is_marked_after_the_end_changes_nothing():
    time = Time()
    request = begin(time)
    request.enter(Leg.SERVER)
    request.end("cancelled")
    before = list(request.legs)
    time.now += 5
    request.leave(Leg.SERVER)
    assert request.legs == before


def test_a_request_to_one_server_names_it_and_one_to_several_names_none():
    request = begin(Time())
    request.at("a")
    request.at("a")
    assert request.server == "a"
    request.at("b")
    request.at("a")
    assert request.server is None


def test_a_wait_counts_for_the_request_whose_work_it_is_part_of():
    time = Time()
    request = begin(time)
    with on_leg(Leg.SERVER):
        time.now += 1
    token = current_request.set(request)
    with on_leg(Leg.CONNECTING, "s"):
        time.now += 1
    current_request.reset(token)
    request.end("ok")
    assert names(request) == ["rendering", "connecting", "rendering"]
    assert request.server == "s"


@given(st.lists(st.tuples(st.sampled_from(list(Leg)[1:]), st.booleans(), st.integers(0, 50))))
def test_legs_are_few_and_add_up_whatever_happens(steps: list[tuple[Leg, bool, int]]):
    time = Time()
    request = begin(time)
    waits = dict.fromkeys(Leg, 0)
    for leg, enters, seconds in steps:
        if enters:
            request.enter(leg)
            waits[leg] += 1
        elif waits[leg]:
            request.leave(leg)
            waits[leg] -= 1
        time.now += seconds
    request.end("ok")
    assert sum(seconds for _, seconds in request.legs) == time.now - 100.0
    assert len(request.legs) <= MAX_LEGS
