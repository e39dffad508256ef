"""Aging between priorities: the bound of the wait, the bound of the share, and strict order without
it."""

from __future__ import annotations

import random
from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import App, ConfigurationError, Limit, LimitTree, RateLimit
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import OrderingKey, SlotLedger
from fairlead.core.triggers.aging import EVERY, Aging
from fairlead.core.triggers.table import TriggerTable
from fairlead.model import LaneKey, Level, Trigger
from tests import tiers
from tests.tiers import examples, seeds

AFTER = 60.0
numbers = count()


def trigger(priority: int, queue: str = "aged", name: str = "pay") -> Trigger:
    return Trigger(str(next(numbers)), 1, queue, 0, name, priority, "", 1.0, None)


def table_of(*limits: ConcurrencyPolicy, slots: int = 1_000_000) -> tuple[TriggerTable, SlotLedger]:
    slot_ledger = SlotLedger(slots)
    slot_ledger.register_queue("aged", *limits)
    slot_ledger.register_queue("strict")
    return TriggerTable(slot_ledger, Aging({"aged": AFTER})), slot_ledger


def priorities(table: TriggerTable, limit: int, now: float) -> list[int]:
    return [taken.priority for taken in table.take(limit, now)[0]]


def flooded(*queues_and_priorities: tuple[str, int], tasks: int = 1000) -> TriggerTable:
    table, _ = table_of()
    for queue, priority in queues_and_priorities:
        for _ in range(tasks):
            table.push(trigger(priority, queue))
    return table


def test_a_starved_priority_gets_every_tenth_start_and_not_one_before() -> None:
    table = flooded(("aged", 0), ("aged", 9))
    assert priorities(table, 100, 0.0) == [0] * 100
    assert priorities(table, 100, AFTER - 0.001) == [0] * 100
    ran = priorities(table, 100, AFTER)
    assert ran == ([0] * (EVERY - 1) + [9]) * 10
    # In takes of any size, the count goes on.
    ran = [priority for n in range(50) for priority in priorities(table, 1 + n % 7, AFTER + n)]
    assert [at for at, priority in enumerate(ran) if priority] == [*range(9, len(ran), EVERY)]


def test_starved_priorities_take_turns_and_share_one_tenth() -> None:
    table = flooded(("strict", 0), ("aged", 7), ("aged", 8), ("aged", 9))
    priorities(table, 1, 0.0)
    ran = priorities(table, 600, AFTER)
    assert Counter(ran) == {0: 540, 7: 20, 8: 20, 9: 20}
    assert [priority for priority in ran if priority][:6] == [7, 8, 9, 7, 8, 9]


def test_a_queue_without_starve_after_stays_strict_beside_one_that_has_it() -> None:
    table = flooded(("aged", 0), ("strict", 9))
    assert priorities(table, 100, 0.0) + priorities(table, 800, AFTER * 9) == [0] * 900


def test_a_priority_that_started_in_its_own_turn_waits_for_starve_after_again() -> None:
    table, _ = table_of()
    for _ in range(3):
        table.push(trigger(9))
    assert priorities(table, 1, 0.0) == [9]
    for _ in range(300):
        table.push(trigger(0))
    assert priorities(table, 10, AFTER - 1) == [0] * 10
    assert priorities(table, 10, AFTER) == [0] * 9 + [9]  # passed over since its own start
    table, _ = table_of()
    for _ in range(3):
        table.push(trigger(9))
    for now in (0.0, AFTER - 1):
        assert priorities(table, 1, now) == [9]
    for _ in range(300):
        table.push(trigger(0))
    assert priorities(table, 100, AFTER * 2 - 2) == [0] * 100


def test_a_priority_without_tasks_is_not_starved_when_its_next_task_arrives() -> None:
    table = flooded(("aged", 0))
    table.push(trigger(9))
    priorities(table, 1, 0.0)
    assert priorities(table, 20, AFTER).count(9) == 1
    priorities(table, 20, AFTER + 1)
    table.push(trigger(9))
    assert priorities(table, 100, AFTER + 2) == [0] * 100
    assert priorities(table, 10, 2 * AFTER + 2).count(9) == 1


