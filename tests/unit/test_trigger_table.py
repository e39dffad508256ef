"""The sorted trigger table: its order, parked columns, and its size however a trigger leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from itertools import count

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limit_tree import LimitTree
from fairlead.core.limits.limits import ConcurrencyPolicy, Full, Limit, RateLimit
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.model import LaneKey, PartitionKey, Trigger
from tests.builders import trigger
from tests.tiers import examples


def table_of(
    *policies: ConcurrencyPolicy, slots: int = 1_000_000
) -> tuple[TriggerTable, SlotLedger]:
    slot_ledger = SlotLedger(slots)
    slot_ledger.register_queue("q", *policies)
    return TriggerTable(slot_ledger), slot_ledger


def ids(table: TriggerTable, now: float = 0.0) -> list[str]:
    return [taken.id for taken in table.take(1_000_000, now)[0]]


class Counted:
    """A policy that counts its calls."""

    def __init__(self, policy: ConcurrencyPolicy) -> None:
        self._policy = policy
        self.column = policy.column
        self.release = policy.release
        self.cancel = policy.cancel
        self.tries: Counter[str] = Counter()

    def acquire(self, trigger: Trigger, now: float) -> Full | None:
        self.tries[trigger.name] += 1
        return self._policy.acquire(trigger, now)

    def tries_since(self) -> int:
        tries = self.tries.total()
        self.tries.clear()
        return tries


# parking ------------------------------------------------------------------------------------------


def test_1000_names_behind_one_full_limit_cost_a_constant_number_of_tries_for_each_task() -> None:
    counted = Counted(Limit(2))
    table, slot_ledger = table_of(counted)
    for n in range(2000):
        table.push(trigger(n, f"name{n % 1000}"))
    running, _ = table.take(500, 0)
    assert [t.id for t in running] == ["0", "1"]
    assert counted.tries_since() <= 1000 + 2  # each name is tried once
    for n in range(2, 200):
        table.freed(slot_ledger.release(running.pop(0), 0))
        taken, _ = table.take(500, 0)
        assert [t.id for t in taken] == [str(n)]
        running += taken
        assert counted.tries_since() <= 3


def test_1000_tasks_under_two_slots_and_a_rate_all_run() -> None:
    """Each task has its own name and runs for 3 seconds. With two slots and a rate of 0.5 a second, the
    two limits are full alternately."""
    slots, rate = Counted(Limit(2)), RateLimit(1, per=2.0, burst=2)
    table, slot_ledger = table_of(slots, rate)
    for n in range(1000):
        table.push(trigger(n, f"name{n}"))
    now, finished = 0.0, 0
    running: list[tuple[float, Trigger]] = []
    order = []
    while finished < 1000:
        taken, _ = table.take(500, now)
        order += [t.id for t in taken]
        running += [(now + 3.0, t) for t in taken]
        retry_at = table.next_retry()
        instants = [end for end, _ in running] + ([] if retry_at is None else [retry_at])
        assert instants, f"finished {finished}, {len(table)} left, and no event will free a limit"
        now = max(now, min(instants))
        for end, one in [r for r in running if r[0] <= now]:
            running.remove((end, one))
            finished += 1
            table.freed(slot_ledger.release(one, now))
    assert order == [str(n) for n in range(1000)]
    assert len(table) == 0
    assert now <= 2.0 * 1000 + 3.0
    assert slots.tries.total() <= 1000 * 10  # not all names are tried again


# pauses, revoked partitions, sizes ----------------------------------------------------------------


def test_a_limit_that_a_paused_queue_waits_for_serves_the_others() -> None:
    shared = Limit(1)
    slot_ledger = SlotLedger(9)
    for queue in ("slow", "q"):
        slot_ledger.register_queue(queue, shared)
    table = TriggerTable(slot_ledger)
    first = trigger("first")
    for one in (first, trigger("slow", queue="slow"), trigger("next")):
        table.push(one)
    assert ids(table) == ["first"]
    table.pause("slow")
    table.freed(slot_ledger.release(first, 0))
    assert ids(table) == ["next"]


class _Everything:
    """A slow model of the table: every take tries every trigger in order."""

    def __init__(self, slot_ledger: SlotLedger) -> None:
        self.slot_ledger = slot_ledger
        self.triggers: list[Trigger] = []
        self.paused: set[str] = set()

    def take(self, limit: int, now: float) -> list[Trigger]:
        taken: list[Trigger] = []
        stopped: set[Hashable] = set()
        for one in sorted(self.triggers, key=lambda t: t.priority):
            column = (self.slot_ledger.column(one), one.ordering_key)
            if (
                len(taken) < limit
                and self.slot_ledger.room
                and one.queue not in self.paused
                and column not in stopped
            ):
                if self.slot_ledger.acquire(one, now) is None:
                    taken.append(one)
                else:
                    stopped.add(column)
        for one in taken:
            self.triggers.remove(one)
        return taken

    def drop(self, partition: PartitionKey) -> list[Trigger]:
        gone = [t for t in self.triggers if (t.queue, t.partition) == partition]
        self.triggers = [t for t in self.triggers if (t.queue, t.partition) != partition]
        return gone


def _limits() -> SlotLedger:
    slot_ledger = SlotLedger(7)
    slot_ledger.register_queue("q", Limit(5), RateLimit(3, per=1.0, burst=4))
    slot_ledger.register_queue(
        "p", LimitTree(4, names={"a": 2}, fairness_keys={"x": 1}, per_fairness_key=2)
    )
    slot_ledger.register_task(
        "q", "a", Limit(2), RateLimit(2, per=1.0, key="fairness_key", burst=1)
    )
    slot_ledger.register_task("q", "b", Limit(1, per="fairness_key"))
    return slot_ledger


_pushes = st.tuples(
    st.just("push"),
    st.builds(
        trigger,
        id=st.uuids(version=4).map(str),
        name=st.sampled_from("abc"),
        priority=st.sampled_from((1, 2, 5, 6, 9)),
        key=st.sampled_from("xyz"),
        ordering_key=st.sampled_from((None, None, "k", "l")),
    ),
)
_steps = st.one_of(
    _pushes,
    _pushes,
    _pushes,
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.just("take"), st.just(100)),
    st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("free"), st.integers(0, 99)),
    st.tuples(st.just("lose"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.integers(0, 1000)),
    st.tuples(st.just("pause"), st.sampled_from("qp")),
    st.tuples(st.just("resume"), st.sampled_from("qp")),
    st.tuples(st.just("drop"), st.builds(PartitionKey, st.sampled_from("qp"), st.integers(0, 1))),
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(_steps, max_size=80))
def test_the_table_takes_the_same_triggers_as_a_model_that_tries_each_in_order(
    steps: list[tuple[str, object]],
) -> None:
    table, model = TriggerTable(_limits()), _Everything(_limits())
    now = 0.0
    running: list[Trigger] = []
    pushes = count(1)

    def push(one: Trigger) -> None:
        lane = "qp"[one.priority // 2 % 2], one.priority % 2  # one lane for each priority
        seq = next(pushes)
        one = msgspec.structs.replace(one, queue=lane[0], partition=lane[1], order_at=seq, seq=seq)
        table.push(one)
        model.triggers.append(one)

    def release(one: Trigger, ran: bool) -> None:
        for slot_ledger in (table._slot_ledger, model.slot_ledger):
            limits = slot_ledger.release(one, now) if ran else slot_ledger.cancel(one, now)
            if one.ordering_key is not None:
                limits += slot_ledger.release_reservation(OrderingKey(one.queue, one.ordering_key))
            if slot_ledger is table._slot_ledger:
                table.freed(limits)

    for what, value in steps:
        if what == "push":
            assert isinstance(value, Trigger)
            push(value)
        elif what in ("take", "lose"):
            assert isinstance(value, int)
            taken, failed = table.take(value, now)
            assert taken == model.take(value, now) and not failed
            if what == "lose":
                for one in taken:
                    release(one, ran=False)
                for one in taken:
                    push(one)
            else:
                running += taken
        elif what == "free" and running:
            assert isinstance(value, int)
            release(running.pop(value % len(running)), ran=True)
        elif what == "wait":
            assert isinstance(value, int)
            now += value / 1000
        elif what == "pause":
            table.pause(str(value))
            model.paused.add(str(value))
        elif what == "resume":
            table.resume(str(value))
            model.paused.discard(str(value))
        elif what == "drop":
            assert isinstance(value, PartitionKey)
            assert sorted(t.id for t in table.drop([value])) == sorted(
                t.id for t in model.drop(value)
            )
        # Sizes are exact however a trigger leaves.
        assert len(table) == len(model.triggers)
        assert len(table) == len(model.triggers)

    # With time and free slots every trigger is taken.
    for queue in "qp":
        table.resume(queue)
        model.paused.discard(queue)
    while table:
        for one in running:
            release(one, ran=True)
        running, _ = table.take(100, now)
        assert running == model.take(100, now)
        if not running:
            retry_at = table.next_retry()
            assert retry_at is not None and retry_at > now
            now = retry_at


# limits of keys that change -----------------------------------------------------------------------


def keys(table: TriggerTable) -> Counter[str]:
    """Start the tasks that may run; return their number by fairness key."""
    return Counter(taken.fairness_key for taken in table.take(1_000_000, 0.0)[0])


def test_the_tighter_of_a_limit_in_the_code_and_one_set_at_run_time_counts() -> None:
    table, _ = table_of(Limit(3, per="fairness_key"))
    table.set_limits("q", {"a": 5, "b": 2})
    for n, key in enumerate("aaaaaabbbbbbcccccc"):
        table.push(trigger(n, key=key))
    assert keys(table) == {"a": 3, "b": 2, "c": 3}
    table.set_limits("q", {})
    assert keys(table) == {"b": 1}


def test_a_paused_queue_stays_paused_when_its_limits_change() -> None:
    table, _ = table_of()
    for n, key in enumerate("aab"):
        table.push(trigger(n, key=key))
    table.pause("q")
    table.set_limits("q", {"a": 1})
    assert not keys(table)
    lane = LaneKey("q", 0, 5)
    assert table.held_back([lane]) == {lane: []}  # so they stay in memory
    table.resume("q")
    assert keys(table) == {"a": 1, "b": 1}
