from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emceepee_stdio.state.event_log import (
    DELIVERY,
    ENTRY_BYTES,
    Added,
    Delivery,
    EventLog,
    Lease,
    LogStatistics,
    oldest_of_the_largest,
)
from emceepee_stdio.state.event_types import EventType, fold_key
from emceepee_stdio.state.machine import IllegalMove

NOTE = EventType.NOTIFICATION


def make_log(capacity: int = 1000, max_bytes: int = 8 << 20) -> EventLog:
    numbers = count(1)
    return EventLog(new_id=lambda: f"e{next(numbers)}", capacity=capacity, max_bytes=max_bytes)


def add(log: EventLog, *, fold: object = None, now: float = 0.0, **data: object) -> Added:
    return log.add(NOTE, now=now, server="s", data=data, fold=fold)


def fill(log: EventLog, number: int) -> list[str]:
    return [add(log, n=n).event.id for n in range(number)]


def ids(lease: Lease) -> list[str]:
    return [event.id for event in lease.events]


def deliver(log: EventLog, limit: int | None = None) -> list[str]:
    lease = log.take(limit=limit)
    log.commit(lease)
    return ids(lease)


# Adding and taking


def test_an_added_event_carries_what_was_said_and_the_next_sequence():
    log = make_log()
    first = log.add(EventType.SERVER_ADDED, now=2.5, server="files", data={"a": 1}).event
    second = log.add(EventType.TIMER_EXPIRED, now=2.5).event
    assert (first.type, first.server, first.created_at, first.data, first.count) == (
        EventType.SERVER_ADDED,
        "files",
        2.5,
        {"a": 1},
        1,
    )
    assert (second.server, second.data) == (None, {})
    assert second.seq == first.seq + 1


def test_events_of_one_instant_are_taken_in_the_order_they_were_added():
    log = make_log()
    added = fill(log, 50)
    assert ids(log.take()) == added


def test_an_event_is_taken_by_one_response_only():
    log = make_log()
    added = fill(log, 3)
    first, second = log.take(), log.take()
    assert ids(first) == added
    assert ids(second) == []
    log.commit(first)
    log.commit(second)
    assert ids(log.take()) == []


def test_a_limited_take_leaves_the_newer_ones_and_says_how_many():
    log = make_log()
    added = fill(log, 5)
    lease = log.take(limit=2)
    assert ids(lease) == added[:2]
    assert lease.remaining == 3
    assert log.waiting == 3


def test_released_events_wait_again_in_their_old_place():
    log = make_log()
    added = fill(log, 3)
    lease = log.take(limit=2)
    added += fill(log, 2)
    log.release(lease)
    assert ids(log.take()) == added


def test_leases_released_in_any_order_restore_the_sequence():
    log = make_log()
    added = fill(log, 6)
    leases = [log.take(limit=2) for _ in range(3)]
    for index in (1, 2, 0):
        log.release(leases[index])
    assert ids(log.take()) == added


@pytest.mark.parametrize("first", ["commit", "release"])
@pytest.mark.parametrize("second", ["commit", "release"])
def test_a_lease_is_closed_once_and_a_second_time_changes_nothing(first: str, second: str):
    log = make_log()
    fill(log, 4)
    lease = log.take(limit=2)
    getattr(log, first)(lease)
    before = log.statistics()
    with pytest.raises(ValueError, match="already committed or released"):
        getattr(log, second)(lease)
    with pytest.raises(ValueError, match="already committed or released"):
        log.keep_first(lease, 1)
    assert log.statistics() == before


def test_shrinking_a_lease_returns_the_rest_to_the_queue():
    log = make_log()
    added = fill(log, 5)
    lease = log.keep_first(log.take(limit=4), 1)
    assert ids(lease) == added[:1]
    assert lease.remaining == 4
    assert ids(log.take()) == added[1:]
    log.commit(lease)
    assert log.statistics().leased == 4


