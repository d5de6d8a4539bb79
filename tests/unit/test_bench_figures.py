"""What the benchmarks make of their samples, and how a target is judged."""

import pytest

from bench.figures import Table, at_most, flat, medians, percentiles


def test_percentiles_are_those_of_the_ordered_samples_in_milliseconds() -> None:
    seconds = [number / 1000 for number in range(100, 0, -1)]
    assert percentiles(seconds) == pytest.approx({"p50_ms": 51, "p95_ms": 96, "p99_ms": 100})
    assert percentiles([0.002]) == {"p50_ms": 2, "p95_ms": 2, "p99_ms": 2}


def test_one_disturbed_block_changes_no_median() -> None:
    blocks = [{"p50_ms": 1.0}, {"p50_ms": 900.0}, {"p50_ms": 1.1}]
    assert medians(blocks) == {"p50_ms": 1.1}


@pytest.mark.parametrize(("value", "met"), [(3.4, True), (3.5, True), (3.6, False)])
def test_a_limit_is_met_up_to_itself(value: float, *, met: bool) -> None:
    check = at_most("p50", value, 3.5, "×")
    assert (check.met, check.target) == (met, "≤ 3.5 ×")


@pytest.mark.parametrize(("last", "met"), [(12.0, True), (13.0, False)])
def test_flat_compares_the_most_with_the_fewest(last: float, *, met: bool) -> None:
    columns = {"1": {"cpu_us": 10.0}, "10": {"cpu_us": 90.0}, "30": {"cpu_us": last}}
    check = flat("backends", columns, "cpu_us")
    assert check.met is met
    assert check.figure == f"{last / 10:.2f} × from 1 to 30"


def test_a_table_shows_each_way_beside_its_floor_and_leaves_out_what_it_lacks() -> None:
    columns = {"direct": {"p50_ms": 0.02}, "proxy": {"p50_ms": 0.1, "memory_mb": 34.56}}
    header, p50, memory = Table(title="", columns=columns, floor="direct").lines()
    assert header.split() == ["direct", "proxy"]
    assert p50.split() == ["p50", "0.020", "ms", "0.100", "ms", "(5.00×)"]
    assert memory.split() == ["memory", "34.6", "MB"]