@pytest.mark.parametrize("names", [("pay",) * 2, ("pay", "mail")])
def test_a_priority_that_shares_a_full_limit_with_higher_ones_gets_every_tenth_slot(
    names: tuple[str, str],
) -> None:
    """Every task needs the same slots, so a freed one is offered to the higher priority first."""
    table, slot_ledger = table_of(LimitTree(total=2))
    for priority, name in zip((0, 9), names, strict=True):
        for _ in range(100):
            table.push(trigger(priority, name=name))
    running, ran = table.take(100, 0.0)[0], []
    for step in range(1, 101):
        table.freed(slot_ledger.release(running.pop(0), step * 10.0))
        (one,) = table.take(100, step * 10.0)[0]
        running.append(one)
        ran.append(one.priority)
    assert ran[:5] == [0] * 5
    starts = [at for at, priority in enumerate(ran) if priority]
    assert starts and starts == [*range(starts[0], 100, EVERY)]
    assert starts[0] < 6 + EVERY


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from(["aged", "strict"]),
            st.sampled_from(["a", "b"]),
            st.integers(0, 12),
            st.integers(0, 5),
            st.integers(0, 40),
        ),
        max_size=60,
    )
)
def test_starved_priorities_get_at_most_their_share_and_wait_at_most_their_bound(
    steps: list[tuple[int, str, str, int, int, int]],
) -> None:
    """Without limits: the waiting tasks are known to the test."""
    table, _ = table_of()
    strict = TriggerTable(SlotLedger(1_000_000))
    waiting: Counter[tuple[str, int]] = Counter()
    passed_since: dict[tuple[str, int], float] = {}
    ahead: Counter[tuple[str, int]] = Counter()
    """Starts of others since a flow is certainly starved, or since its last start."""
    now, given_away, starts = 0.0, 0, 0
    for priority, queue, name, pushed, taken, seconds in steps:
        now += seconds
        for _ in range(pushed):
            table.push(one := trigger(priority, queue, name))
            strict.push(one)
        waiting[queue, priority] += pushed
        for flow in [flow for flow, tasks in waiting.items() if tasks and flow[0] == "aged"]:
            passed_since.setdefault(flow, now)
        for one in table.take(taken, now)[0]:
            flow = (one.queue, one.priority)
            first = min(p for (_, p), tasks in waiting.items() if tasks)
            starts += 1
            waiting[flow] -= 1
            is_aged = one.priority > first
            given_away += is_aged
            if is_aged:
                assert one.queue == "aged" and now - passed_since[flow] >= AFTER
            starved = [
                f for f, since in passed_since.items() if waiting[f] and now - since >= AFTER
            ]
            ahead.update(f for f in starved if f != flow)
            assert all(ahead[f] <= EVERY * 10 for f in starved)
            ahead[flow] = 0
            if not waiting[flow]:
                passed_since.pop(flow, None)
            elif not is_aged and flow in passed_since:
                passed_since[flow] = now
        assert given_away * EVERY <= starts
    # All are taken in the end, and each once.
    assert len(table.take(1_000_000, now)[0]) == sum(waiting.values())


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 5), st.integers(0, 50)),
        max_size=50,
    )
)
def test_before_starve_after_the_order_is_that_of_a_table_without_it(
    steps: list[tuple[int, int, int, int]],
) -> None:
    aged, strict = table_of()[0], TriggerTable(SlotLedger(1_000_000))
    for step, (priority, pushed, taken, _) in enumerate(steps):
        for n in range(pushed):
            one = trigger(priority, name=f"name {n % 2}")
            aged.push(one)
            strict.push(one)
        now = step * AFTER / 51
        assert aged.take(taken, now) == strict.take(taken, now)