def test_shrinking_to_more_than_it_holds_changes_nothing():
    log = make_log()
    added = fill(log, 3)
    lease = log.keep_first(log.take(), 10)
    assert ids(lease) == added
    assert lease.remaining == 0


def test_shrinking_through_an_older_view_never_promises_what_went_back():
    log = make_log()
    added = fill(log, 5)
    old = log.take()
    log.keep_first(old, 2)
    assert ids(log.keep_first(old, 4)) == added[:2]


def test_a_shrunk_lease_can_be_released():
    log = make_log()
    added = fill(log, 3)
    log.release(log.keep_first(log.take(), 1))
    assert ids(log.take()) == added


def test_an_answer_takes_exactly_its_own_events():
    log = make_log()
    added = fill(log, 5)
    lease = log.take_these({added[3], added[1], "unknown"})
    assert ids(lease) == [added[1], added[3]]
    assert lease.remaining == 3
    log.commit(lease)
    assert ids(log.take()) == [added[0], added[2], added[4]]


def test_own_events_that_another_response_holds_or_told_are_not_taken():
    log = make_log()
    added = fill(log, 3)
    deliver(log, 1)
    log.take(limit=1)
    assert ids(log.take_these(added)) == [added[2]]


# Taking after an id


def test_what_came_after_an_id_is_told_again_even_if_delivered():
    log = make_log()
    added = fill(log, 5)
    deliver(log, 4)
    lease = log.take_after(added[1])
    assert ids(lease) == added[2:]
    log.commit(lease)
    assert log.waiting == 0


def test_an_id_that_is_gone_returns_all_that_is_kept():
    log = make_log()
    added = fill(log, 4)
    deliver(log, 2)
    assert ids(log.take_after("long gone")) == added


def test_the_last_id_returns_nothing():
    log = make_log()
    added = fill(log, 2)
    assert ids(log.take_after(added[-1])) == []


def test_taking_after_an_id_leaves_to_others_what_they_hold():
    log = make_log()
    added = fill(log, 4)
    held = log.take_these([added[2]])
    lease = log.take_after(added[0])
    assert ids(lease) == [added[1], added[3]]
    log.release(held)
    assert ids(log.take()) == [added[0], added[2]]


def test_a_limit_after_an_id_says_how_many_remain():
    log = make_log()
    added = fill(log, 6)
    deliver(log, 3)
    lease = log.take_after(added[0], limit=2)
    assert ids(lease) == added[1:3]
    assert lease.remaining == 3


def test_releasing_what_was_told_before_does_not_make_it_wait_again():
    log = make_log()
    added = fill(log, 3)
    deliver(log, 2)
    log.release(log.take_after("gone"))
    assert ids(log.take()) == added[2:]


def test_an_event_told_again_is_not_kept_from_eviction():
    log = make_log(capacity=10)
    added = fill(log, 10)
    deliver(log)
    again = log.take_after("gone")
    assert add(log).evicted == 1
    log.commit(again)
    assert ids(log.take_after("gone")) == [*added[1:], "e11"]


def test_after_an_id_a_notice_stands_where_the_first_lost_event_was():
    log = make_log(capacity=10)
    fill(log, 11)
    notice, *rest = log.take_after("e1").events
    assert notice.type is EventType.EVENTS_DROPPED
    assert [event.id for event in rest] == [f"e{n}" for n in range(2, 12)]


# Bounds


def test_a_full_log_evicts_a_tenth():
    log = make_log(capacity=100)
    fill(log, 100)
    added = add(log)
    assert (added.evicted, added.dropped) == (10, 10)
    assert log.statistics() == LogStatistics(
        kept=92, waiting=92, leased=0, capacity=100, bytes=92 * ENTRY_BYTES
    )


