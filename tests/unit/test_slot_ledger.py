"""The slot ledger acquires a slot of every limit that applies or of none, and exceeds no limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.limits.cluster_limits import ClusterLimit, ClusterRateLimit
from fairlead.core.limits.limit_tree import LimitTree, TreeLimit
from fairlead.core.limits.limits import ConcurrencyPolicy, Full, Limit, RateLimit
from fairlead.core.limits.sharded_permits import Permits
from fairlead.core.limits.slot_ledger import SHORTEST_WAIT, OrderingKey, PolicyFailed, SlotLedger
from fairlead.model import Trigger
from tests.builders import trigger

NAMES = ("pay", "mail", "scan")
KEYS = ("acme", "bolt", "corp")


def slot_ledger(*policies: ConcurrencyPolicy) -> SlotLedger:
    made = SlotLedger(1000)
    made.register_queue("q", *policies)
    return made


class Broken:
    """A policy with a scripted result for each method; a Limit otherwise."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def _answer(self, method: str, otherwise: Any) -> Any:
        answer = self.answers.get(method, otherwise)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def column(self, trigger: Trigger) -> Hashable:
        return self._answer("column", None)  # type: ignore[no-any-return]

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        return self._answer("acquire", None)  # type: ignore[no-any-return]

    def release(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return self._answer("release", ())  # type: ignore[no-any-return]

    def cancel(self, trigger: Trigger, now: float) -> Iterable[Hashable]:
        return self._answer("cancel", ())  # type: ignore[no-any-return]


# all limits ----------------------------------------------------------------------------------


def settle(slots: SlotLedger, one: Trigger) -> list[Hashable]:
    """Release the slots of a run, as when its end is stored."""
    return (
        []
        if one.ordering_key is None
        else slots.release_reservation(OrderingKey(one.queue, one.ordering_key))
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(KEYS), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_after_all_releases_every_limit_is_empty(
    steps: list[tuple[str, str, bool, bool]],
) -> None:
    tree = LimitTree(5, names={"pay": 2}, fairness_keys={"acme": 1}, per_fairness_key=3)
    slots = SlotLedger(6)
    slots.register_task("q", "pay", Limit(3, per="fairness_key"))
    slots.register_queue("q", Limit(4), tree)
    acquired: list[Trigger] = []
    for n, (name, key, ordered, gives_back) in enumerate(steps):
        one = trigger(n, name, key, ordering_key=key if ordered else None)
        if slots.room and slots.acquire(one, n) is None:
            acquired.append(one)
        if gives_back and acquired:
            slots.release(acquired[0], n)
            settle(slots, acquired.pop(0))
        assert slots.room == 6 - len(acquired)
        assert len({t.ordering_key for t in acquired if t.ordering_key}) == sum(
            1 for t in acquired if t.ordering_key
        )
        assert tree.running().get(("total", ""), 0) == len(acquired)
    for one in acquired:
        slots.cancel(one, 0)
        settle(slots, one)
    assert slots.room == 6 and tree.running() == {}
    assert [slots.acquire(trigger(n, "mail", f"k{n}"), 0) for n in range(4)] == [None] * 4


def test_an_empty_ordering_key_is_a_key_unlike_none() -> None:
    slots = slot_ledger()
    assert slots.acquire(trigger(1, ordering_key=""), 0) is None
    assert slots.acquire(trigger(2, ordering_key=""), 0) is not None
    assert slots.acquire(trigger(3), 0) is None and slots.acquire(trigger(4), 0) is None


# policies that misbehave --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "stops_all"),
    [
        (Limit(1), True),
        (Limit(1, per="fairness_key"), False),
        (RateLimit(1, per=9.0), True),
        (RateLimit(1, per=9.0, key="name"), False),
        (LimitTree(1, per_fairness_key=9), True),
        (LimitTree(9, per_fairness_key=1), False),
        (LimitTree(9, names={"pay": 1}), False),
        (ClusterLimit(1).on_node(Permits("n", 15.0), print), True),
        (ClusterLimit(1, per="name").on_node(Permits("n", 15.0), print), False),
        (ClusterRateLimit(1, 9.0).on_node(Permits("n", 15.0), print), True),
        (ClusterRateLimit(1, 9.0, key="fairness_key").on_node(Permits("n", 15.0), print), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_limit_stops_all_tasks_of_a_queue_only_if_all_share_its_slots(
    policy: ConcurrencyPolicy, stops_all: bool
) -> None:
    made = slot_ledger(policy)
    full = made.acquire(trigger(1), 1.0) or made.acquire(trigger(2), 1.0)
    assert full is not None
    assert made.stops_all(full.limit, "q") is stops_all


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("boom"),
        True,
        Full(None),
        Full(["unhashable"]),  # type: ignore[arg-type]
        Full("x", float("nan")),
        Full("x", "soon"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_raises_or_returns_nonsense_leaves_no_slot_taken(answer: Any) -> None:
    good, bad = Limit(1), Broken(acquire=answer)
    slots = slot_ledger(good, bad)
    with pytest.raises(PolicyFailed) as failure:
        slots.acquire(trigger(1, ordering_key="a"), 0)
    assert failure.value.policy is bad and failure.value.trigger.id == "1"
    assert slots.room == 1000
    assert good.acquire(trigger(2), 0) is None
    bad.answers.clear()
    good.release(trigger(2), 0)
    assert slots.acquire(trigger(3, ordering_key="a"), 0) is None


def test_a_policy_that_fails_to_release_affects_no_other_limit() -> None:
    good, bad = Limit(1), Broken(release=RuntimeError("boom"), cancel=[["unhashable"]])
    slots = slot_ledger(bad, good)
    assert slots.acquire(trigger(1), 0) is None
    assert slots.release(trigger(1), 0) == [(good, None)]
    assert slots.acquire(trigger(2), 0) is None
    assert slots.cancel(trigger(2), 0) == [(good, None)]
    assert slots.room == 1000


def test_a_policy_that_fails_to_cancel_does_not_hide_that_another_is_full() -> None:
    slots = slot_ledger(Broken(cancel=RuntimeError("boom")), Broken(acquire=Full("full")))
    assert slots.acquire(trigger(1), 0) == Full("full")


@pytest.mark.parametrize("answer", [RuntimeError("boom"), ["unhashable"]])
def test_a_policy_that_cannot_name_a_column_still_gets_one(answer: Any) -> None:
    hash(slot_ledger(Broken(column=answer)).column(trigger(1)))


def test_a_policy_full_until_a_past_time_is_retried_after_a_pause() -> None:
    assert slot_ledger(Broken(acquire=Full("x", 3.0))).acquire(trigger(1), 5.0) == Full(
        "x", 5.0 + SHORTEST_WAIT
    )


# the limits ---------------------------------------------------------------------------------------


def test_a_limit_per_key_counts_each_key_alone_and_drops_idle_ones() -> None:
    limit = Limit(1, per="fairness_key")
    for n in range(500):
        assert limit.acquire(trigger(n, key=f"k{n}"), 0) is None
        assert limit.acquire(trigger(n, key=f"k{n}"), 0) == Full((limit, f"k{n}"))
        assert list(limit.release(trigger(n, key=f"k{n}"), 0)) == [(limit, f"k{n}")]
    assert not limit._running


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(KEYS), st.booleans()), max_size=80)
)
def test_a_limit_tree_is_never_exceeded_at_any_level_and_refuses_only_when_one_is_full(
    steps: list[tuple[str, str, bool]],
) -> None:
    tree = LimitTree(6, names={"pay": 3, "mail": 4}, fairness_keys={"acme": 1}, per_fairness_key=4)
    running: list[Trigger] = []
    for n, (name, key, frees) in enumerate(steps):
        if frees and running:
            gone = running.pop(n % len(running))
            assert TreeLimit(tree, ("total", ""), False) in list(tree.release(gone, 0))
            continue
        names, keys = Counter(t.name for t in running), Counter(t.fairness_key for t in running)
        has_room = {
            ("total", ""): len(running) < 6,
            ("name", name): names[name] < {"pay": 3, "mail": 4}.get(name, 99),
            ("fairness_key", key): keys[key] < {"acme": 1}.get(key, 4),
        }
        full = tree.acquire(trigger(n, name, key), 0)
        assert (full is None) == all(has_room.values())
        if full is None:
            running.append(trigger(n, name, key))
        else:
            assert isinstance(full.limit, TreeLimit)
            assert not has_room[full.limit.level]


@given(
    n=st.integers(1, 7),
    per=st.integers(1, 10**9).map(lambda ns: ns / 1e9),
    burst=st.integers(1, 9),
    steps=st.lists(
        st.tuples(st.integers(0, 2 * 10**8), st.integers(1, 4), st.integers(0, 2)),
        min_size=1,
        max_size=40,
    ),
)
def test_a_rate_is_never_exceeded_in_any_window_whatever_claims_are_lost(
    n: int, per: float, burst: int, steps: list[tuple[int, int, int]]
) -> None:
    rate = RateLimit(n, per, burst=burst)
    instant, id = 10**15, 0
    starts: list[int] = []
    for wait, tries, lost in steps:
        instant += wait
        acquired = []
        for _ in range(tries):
            id += 1
            if rate.acquire(trigger(id), instant / 1e9) is None:
                acquired.append(trigger(id))
        for one in acquired[:lost]:
            rate.cancel(one, (instant + wait) / 1e9)
        starts += [instant] * len(acquired[lost:])
    nanos = round(per * 1e9)
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert (last - first + 1 - burst) * nanos <= n * (starts[last] - starts[first])


@given(
    n=st.integers(1, 1000),
    per=st.floats(0.001, 1000),
    burst=st.integers(1, 20),
    start=st.floats(0, 1e6),
)
def test_a_rate_admits_its_whole_burst_and_then_one_task_at_each_announced_time(
    n: int, per: float, burst: int, start: float
) -> None:
    rate = RateLimit(n, per, burst=burst)
    now = start
    assert [rate.acquire(trigger(i), now) for i in range(burst)] == [None] * burst
    for i in range(20):
        full = rate.acquire(trigger(burst + i), now)
        assert full is not None and full.retry_at is not None and full.retry_at > now
        now = full.retry_at
        assert rate.acquire(trigger(burst + i), now) is None
    assert now - start == pytest.approx(20 * per / n, rel=1e-6, abs=1e-6)


def test_a_lost_claim_returns_its_token() -> None:
    rate = RateLimit(1, per=10)
    assert rate.acquire(trigger(1), 0) is None and rate.acquire(trigger(2), 0) is not None
    assert list(rate.cancel(trigger(1), 0.5)) == [(rate, None)]
    assert rate.acquire(trigger(2), 0.5) is None
    assert (
        list(rate.release(trigger(2), 1)) == [] and rate.acquire(trigger(3), 1) is not None
    )  # the token of a run is not returned


def test_the_token_of_a_claim_lost_long_ago_is_not_returned() -> None:
    rate = RateLimit(1, per=10)
    assert rate.acquire(trigger(1), 0) is None
    assert rate.acquire(trigger(2), 20) is None
    assert list(rate.cancel(trigger(1), 20)) == []
    assert rate.acquire(trigger(3), 20) is not None


def test_each_key_has_a_bucket_and_full_buckets_are_dropped() -> None:
    rate = RateLimit(1, per=1, key="fairness_key")
    for n in range(20_000):
        assert rate.acquire(trigger(n, key=f"k{n}"), n / 1000) is None
    assert rate.acquire(trigger(1, key="k19999"), 20) is not None
    assert len(rate) <= 2 * 1024
