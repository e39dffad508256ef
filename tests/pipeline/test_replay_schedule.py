"""Arrivals under a policy: no task is lost, no slot is idle while a task waits, and tasks run in the
order of the policy."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.clock import MICROS
from fairlead.lab.policies.arrivals import arrivals_of
from fairlead.lab.policies.policy import CandidatePolicy, Limits
from fairlead.lab.policies.virtual import VirtualSchedule, run
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT
from tests.pipeline.replaying import arrivals
from tests.tiers import examples

KEYS = "abc"
tasks = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.sampled_from(KEYS)),
    min_size=1,
    max_size=60,
).map(lambda rows: arrivals(*rows))
limits = st.sampled_from(
    [Limits(), Limits(per_key=1), Limits(per_key=2), Limits(total=2, keys={"a": 1})]
)
policies = st.builds(
    CandidatePolicy,
    order=st.sampled_from(["fifo", "fair"]),
    slots=st.integers(1, 4),
    nodes=st.integers(1, 3),
    partitions=st.integers(1, 5),
    limits=limits,
)
weights = st.fixed_dictionaries(
    {key: st.floats(MIN_WEIGHT, MAX_WEIGHT) | st.sampled_from([1.0, 5.0]) for key in KEYS}
)


def most_running(found: VirtualSchedule, rows: np.ndarray) -> int:
    """Return the greatest number of concurrent runs of these tasks; runs without length overlap none."""
    start, end = found.start[rows], found.end[rows]
    return max((int(((start <= at) & (end > at)).sum()) for at in start), default=0)


# every policy --------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(tasks, policies, weights)
def test_every_task_starts_once_after_its_arrival_and_within_all_limits(
    recorded, policy, weights
) -> None:
    found = run(recorded, policy, weights)
    assert (found.at == recorded.at).all()
    assert (found.start >= found.at).all() and len(found.start) == len(recorded)
    homes = recorded.spread % policy.partitions % policy.nodes
    for node in range(policy.nodes):
        here = homes == node
        assert most_running(found, here) <= min(policy.slots, policy.limits.total or policy.slots)
        for number, key in enumerate(recorded.keys):
            most = policy.limits.keys.get(key, policy.limits.per_key or policy.slots)
            assert most_running(found, here & (found.key == number)) <= most


@settings(max_examples=examples(200), deadline=None)
@given(tasks, policies, weights)
def test_no_slot_is_idle_while_a_task_waits_that_no_limit_holds_back(
    recorded, policy, weights
) -> None:
    found = run(recorded, policy, weights)
    most = min(policy.slots, policy.limits.total or policy.slots)
    homes = recorded.spread % policy.partitions % policy.nodes
    for instant in np.unique(np.concatenate((found.at, found.start, found.end))):
        waits = (found.at <= instant) & (found.start > instant)
        runs = (found.start <= instant) & (found.end > instant)
        for node in np.unique(homes[waits]):
            here = homes == node
            if (runs & here).sum() < most:
                for key in np.unique(found.key[waits & here]):
                    limit = policy.limits.keys.get(recorded.keys[key], policy.limits.per_key)
                    assert (runs & here & (found.key == key)).sum() == limit


# fifo ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None)
@given(tasks, st.integers(1, 5), st.integers(1, 3))
def test_fifo_equals_a_queue_with_as_many_servers_as_slots(recorded, slots, partitions) -> None:
    found = run(recorded, CandidatePolicy(order="fifo", slots=slots, partitions=partitions))
    free = [0] * slots
    for at, takes, start in zip(
        recorded.at.tolist(), recorded.run.tolist(), found.start.tolist(), strict=True
    ):
        began = max(at, free[0])
        heapreplace(free, began + takes)
        assert start == began


# fair ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letters", "weights", "expected"),
    [
        ("aaaab", {}, "abaaa"),
        ("a" * 20 + "b" * 20, {"b": 5.0}, "abbbbb" * 4 + "a" * 16),
        ("aabbbc", {"c": 2.0, "a": 3.0}, "abcabb"),
    ],
)
def test_tasks_that_wait_from_the_start_run_in_the_order_of_their_shares(
    letters: str, weights: dict[str, float], expected: str
) -> None:
    recorded = arrivals(*((0, 1, key) for key in letters))
    found = run(recorded, CandidatePolicy(slots=1), weights)
    order = [recorded.keys[key] for key in found.key[np.argsort(found.start)]]
    assert "".join(order) == expected


def test_a_higher_priority_starts_first_in_both_orders() -> None:
    recorded = arrivals_of(
        at=[0] * 6, run=[MICROS] * 6, keys=list("abcabc"), priority=[4, 2, 3, 5, 1, 9]
    )
    for order in ("fifo", "fair"):
        found = run(recorded, CandidatePolicy(order=order, slots=1))
        assert recorded.priority[np.argsort(found.start)].tolist() == [1, 2, 3, 4, 5, 9]