def test_delivered_events_go_first_and_are_not_counted_as_dropped():
    log = make_log(capacity=100)
    added = fill(log, 100)
    log.commit(log.take_these(added[50:57]))
    last = add(log)
    assert (last.evicted, last.dropped) == (10, 3)
    notice, *rest = log.take().events
    assert notice.data == {"count": 3, "first_id": added[0], "last_id": added[2]}
    assert [event.id for event in rest] == [*added[3:50], *added[57:], last.event.id]


def test_nothing_is_dropped_while_enough_was_delivered():
    log = make_log(capacity=100)
    fill(log, 100)
    deliver(log)
    added = [add(log) for _ in range(95)]
    assert sum(a.dropped for a in added) == 0
    assert ids(log.take()) == [a.event.id for a in added]


def test_leased_events_are_never_evicted():
    log = make_log(capacity=10)
    added = fill(log, 10)
    lease = log.take()
    for _ in range(30):
        add(log)
    assert log.statistics().kept <= 12
    log.release(lease)
    assert [i for i in ids(log.take()) if i in added] == added


def test_a_log_that_leases_had_swollen_shrinks_to_its_capacity_again():
    log = make_log(capacity=10)
    leases: list[Lease] = []
    for _ in range(20):
        add(log)
        leases.append(log.take())
    for lease in leases:
        log.commit(lease)
    assert log.statistics().kept == 20
    add(log)
    assert log.statistics().kept == 10


def test_the_notice_says_how_many_were_lost_and_which():
    log = make_log(capacity=20)
    added = fill(log, 20)
    log.add(NOTE, now=7.0)
    notice = log.take(limit=1).events[0]
    assert notice.type is EventType.EVENTS_DROPPED
    assert notice.server is None
    assert notice.created_at == 7.0
    assert notice.data == {"count": 2, "first_id": added[0], "last_id": added[1]}
    assert notice.count == 2


def test_a_notice_sums_what_folded_events_stood_for():
    log = make_log(capacity=10)
    for _ in range(5):
        add(log, fold="same")
    fill(log, 9)
    assert add(log).dropped == 5
    assert log.take(limit=1).events[0].data["count"] == 5


def test_a_waiting_notice_takes_in_what_is_lost_later():
    log = make_log(capacity=10)
    added = fill(log, 10)
    dropped = sum(add(log, n=n).dropped for n in range(8))
    notices = [e for e in log.take().events if e.type is EventType.EVENTS_DROPPED]
    assert len(notices) == 1
    assert notices[0].data["count"] == dropped
    assert notices[0].data["first_id"] == added[0]


def test_a_loss_after_the_notice_was_told_makes_a_new_notice():
    log = make_log(capacity=10)
    fill(log, 11)
    told = log.take(limit=1)
    log.commit(told)
    for _ in range(10):
        add(log)
    second = log.take(limit=1).events[0]
    assert second.type is EventType.EVENTS_DROPPED
    assert second.id != told.events[0].id


def test_notices_that_come_to_wait_together_become_one():
    log = make_log(capacity=10)
    fill(log, 11)
    for _ in range(20):
        lease = log.take()
        add(log)
        add(log)
        log.release(lease)
    events = log.take().events
    notices = [e for e in events if e.type is EventType.EVENTS_DROPPED]
    assert len(notices) == 1
    assert sum(e.count for e in events) == 11 + 40


def test_a_notice_spans_from_the_first_to_the_last_loss_whatever_was_lost_first():
    log = make_log(capacity=10)
    early = fill(log, 10)
    lease = log.take()
    late = [add(log, n=n).event.id for n in range(3)]
    log.release(lease)
    add(log)
    notice = log.take(limit=1).events[0]
    assert notice.data["first_id"] == early[0]
    assert notice.data["last_id"] == late[2]
    assert notice.seq == 1


