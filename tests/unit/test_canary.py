"""The canary window of a policy version: which measurements roll the version back, and the worker time
to which each key is entitled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.pipeline.tuning.canary import Measured, Wait, entitled, judge, misallocated
from fairlead.pipeline.tuning.guard_rails import Guards

amounts = st.floats(0, 1e6)
keys = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.tuples(amounts, st.floats(0.001, 1000)),
    max_size=8,
)


@given(keys, amounts)
def test_entitlements_sum_to_the_capacity_or_the_demand_and_none_exceeds_its_demand(
    found, capacity
) -> None:
    demand = {key: asked for key, (asked, _) in found.items()}
    shares = {key: share for key, (_, share) in found.items()}
    filled = entitled(demand, shares, capacity)
    assert math.isclose(
        sum(filled.values()), min(capacity, sum(demand.values())), rel_tol=1e-6, abs_tol=1e-6
    )
    assert all(0 <= filled[key] <= demand[key] for key in demand)
    # A key that gets less than it demands has the greatest ratio of worker time to share.
    for key in demand:
        if filled[key] < demand[key] * (1 - 1e-9):
            assert all(
                filled[key] / shares[key] >= filled[other] / shares[other] * (1 - 1e-6) - 1e-9
                for other in demand
            )


def test_worker_time_beyond_the_due_share_is_misallocated() -> None:
    much = {"a": 1000.0, "b": 1000.0}
    assert misallocated({"a": 50.0, "b": 50.0}, much, {"a": 1.0, "b": 1.0}) == 0
    assert misallocated({"a": 80.0, "b": 20.0}, much, {"a": 1.0, "b": 1.0}) == pytest.approx(30)
    assert misallocated({"a": 80.0, "b": 20.0}, much, {"a": 4.0, "b": 1.0}) == pytest.approx(0)
    # The other key had no more tasks, so no time is misallocated.
    assert misallocated(
        {"a": 80.0, "b": 20.0}, {"a": 1000.0, "b": 20.0}, {"a": 1.0, "b": 1.0}
    ) == pytest.approx(0)


def measured(misallocated: float | None = 0.1, **waits: tuple[int, float]) -> Measured:
    return Measured({key: Wait(*wait) for key, wait in waits.items()}, misallocated)


def test_a_version_is_rolled_back_when_a_key_it_did_not_touch_waits_much_longer() -> None:
    before = measured(a=(1000, 10.0))
    assert judge(before, measured(a=(1000, 15.0)), Guards()).is_kept
    verdict = judge(before, measured(a=(1000, 15.1)), Guards())
    assert not verdict.is_kept and "key 'a' waits 15.1 s instead of 10.0 s" in verdict.why


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((99, 10.0), (1000, 100.0)),  # the p99 of fewer than 100 tasks is the wait of one task
        ((1000, 10.0), (99, 100.0)),
        ((1000, 0.01), (1000, 0.99)),  # the wait grows by less than a second
    ],
)
def test_inconclusive_measurements_roll_nothing_back(
    before: tuple[int, float], after: tuple[int, float]
) -> None:
    assert judge(measured(a=before), measured(a=after), Guards()).is_kept
    assert judge(measured(), measured(a=(1000, 100.0)), Guards()).is_kept  # the key is new


def test_a_version_is_rolled_back_when_more_worker_time_is_misallocated() -> None:
    assert judge(measured(0.10), measured(0.149), Guards()).is_kept
    verdict = judge(measured(0.10), measured(0.16), Guards())
    assert (
        not verdict.is_kept
        and "16% of the worker time is misallocated instead of 10%" in verdict.why
    )
    assert judge(measured(None), measured(0.9), Guards()).is_kept
    assert judge(measured(0.9), measured(None), Guards()).is_kept


# limits -------------------------------------------------------------------------------------------


def used(busy: float, kept_waiting: float, others: tuple[int, float] | None) -> Measured:
    return Measured({}, 0.1, busy, kept_waiting, None if others is None else Wait(*others))


def test_limits_that_leave_workers_unused_while_no_key_waits_less_are_rolled_back() -> None:
    before = used(1000.0, 0.0, (1000, 10.0))
    verdict = judge(before, used(900.0, math.inf, (1000, 9.5)), Guards())
    assert not verdict.is_kept
    assert verdict.why == (
        "10% less worker time is used while tasks of limited keys wait, and tasks of other keys do not wait less"
    )
    assert judge(before, used(951.0, math.inf, (1000, 9.5)), Guards()).is_kept  # within 5 %
    assert judge(
        before, used(900.0, math.inf, (1000, 9.0)), Guards()
    ).is_kept  # the others wait less
    assert judge(before, used(900.0, 99.0, (1000, 9.5)), Guards()).is_kept  # there was less work


@pytest.mark.parametrize("others", [None, (99, 1.0)])
def test_limits_without_a_known_gain_in_waits_are_rolled_back(
    others: tuple[int, float] | None,
) -> None:
    assert not judge(used(1000.0, 0.0, (1000, 10.0)), used(900.0, 200.0, others), Guards()).is_kept
    assert not judge(used(1000.0, 0.0, others), used(900.0, 200.0, (1000, 1.0)), Guards()).is_kept


def test_a_version_without_limits_may_leave_workers_unused() -> None:
    assert judge(used(1000.0, 0.0, None), used(100.0, 0.0, None), Guards()).is_kept
    assert judge(used(0.0, 0.0, None), used(0.0, math.inf, None), Guards()).is_kept
