"""Expected run times: how fast they adapt, and the bounded effect of one outlier or a million keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fair import run_times
from fairlead.core.fair.run_times import ENOUGH, MEMORY, WILD, RunTimes

SECOND = 1_000_000
costs = st.integers(1, 10**12)


def after(*costs: int, name: str = "pay", key: str = "a") -> RunTimes:
    found = RunTimes()
    for cost in costs:
        found.ended(name, key, cost)
    return found


def test_an_unknown_key_has_the_mean_of_its_name_and_an_unknown_name_that_of_the_queue() -> None:
    found = after(*[SECOND] * 20)
    for _ in range(20):
        found.ended("mail", "a", 3 * SECOND)
    assert found.expected("mail", "new") == 3 * SECOND
    assert found.expected("new", "new") == 2 * SECOND


def test_the_mean_follows_a_key_whose_run_times_change() -> None:
    found = after(*[SECOND] * 1000, *[4 * SECOND] * (3 * MEMORY))
    assert found.expected("pay", "a") > 3.7 * SECOND


@given(st.lists(costs, min_size=ENOUGH, max_size=60), costs)
def test_one_outlier_raises_the_expectation_by_a_bounded_share(before, wild) -> None:
    found = after(*before)
    expected = found.expected("pay", "a")
    found.ended("pay", "a", wild)
    runs = min(len(before) + 1, MEMORY)
    assert found.expected("pay", "a") <= expected * (1 + (WILD - 1) / runs) * 1.01 + 2


@given(st.lists(costs, min_size=ENOUGH, max_size=100))
def test_the_expectation_lies_between_the_least_and_the_greatest_run_time(seen) -> None:
    assert min(seen) <= after(*seen).expected("pay", "a") <= max(seen)


@given(
    st.lists(
        st.tuples(st.sampled_from(["pay", "mail"]), st.sampled_from("abc"), costs), max_size=100
    )
)
def test_every_charge_is_a_positive_integer(runs) -> None:
    found = RunTimes()
    for name, key, cost in runs:
        found.ended(name, key, cost)
        for each in ("pay", "mail", "new"):
            assert isinstance(found.charge(each, key), int) and found.charge(each, key) >= 1


def test_the_keys_that_ran_longest_ago_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "MOST_MEANS", 4)
    found = after(*[SECOND] * 20, key="steady")
    for key in ("b", "c", "steady", "d"):
        found.ended("pay", key, 2 * SECOND if key != "steady" else SECOND)
    assert [key for _, key in found._means if key] == ["c", "steady", "d"]
    for name in ("one", "two", "three"):
        found.ended(name, "a", SECOND)
    assert len(found._means) == 4