@pytest.mark.parametrize("capacity", [10, 1000])
def test_near_its_bound_the_log_warns_once(capacity: int):
    log = make_log(capacity=capacity)
    warned = [n for n in range(1, 3 * capacity) if add(log).nearly_full]
    assert warned == [capacity * 8 // 10]


def test_the_warning_comes_again_on_the_next_approach():
    log = make_log(capacity=10)
    assert [add(log).nearly_full for _ in range(9)] == [False] * 7 + [True, False]
    deliver(log)
    assert [add(log).nearly_full for _ in range(9)] == [False] * 7 + [True, False]


def test_events_under_a_lease_still_count_towards_the_warning():
    log = make_log(capacity=10)
    fill(log, 7)
    log.take()
    assert add(log).nearly_full


# Who gives way


def note(log: EventLog, server: str, number: int, *, size: int = 0) -> list[Added]:
    return [log.add(NOTE, now=0.0, server=server, size=size) for _ in range(number)]


def kinds(log: EventLog) -> list[tuple[str, str | None]]:
    return [(event.type.value, event.server) for event in log.take().events]


def test_notifications_of_one_server_push_out_no_end_of_a_task_and_no_timer():
    log = make_log(capacity=100)
    log.add(EventType.TASK_COMPLETED, now=0.0, server="good")
    log.add(EventType.TIMER_EXPIRED, now=0.0)
    note(log, "bad", 5_000)
    told = kinds(log)
    assert told[:2] == [("task_completed", "good"), ("timer_expired", None)]
    assert len(told) <= 100


def test_the_server_with_most_notifications_gives_way_first():
    log = make_log(capacity=100)
    quiet = [a.event.id for a in note(log, "quiet", 5)]
    note(log, "bad", 1_000)
    told = log.take().events
    assert [e.id for e in told if e.server == "quiet"] == quiet
    (notice,) = [e for e in told if e.type is EventType.EVENTS_DROPPED]
    assert notice.count + sum(e.server == "bad" for e in told) == 1_000


def test_a_notification_that_finds_only_lasting_events_is_dropped_itself_and_counted():
    log = make_log(capacity=10)
    for _ in range(10):
        log.add(EventType.TASK_FAILED, now=0.0, server="good")
    added = note(log, "bad", 3)
    assert [(a.evicted, a.dropped) for a in added] == [(0, 1)] * 3
    told = log.take().events
    assert [e.type for e in told] == [EventType.TASK_FAILED] * 10 + [EventType.EVENTS_DROPPED]
    assert told[-1].data == {
        "count": 3,
        "first_id": added[0].event.id,
        "last_id": added[2].event.id,
    }


def test_a_flood_of_lasting_events_costs_the_server_that_made_them():
    log = make_log(capacity=20)
    log.add(EventType.TASK_COMPLETED, now=0.0, server="good")
    for _ in range(200):
        log.add(EventType.ELICITATION_REQUEST, now=0.0, server="bad")
    assert ("task_completed", "good") in kinds(log)


def test_the_log_is_bounded_in_bytes_and_one_server_has_a_share_of_them():
    log = make_log(max_bytes=100_000)
    for server in ("a", "b", "c", "d", "e", "f"):
        note(log, server, 50, size=5_000)
        assert log.statistics().bytes <= 100_000
        held = sum(5_000 + ENTRY_BYTES for e in log.since(0) if e.server == server)
        assert held <= 25_000
    log.add(EventType.TASK_COMPLETED, now=0.0, server="a", size=5_000)
    assert log.statistics().bytes <= 100_000


def test_a_notification_beyond_the_share_of_its_server_is_dropped_and_counted():
    log = make_log(max_bytes=100_000)
    (added,) = note(log, "bad", 1, size=30_000)
    assert added.dropped == 1
    assert kinds(log) == [("events_dropped", None)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=30))
def test_the_oldest_of_who_has_most_goes_first_at_every_step(items: list[tuple[str, int]]):
    left = list(enumerate(items))
    order = list(oldest_of_the_largest(left, owner=lambda i: i[1][0], weight=lambda i: i[1][1]))
    for gone in order:
        load = {o: sum(w for _, (p, w) in left if p == o) for o in "abc"}
        assert gone == max(left, key=lambda i: (load[i[1][0]], -i[0]))
        left.remove(gone)
    assert left == []


