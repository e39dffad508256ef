"""Shares of run time keep their bound for any run times, and take each task exactly once."""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import heappop, heappush
from itertools import count, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.fair import runtime_shares as shares_module
from fairlead.core.fair.passes import STRIDE_SCALE
from fairlead.core.fair.run_times import RunTimes
from fairlead.core.fair.runtime_shares import MOST_IN_TABLE, MOST_OWED, RuntimeShares
from fairlead.model import Level, Trigger
from tests.tiers import examples

KEYS = "abcd"
NAMES = ("mail", "pay")
SECOND = 1_000_000
weights_by_key = st.fixed_dictionaries(dict.fromkeys(KEYS, st.sampled_from([0.5, 1.0, 3.0])))
costs = st.integers(1, 20 * SECOND) | st.sampled_from([1, SECOND // 100, SECOND, 15 * SECOND])
"""Microseconds."""
tasks = st.tuples(st.sampled_from(KEYS), st.sampled_from(NAMES), costs)
arrivals = st.lists(st.tuples(st.integers(0, 30 * SECOND), tasks), min_size=1, max_size=50)
_ids = count(1)


def trigger(
    key: str, name: str = "pay", ordering_key: str | None = None, weight: float = 1.0
) -> Trigger:
    number = next(_ids)
    return Trigger(
        f"t{number}",
        1,
        "q",
        0,
        name,
        5,
        key,
        weight,
        ordering_key,
        seq=number,
        level=Level(0, number),
    )


class Steady(RunTimes):
    """Run times with a fixed unit of a second, because the bound holds while the unit does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = SECOND
        self._all.add(SECOND, 1000)

    def _set_unit(self) -> None:
        pass


class Exact(Steady):
    """Run times that are known before the runs."""

    def __init__(self, costs: dict[str, int]) -> None:
        super().__init__()
        self._costs = costs

    def expected(self, name: str, key: str) -> int:
        return self._costs[key]


class Lane:
    """A lane whose tasks run on several workers at once; time is in microseconds."""

    def __init__(self, weights: dict[str, float], run_times: RunTimes, workers: int) -> None:
        self.shares = RuntimeShares(weights, run_times)
        self.run_times = run_times
        self.weights = weights
        self.free = workers
        self.now = 0
        self.costs: dict[str, int] = {}
        self.table: list[tuple[int, int, Trigger]] = []
        self.running: list[tuple[int, int, Trigger]] = []
        self.waiting: Counter[str] = Counter()
        self.charged: dict[str, int] = {}
        """Charge of each task that runs or is in the table, by id, in virtual time."""
        self.of_key: defaultdict[str, set[str]] = defaultdict(set)
        self.most_charged: Counter[str] = Counter()
        self.most_doubt: Counter[str] = Counter()
        self.started: list[Trigger] = []

    def add(self, key: str, name: str, cost: int) -> None:
        new = trigger(key, name, weight=self.weights[key])
        self.costs[new.id] = cost
        self.waiting[key] += 1
        self.shares.add([new], self.now / 1e6)
        self.show()

    def show(self) -> None:
        for shown, pass_ in self.shares.next(self.now / 1e6):
            assert shown.level is not None
            heappush(self.table, (pass_, shown.level.id, shown))
            key = shown.fairness_key
            charge = self.shares._stride(
                self.run_times.charge(shown.name, key), self.shares._tenants[key]
            )
            self.charged[shown.id] = charge
            self.of_key[key].add(shown.id)
            self.most_charged[key] = max(self.most_charged[key], charge)
            doubt = sum(abs(self.took(one, key) - self.charged[one]) for one in self.of_key[key])
            self.most_doubt[key] = max(self.most_doubt[key], doubt)

    def took(self, task: str, key: str) -> int:
        return round(self.run_times.virtual(self.costs[task]) / self.weights[key])

    def start(self) -> Trigger | None:
        if not self.free or not self.table:
            return None
        _, number, found = heappop(self.table)
        self.free -= 1
        self.started.append(found)
        heappush(self.running, (self.now + self.costs[found.id], number, found))
        self.shares.taken([found], self.now / 1e6)
        self.waiting[found.fairness_key] -= 1
        self.show()
        return found

    def end(self) -> None:
        self.now, _, found = heappop(self.running)
        self.free += 1
        self.of_key[found.fairness_key].discard(found.id)
        self.run_times.ended(found.name, found.fairness_key, self.costs[found.id])
        self.shares.ended(found, self.costs[found.id])

    def run(self, arrivals: list[tuple[int, tuple[str, str, int]]], started) -> None:
        """Run all tasks; call `started` at each start, before the task is removed from the waiting ones."""
        arrivals = sorted(arrivals)
        while arrivals or self.running:
            if arrivals and (not self.running or arrivals[0][0] <= self.running[0][0]):
                at, task = arrivals.pop(0)
                self.now = max(self.now, at)
                if not self.waiting[task[0]]:
                    started(task[0], None)
                self.add(*task)
            else:
                self.end()
            while True:
                before = Counter(self.waiting)
                found = self.start()
                if found is None:
                    break
                started(found, before)


def check_bound(lane: Lane, arrivals, times: int) -> None:
    lead = dict.fromkeys(permutations(KEYS, 2), 0)
    """Lead of the first key of a pair over the second, above its least value since both have waiting
    tasks."""

    def started(what, waiting) -> None:
        if waiting is None:  # the key has tasks again
            for pair in lead:
                if what in pair:
                    lead[pair] = 0
            return
        key = what.fairness_key
        for pair in lead:
            if key not in pair or not (waiting[pair[0]] and waiting[pair[1]]):
                continue
            took = lane.took(what.id, key)
            lead[pair] = max(0, lead[pair] + (took if key == pair[0] else -took))
            bound = sum(lane.most_charged[one] + times * lane.most_doubt[one] for one in pair)
            assert lead[pair] <= bound + len(lane.started), (
                pair
            )  # one unit for each task, for rounding

    lane.run(arrivals, started)
    assert len(lane.started) == len(lane.costs) and not lane.shares._flows and not lane.table


@settings(max_examples=examples(100), deadline=None)
@given(weights_by_key, arrivals, st.integers(1, 4))
def test_keys_that_wait_together_have_equal_run_time_by_weight_within_the_bound(
    weights, arrivals, workers
) -> None:
    check_bound(Lane(weights, Steady(), workers), arrivals, times=5)


@settings(max_examples=examples(50), deadline=None)
@given(
    weights_by_key,
    st.fixed_dictionaries(dict.fromkeys(KEYS, st.integers(1000, 20 * SECOND))),
    arrivals,
    st.integers(1, 4),
)
def test_with_exact_expectations_the_bound_of_start_time_fair_queueing_holds(
    weights, cost, arrivals, workers
) -> None:
    exact = [(at, (key, name, cost[key])) for at, (key, name, _) in arrivals]
    lane = Lane(weights, Exact(cost), workers)
    check_bound(lane, exact, times=0)
    assert not any(lane.most_doubt.values())


@settings(max_examples=examples(50), deadline=None)
@given(weights_by_key, arrivals, st.integers(1, 4))
def test_tasks_of_one_key_and_name_start_in_the_order_of_their_levels(
    weights, arrivals, workers
) -> None:
    lane = Lane(weights, Steady(), workers)
    lane.run(arrivals, lambda *_: None)
    last: dict[tuple[str, str], Level] = {}
    for found in lane.started:
        flow = found.fairness_key, found.name
        assert found.level is not None and last.get(flow, Level(0, 0)) < found.level
        last[flow] = found.level


class Uncorrected(RuntimeShares):
    """Shares that keep the expectation and ignore the actual run time."""

    def ended(self, trigger: Trigger, cost: int) -> None:
        super().ended(trigger, self._run_times.expected(trigger.name, trigger.fairness_key))


def test_without_corrections_at_the_end_of_runs_the_bound_breaks() -> None:
    wrong = dict.fromkeys(KEYS, SECOND)
    long_and_short = [
        (0, (key, "pay", cost))
        for key, cost in (("a", 15 * SECOND), ("b", 10_000))
        for _ in range(60)
    ]
    lane = Lane(dict.fromkeys(KEYS, 1.0), Exact(wrong), 1)
    check_bound(lane, long_and_short, times=5)
    lane = Lane(dict.fromkeys(KEYS, 1.0), Exact(wrong), 1)
    lane.shares = Uncorrected(lane.weights, lane.run_times)
    with pytest.raises(AssertionError):
        check_bound(lane, long_and_short, times=5)


def test_a_key_with_long_runs_gets_fewer_runs_as_soon_as_the_first_ones_have_ended() -> None:
    lane = Lane(dict.fromkeys(KEYS, 1.0), Steady(), 1)
    lane.run(
        [
            (0, (key, "pay", cost))
            for key, cost in (("a", 10 * SECOND), ("b", SECOND))
            for _ in range(60)
        ],
        _nothing,
    )
    first = Counter(found.fairness_key for found in lane.started[:55])
    assert first["b"] >= 48


def test_a_run_that_takes_longer_than_expected_counts_while_it_runs() -> None:
    shares, run_times = RuntimeShares({}, Steady()), Steady()
    a = [trigger("a") for _ in range(3)]
    shares.add(a[:1], 0.0)
    shares.next(0.0)
    shares.taken(a[:1], 0.0)
    shares.add(a[1:], 100.0)
    shown = shares.next(100.0)
    assert shown[0].pass_ == run_times.virtual(100 * SECOND)


def test_a_key_that_was_idle_has_saved_no_run_time() -> None:
    shares = RuntimeShares({}, Steady())
    for _ in range(5):
        one = trigger("a")
        shares.add([one], 0.0)
        shares.next(0.0)
        shares.taken([one], 0.0)
        shares.ended(one, 10 * SECOND)
    assert shares.virtual_time == 40 * STRIDE_SCALE
    new = trigger("b")
    shares.add([new], 0.0)
    assert shares.next(0.0)[0].pass_ == shares.virtual_time


def test_a_run_that_hangs_delays_its_key_by_a_bounded_amount() -> None:
    shares = RuntimeShares({}, Steady())
    hung, after, other = trigger("a"), trigger("a"), trigger("b")
    shares.add([hung], 0.0)
    shares.next(0.0)
    shares.taken([hung], 0.0)
    shares.ended(hung, 10**9 * SECOND)
    shares.add([after, other], 0.0)
    found = {shown.trigger.fairness_key: shown.pass_ for shown in shares.next(0.0)}
    assert found == {"a": MOST_OWED * STRIDE_SCALE, "b": 0}


def test_many_short_tasks_but_only_one_long_task_of_a_key_are_in_the_table() -> None:
    short, long = RuntimeShares({}, Exact({"a": 1000})), RuntimeShares({}, Exact({"a": SECOND}))
    for shares, most in ((short, 50), (long, 1)):
        shares.add([trigger("a") for _ in range(200)], 0.0)
        assert len(shares.next(0.0)) == most
        assert len(list(shares.waiting())) == 200 - most
    tiny = RuntimeShares({}, Exact({"a": 1}))
    tiny.add([trigger("a") for _ in range(200)], 0.0)
    assert len(tiny.next(0.0)) == MOST_IN_TABLE


def test_all_tasks_with_ordering_keys_are_in_the_table_because_any_may_be_next() -> None:
    shares = RuntimeShares({}, Steady())
    shares.add([trigger("a", ordering_key=f"o{n % 5}") for n in range(20)], 0.0)
    assert len(shares.next(0.0)) == 20


steps = st.lists(
    st.tuples(st.sampled_from(["add", "take", "return", "end", "remove"]), st.integers(0, 7)),
    max_size=120,
)


@settings(max_examples=examples(200), deadline=None)
@given(steps)
def test_each_task_enters_the_table_exactly_once(steps) -> None:
    shares = RuntimeShares({}, Steady())
    here: dict[str, Trigger] = {}
    table: dict[str, Trigger] = {}
    running: dict[str, Trigger] = {}
    for what, number in steps:
        now = float(number)
        if what == "add":
            added = [
                trigger(KEYS[number % 3], NAMES[number % 2], f"o{number}" if number > 5 else None)
            ]
            here |= {one.id: one for one in added}
            shares.add(added, now)
        elif what == "take" and table:
            taken = [table.pop(task) for task in list(table)[: number + 1]]
            shares.taken(taken, now)
            running |= {one.id: one for one in taken}
        elif what == "return" and running:
            back = [running.pop(next(iter(running)))]
            shares.returned(back, now)
        elif what == "end" and running:
            ended = running.pop(next(iter(running)))
            del here[ended.id]
            shares.ended(ended, number * SECOND)
        elif what == "remove" and here:
            gone = [one for one in here.values() if one.id not in running][number::3]
            assert {one.id for one in shares.remove(gone)} == {
                one.id for one in gone if one.id in table
            }
            for one in gone:
                del here[one.id]
                table.pop(one.id, None)
        for shown, _ in shares.next(now):
            assert shown.id not in table and shown.id not in running
            table[shown.id] = shown
        waiting = {one.id for one in shares.waiting()}
        assert waiting | table.keys() | running.keys() == here.keys()
        assert not waiting & table.keys()
        for one in list(shares.waiting()):
            assert any(
                shares_module._flow(shown) == shares_module._flow(one) for shown in table.values()
            ), "a trigger never enters the table"


def test_a_task_with_two_levels_waits_again_although_one_of_its_claims_was_refused() -> None:
    shares = RuntimeShares({}, Steady())
    one = trigger("a")
    again = msgspec.structs.replace(one, level=Level(1, 10**6))
    shares.add([one, again], 0.0)
    for each in (one, again):
        assert [shown for shown, _ in shares.next(0.0)] == [each]
        shares.taken([each], 0.0)
    shares.ended(one, 0)
    shares.returned([again], 0.0)
    assert [shown for shown, _ in shares.next(0.0)] == [again]


def test_keys_without_tasks_are_dropped_once_the_lane_has_passed_them(monkeypatch) -> None:
    monkeypatch.setattr(shares_module, "MOST_IDLE", 10)
    shares = RuntimeShares({}, Steady())
    for n in range(1000):
        one = trigger(f"k{n}")
        shares.add([one], 0.0)
        shares.next(0.0)
        shares.taken([one], 0.0)
        shares.ended(one, 50 * SECOND)
        assert len(shares._tenants) <= 12


def _nothing(*_: object) -> None:
    pass