@pytest.mark.parametrize("seed", seeds(200, few=10))
def test_tasks_under_changing_limits_pauses_and_weights_all_start(seed: int) -> None:
    """Fair and fifo tasks, paths, ordering keys; random limits; other nodes take some tasks. Each
    starts once."""
    chance = random.Random(f"aging {tiers.seed() + seed}")
    limits = (
        Limit(2),
        RateLimit(1, per=3.0, key="fairness_key"),
        LimitTree(3, names={"pay": 1}, per_fairness_key=2),
        RateLimit(1, per=3.0),
    )
    table, slot_ledger = table_of(*chance.sample(limits, chance.randint(1, 3)), slots=4)
    weights: dict[str, float] = {}
    table.weigh("aged", weights)
    running: list[Trigger] = []
    pushed, started, now = 0, 0, 0.0

    def end(task: Trigger) -> None:
        table.freed(slot_ledger.release(task, now))
        release_ordering_key(task)

    def release_ordering_key(task: Trigger) -> None:
        if task.ordering_key is not None:
            key = OrderingKey(task.queue, task.ordering_key)
            table.freed(slot_ledger.release_reservation(key))

    for step in range(600):
        now += chance.choice((0.0, 1.0, AFTER))
        is_last = step >= 200
        match chance.choice(("end", "end", "take", "take") if is_last else STEPS):
            case "push":
                for _ in range(chance.randint(1, 6)):
                    table.push(random_trigger(chance))
                    pushed += 1
            case "end" if running:
                end(running.pop(chance.randrange(len(running))))
            case "pause":
                table.pause("aged")
            case "weigh":
                key = chance.choice(AGED_KEYS)
                weights[key] = chance.choice((0.1, 1.0, 50.0))
                table.reweigh(LaneKey("aged", 0, chance.randint(0, 9)), [key])
            case "limit":
                table.set_limits("aged", {chance.choice(AGED_KEYS): chance.randint(1, 2)})
            case "lend":
                lent = table.lend(chance.randint(1, 3), lambda trigger: chance.random() < 0.8)
                started += len(lent)
                for one in lent:
                    release_ordering_key(one.trigger)
            case _:
                found, failed = table.take(chance.randint(1, 5), now)
                assert not failed
                running += found
                started += len(found)
        if is_last or chance.random() < 0.3:
            table.resume("aged")
    for _ in range(2 * pushed):
        now += AFTER
        while running:
            end(running.pop())
        running += (found := table.take(5, now)[0])
        started += len(found)
    assert started == pushed and not len(table)


STEPS = ("push", "push", "end", "take", "take", "pause", "weigh", "limit", "lend")
AGED_KEYS = ("", "a", "b", "t/1", "t/2")


def random_trigger(chance: random.Random) -> Trigger:
    number = next(numbers)
    level = Level(number * 1_000_000, number) if chance.random() < 0.7 else None
    return Trigger(
        str(number),
        1,
        "aged",
        0,
        chance.choice(("pay", "mail", "ship")),
        chance.choice((0, 5, 9)),
        chance.choice(AGED_KEYS),
        1.0,
        chance.choice((None, None, None, "x", "y")),
        level=level,
        order_at=number,
    )


def test_positions_that_are_stale_leave_memory() -> None:
    table, slot_ledger = table_of(Limit(1))
    for _ in range(5000):
        table.push(trigger(0))
    for _ in range(5000):
        (one,) = table.take(10, 0.0)[0]
        table.freed(slot_ledger.release(one, 0.0))
    aging = table._aging
    assert aging is not None
    assert sum(len(flow._positions) for flow in aging._flows.values()) < 200


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_starve_after_must_be_a_time(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="starve_after .* use a number from 0.1 to"):
        App("sqlite:///no.db").queue("q", starve_after=seconds)


def test_an_ordered_queue_has_no_starve_after() -> None:
    with pytest.raises(ConfigurationError, match="leave starve_after= out"):
        App("sqlite:///no.db").queue("q", kind="ordered", starve_after=5.0)