# Folding


def test_events_that_say_the_same_fold_into_the_last():
    log = make_log()
    add(log, fold="k", value=1)
    other = add(log, value="between").event
    last = add(log, fold="k", value=2).event
    lease = log.take()
    assert ids(lease) == [other.id, last.id]
    assert (last.count, last.data) == (2, {"value": 2})


def test_without_a_fold_equal_events_stay_apart():
    log = make_log()
    fill(log, 2)
    add(log, fold="k")
    assert log.waiting == 3


def test_an_event_that_is_leased_is_not_folded_into():
    log = make_log()
    first = add(log, fold="k").event
    lease = log.take()
    second = add(log, fold="k").event
    assert second.count == 1
    log.commit(lease)
    assert ids(lease) == [first.id]
    assert ids(log.take()) == [second.id]


def test_an_event_that_was_delivered_is_not_folded_into():
    log = make_log()
    add(log, fold="k")
    deliver(log)
    assert add(log, fold="k").event.count == 1
    assert len(log.take_after("gone").events) == 2


def test_a_released_event_can_be_folded_into_again():
    log = make_log()
    add(log, fold="k")
    log.release(log.take())
    assert add(log, fold="k").event.count == 2
    assert log.waiting == 1


def test_a_released_event_gives_way_to_the_later_one_that_says_the_same():
    log = make_log()
    add(log, fold="k", value=1)
    lease = log.take()
    add(log, fold="k", value=2)
    add(log, fold="k", value=3)
    log.release(lease)
    (event,) = log.take().events
    assert (event.count, event.data) == (3, {"value": 3})


def test_leases_released_newest_first_fold_into_the_newest():
    log = make_log()
    leases: list[Lease] = []
    for value in range(3):
        add(log, fold="k", value=value)
        leases.append(log.take())
    for lease in reversed(leases):
        log.release(lease)
    (event,) = log.take().events
    assert (event.count, event.data) == (3, {"value": 2})


def test_an_evicted_event_is_not_folded_into():
    log = make_log(capacity=10)
    add(log, fold="k")
    fill(log, 10)
    assert add(log, fold="k").event.count == 1


def test_folding_makes_the_room_it_needs_itself():
    log = make_log(capacity=10)
    fill(log, 9)
    add(log, fold="k")
    added = add(log, fold="k")
    assert (added.evicted, added.event.count) == (0, 2)


# What says the same

PROGRESS = "notifications/progress"
UPDATED = "notifications/resources/updated"


def same(one: dict[str, object], other: dict[str, object], method: str) -> bool:
    return fold_key("s", method, one) == fold_key("s", method, other)


def test_progress_says_the_same_by_its_token():
    assert same({"progressToken": 1, "progress": 1}, {"progressToken": 1, "progress": 2}, PROGRESS)
    assert not same({"progressToken": 1}, {"progressToken": 2}, PROGRESS)


def test_the_tokens_0_and_0_as_text_differ():
    assert not same({"progressToken": 0}, {"progressToken": "0"}, PROGRESS)
    assert not same({"progressToken": 1}, {"progressToken": True}, PROGRESS)


def test_resource_updates_say_the_same_by_their_uri():
    assert same({"uri": "a:b", "title": "x"}, {"uri": "a:b", "title": "y"}, UPDATED)
    assert not same({"uri": "a:b"}, {"uri": "a:c"}, UPDATED)


@pytest.mark.parametrize("kind", ["tools", "resources", "prompts"])
def test_changed_lists_say_the_same_by_their_kind(kind: str):
    method = f"notifications/{kind}/list_changed"
    assert same({}, {"_meta": {"a": 1}}, method)
    assert fold_key("s", method, {}) != fold_key("s", "notifications/roots/list_changed", {})


