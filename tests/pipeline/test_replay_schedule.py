"""Arrivals under a policy: no task is lost, no slot is idle while a task waits, and tasks run in the
order of the policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapreplace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlead.clock import MICROS
from fairlead.core.fair.strides import STRIDE_SCALE
from fairlead.lab.policies import virtual
from fairlead.lab.policies.arrivals import arrivals_of
from fairlead.lab.policies.policy import CandidatePolicy, Limits
from fairlead.lab.policies.virtual import VirtualSchedule, run
from fairlead.model import MAX_WEIGHT, MIN_WEIGHT, Trigger
from tests.fairness_gap import FairnessGap, PriorityFlow
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
@given(tasks, policies.filter(lambda policy: policy.limits == Limits()), weights)
def test_no_slot_is_idle_while_a_task_of_its_node_waits(recorded, policy, weights) -> None:
    found = run(recorded, policy, weights)
    homes = recorded.spread % policy.partitions % policy.nodes
    for node in range(policy.nodes):
        at, start, end = (times[homes == node] for times in (found.at, found.start, found.end))
        for instant in np.unique(np.concatenate((at, start, end))):
            if ((at <= instant) & (start > instant)).any():
                assert ((start <= instant) & (end > instant)).sum() == policy.slots


@settings(max_examples=examples(100), deadline=None)
@given(tasks, policies, st.integers(1, 4))
def test_only_a_key_at_its_own_limit_may_leave_a_slot_idle(recorded, policy, most) -> None:
    policy = CandidatePolicy(order=policy.order, slots=policy.slots, limits=Limits(per_key=most))
    found = run(recorded, policy)
    for instant in np.unique(np.concatenate((found.at, found.start, found.end))):
        runs = (found.start <= instant) & (found.end > instant)
        if runs.sum() < policy.slots:
            for key in np.unique(found.key[(found.at <= instant) & (found.start > instant)]):
                assert (runs & (found.key == key)).sum() == most


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


@contextmanager
def picks_noted() -> Iterator[list[int]]:
    """Record each task as its node picks it, because a schedule does not show the order of tasks without
    run time that started at one instant."""
    picked: list[int] = []

    class NotingNode(virtual.VirtualNode):
        def take(self, now: float) -> list[Trigger]:
            taken = super().take(now)
            picked.extend(task.seq for task in taken)
            return taken

    with patch.object(virtual, "VirtualNode", NotingNode):
        yield picked


# Three tasks of key a and one of key b without run time, at one instant, start in the order a b a a.
# Sorted by key instead of by pick, the order would be a a a b: a gap of 1.5.
@example(arrivals((0, 0, "a"), (0, 0, "a"), (0, 0, "a"), (0, 0, "b")), dict.fromkeys(KEYS, 1.0))
@settings(max_examples=examples(150), deadline=None)
@given(tasks, weights)
def test_one_slot_and_one_partition_keep_the_bound_of_fair_queueing(recorded, weights) -> None:
    with picks_noted() as picked:
        found = run(recorded, CandidatePolicy(slots=1), weights)
    assert sorted(picked) == list(range(len(recorded)))
    assert (np.diff(found.start[picked]) >= 0).all()
    gap = FairnessGap([(PriorityFlow(5, key), weights[key]) for key in recorded.keys])
    # At one instant, tasks first arrive and then start, in the order of the picks.
    arrived = [(at, 0, task) for task, at in enumerate(found.at.tolist())]
    started = [(int(found.start[task]), 1, position) for position, task in enumerate(picked)]
    for _, is_start, number in sorted(arrived + started):
        task = picked[number] if is_start else number
        flow = PriorityFlow(5, recorded.keys[found.key[task]])
        (gap.picked if is_start else gap.arrived)(flow)
    rounding = len(recorded) * 0.5 / STRIDE_SCALE / (2 / MAX_WEIGHT) + 0.001
    assert gap.largest <= 1 + rounding


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