def test_other_notifications_say_the_same_by_equal_params_whatever_the_order_of_keys():
    one = {"a": 1, "b": {"c": [1, 2], "d": None}}
    other = {"b": {"d": None, "c": [1, 2]}, "a": 1}
    assert same(one, other, "notifications/custom")
    assert not same(one, {**other, "a": 2}, "notifications/custom")
    assert not same({"a": [1, 2]}, {"a": [2, 1]}, "notifications/custom")


@pytest.mark.parametrize("method", [PROGRESS, UPDATED])
def test_without_its_key_a_notification_is_compared_whole(method: str):
    assert same({"a": 1}, {"a": 1}, method)
    assert not same({"a": 1}, {"a": 2}, method)


@pytest.mark.parametrize("method", [PROGRESS, UPDATED, "notifications/tools/list_changed", "x/y"])
def test_two_servers_never_say_the_same(method: str):
    params = {"progressToken": 1, "uri": "a:b"}
    assert fold_key("one", method, params) != fold_key("two", method, params)
    assert hash(fold_key("one", method, params)) == hash(fold_key("one", method, dict(params)))


# Views


def test_the_reprs_show_how_full_the_log_is_and_what_an_event_is():
    log = make_log(capacity=50)
    fill(log, 3)
    log.take(limit=1)
    assert repr(log) == "<EventLog 3/50 waiting=2 leased=1>"
    event = log.add(EventType.TIMER_EXPIRED, now=0.0).event
    assert repr(event) == "<Event 4 timer_expired ->"
    add(log, fold="k")
    assert repr(add(log, fold="k").event) == "<Event 6 notification s ×2>"


def test_an_event_moves_only_from_waiting_through_a_lease_to_delivered():
    allowed = {
        (Delivery.WAITING, Delivery.LEASED),
        (Delivery.LEASED, Delivery.DELIVERED),
        (Delivery.LEASED, Delivery.WAITING),
    }
    for source in Delivery:
        for target in Delivery:
            if (source, target) in allowed:
                DELIVERY.check(source, target)
            else:
                with pytest.raises(IllegalMove):
                    DELIVERY.check(source, target)


# Any interleaving, against a plain list


@dataclass
class Item:
    seq: int
    id: str
    count: int
    fold: str | None
    server: str | None = None
    lasting: bool = False
    size: int = ENTRY_BYTES
    status: str = "waiting"
    notice: bool = False
    first: tuple[int, str] = (0, "")
    last: tuple[int, str] = (0, "")


@dataclass
class Held:
    lease: Lease
    items: list[Item]


CAPACITY = 10
MAX_BYTES = 12_000
SHARE = MAX_BYTES // 4
TASK = EventType.TASK_COMPLETED


class LogMachine(RuleBasedStateMachine):
    """Every event is told once or counted as dropped; the log is compared with a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.log = make_log(CAPACITY, MAX_BYTES)
        self.items: list[Item] = []
        self.held: list[Held] = []
        self.known: list[str] = ["never was"]
        self.told: dict[str, int] = {}
        self.added = 0
        self.told_dropped = 0
        self.most_leased = 0
        self.warned = False

    def waiting(self) -> list[Item]:
        return sorted((i for i in self.items if i.status == "waiting"), key=lambda i: i.seq)

    def leased(self) -> list[Item]:
        return [i for i in self.items if i.status == "leased"]

    def size(self, server: str | None = None, *, of_all: bool = True) -> int:
        return sum(i.size for i in self.items if of_all or i.server == server)

    def next_to_go(self, new: Item, *, own: bool, by_bytes: bool) -> Item | None:
        """What was told; then notifications of who has most; then, for its kind only, the rest."""
        there = [i for i in self.items if not own or i.server == new.server]
        there.sort(key=lambda i: i.seq)
        if delivered := [i for i in there if i.status == "delivered"]:
            return delivered[0]
        for lasting in (False, True) if new.lasting else (False,):
            found = [
                i for i in there if i.status == "waiting" and not i.notice and i.lasting is lasting
            ]
            if found:
                load = {
                    i.server: sum(o.size if by_bytes else 1 for o in found if o.server == i.server)
                    for i in found
                }
                return max(found, key=lambda i: (load[i.server], -i.seq))
        return None

    def expect_room_made(self, new: Item) -> tuple[int, list[Item]]:
        evicted, lost = 0, list[Item]()
        for own in (True, False):
            limit = SHARE if own else MAX_BYTES
            over = self.size(new.server, of_all=not own) + new.size - limit
            surplus = over + limit // 10 if over > 0 else 0
            events = 0 if own else max(0, len(self.items) - CAPACITY + 1)
            by_bytes = surplus > 0
            while (surplus > 0 or events > 0) and (
                gone := self.next_to_go(new, own=own, by_bytes=by_bytes)
            ):
                self.items.remove(gone)
                evicted, surplus, events = evicted + 1, surplus - gone.size, events - 1
                lost += [gone] if gone.status == "waiting" else []
        return evicted, lost

    def finds_no_room(self, new: Item) -> bool:
        return not new.lasting and (
            len(self.items) >= CAPACITY
            or self.size() + new.size > MAX_BYTES
            or self.size(new.server, of_all=False) + new.size > SHARE
        )

    def expect_notices_merged(self) -> None:
        notices = [i for i in self.waiting() if i.notice]
        if len(notices) < 2:
            return
        for notice in notices:
            self.items.remove(notice)
        self.items.append(
            Item(
                seq=notices[0].seq,
                id=notices[0].id,
                count=sum(i.count for i in notices),
                fold=None,
                notice=True,
                first=min(i.first for i in notices),
                last=max(i.last for i in notices),
            )
        )

    @rule(
        fold=st.sampled_from([None, None, "a", "b"]),
        server=st.sampled_from([None, "x", "x", "y"]),
        lasting=st.booleans(),
        size=st.sampled_from([0, 0, 0, 500, 2_000, 3_000]),
    )
    def add(self, fold: str | None, server: str | None, lasting: bool, size: int) -> None:  # noqa: FBT001 - drawn by name
        fold = fold and f"{fold} {server}"
        times = 1
        for old in [i for i in self.waiting() if fold is not None and i.fold == fold]:
            self.items.remove(old)
            times += old.count
        kind = TASK if lasting else NOTE
        new = Item(self.log.latest + 1, "", times, fold, server, lasting, ENTRY_BYTES + size)
        others = [i for i in self.items if i.server != server and i.lasting]
        evicted, lost = self.expect_room_made(new)
        if not lasting:
            assert all(i in self.items or i.status == "delivered" for i in others)
        added = self.log.add(kind, now=0.0, server=server, size=size, fold=fold)
        new.id = added.event.id
        assert added.event.seq == new.seq
        if self.finds_no_room(new):
            lost.append(new)
        else:
            self.items.append(new)
        dropped = sum(i.count for i in lost)
        assert (added.evicted, added.dropped, added.event.count) == (evicted, dropped, times)
        if lost:
            lost.sort(key=lambda i: i.seq)
            ends = (lost[0].seq, lost[0].id), (lost[-1].seq, lost[-1].id)
            after = f"e{int(added.event.id[1:]) + 1}"
            notice = Item(ends[0][0], after, dropped, None, notice=True)
            notice.first, notice.last = ends
            self.items.append(notice)
            self.expect_notices_merged()
        self.known.append(added.event.id)
        self.added += 1
        nearly_full = len(self.waiting()) + len(self.leased()) >= CAPACITY * 0.8
        assert added.nearly_full == (nearly_full and not self.warned)
        self.warned = nearly_full
        # What was leased never goes, and waits again once its response is lost.
        assert len(self.items) <= max(CAPACITY, self.most_leased) + 2

    def hold(self, lease: Lease, expected: list[Item], remaining: int) -> None:
        assert [(e.id, e.count) for e in lease.events] == [(i.id, i.count) for i in expected]
        assert lease.remaining == remaining
        seqs = [e.seq for e in lease.events]
        assert seqs == sorted(seqs)
        for event, item in zip(lease.events, expected, strict=True):
            if item.notice:
                span = {"count": item.count, "first_id": item.first[1], "last_id": item.last[1]}
                assert event.data == span
                self.known.append(event.id)
        mine = [i for i in expected if i.status == "waiting"]
        for item in mine:
            item.status = "leased"
        self.most_leased = max(self.most_leased, len(self.leased()))
        self.held.append(Held(lease, expected))

    @rule(limit=st.none() | st.integers(0, 12))
    def take(self, limit: int | None) -> None:
        waiting = self.waiting()
        expected = waiting[:limit]
        self.hold(self.log.take(limit=limit), expected, len(waiting) - len(expected))

    @rule(limit=st.none() | st.integers(0, 12), pick=st.integers(0, 1000))
    def take_after(self, limit: int | None, pick: int) -> None:
        after = self.known[-1 - pick % len(self.known)]
        seq = next((i.seq for i in self.items if i.id == after), 0)
        free = [i for i in self.items if i.seq > seq and i.status != "leased"]
        free.sort(key=lambda i: i.seq)
        expected = free[:limit]
        lease = self.log.take_after(after, limit=limit)
        self.hold(lease, expected, len(free) - len(expected))

    @rule(picks=st.sets(st.integers(0, 15)))
    def take_these(self, picks: set[int]) -> None:
        chosen = {self.known[-1 - pick % len(self.known)] for pick in picks}
        waiting = self.waiting()
        expected = [i for i in waiting if i.id in chosen]
        self.hold(self.log.take_these(chosen), expected, len(waiting) - len(expected))

    def expect_waiting_again(self, items: list[Item]) -> None:
        for item in items:
            if item.status != "leased":
                continue
            item.status = "waiting"
            twins = [i for i in self.waiting() if i.fold is not None and i.fold == item.fold]
            if len(twins) == 2:
                twins[1].count += twins[0].count
                self.items.remove(twins[0])
        self.expect_notices_merged()

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), size=st.integers(0, 12))
    def keep_first(self, pick: int, size: int) -> None:
        held = self.held[pick % len(self.held)]
        returned = held.items[size:]
        shrunk = self.log.keep_first(held.lease, size)
        assert shrunk.events == held.lease.events[:size]
        assert shrunk.remaining == held.lease.remaining + len(returned)
        held.lease, held.items = shrunk, held.items[:size]
        self.expect_waiting_again(returned)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100))
    def commit(self, pick: int) -> None:
        held = self.held.pop(pick % len(self.held))
        self.log.commit(held.lease)
        for item in held.items:
            if item.status != "leased":
                continue
            item.status = "delivered"
            assert item.id not in self.told
            self.told[item.id] = 0 if item.notice else item.count
            self.told_dropped += item.count if item.notice else 0

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100))
    def release(self, pick: int) -> None:
        held = self.held.pop(pick % len(self.held))
        self.log.release(held.lease)
        self.expect_waiting_again(held.items)

    @invariant()
    def the_counts_agree(self) -> None:
        assert self.log.statistics() == LogStatistics(
            kept=len(self.items),
            waiting=len(self.waiting()),
            leased=len(self.leased()),
            capacity=CAPACITY,
            bytes=self.size(),
        )

    def teardown(self) -> None:
        """Close everything, read to the end: what was added is what was told or counted lost."""
        for _ in range(len(self.held)):
            self.release(0)
        self.take(None)
        self.commit(0)
        assert sum(self.told.values()) + self.told_dropped == self.added


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
