"""Flows that share run time keep their bound for any run times."""

from __future__ import annotations

from collections import Counter
from itertools import count

import msgspec
import pytest

from fairlead.core.fair.accounts import MOST_OWED
from fairlead.core.fair.flows import FairLane
from fairlead.core.fair.strides import STRIDE_SCALE
from fairlead.core.fair.table import TriggerTable
from fairlead.core.limits.limits import Limit
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import LaneKey, Trigger
from tests.builders import trigger
from tests.simulation.known_run_times import SECOND, Steady

NAMES = ("mail", "pay")
_ids = count(1)


def following(key: str, name: str = "pay") -> Trigger:
    """Return the next trigger."""
    n = next(_ids)
    return trigger(f"t{n}", name, key, seq=n)


# one flow -----------------------------------------------------------------------------------------


class Table:
    """A table of one lane, with room for every task."""

    def __init__(self, slots: int = 10_000) -> None:
        self.ledger = SlotLedger(slots)
        self.ledger.register_queue("q")
        for name in NAMES:
            self.ledger.register_task("q", name)
        self.table = TriggerTable(self.ledger)
        self.table.share_run_time("q", Steady())
        self.weights: dict[str, float] = {}
        self.table.weigh("q", self.weights)

    def push(self, *keys: str) -> None:
        for key in keys:
            self.table.push(following(key))

    def take(self, most: int, now: float = 0.0) -> list[Trigger]:
        return self.table.take(most, now)[0]

    def next(self, most: int, now: float = 0.0) -> list[str]:
        return [found.fairness_key for found in self.take(most, now)]

    def run(self, cost: int) -> str:
        """Run the next task to its end; return its key."""
        [found] = self.take(1)
        self.ledger.release(found, 0.0)
        self.table.ended(found, cost)
        return found.fairness_key

    @property
    def lane(self) -> FairLane:
        return self.table._board.lanes["q", 0, 5]


@pytest.mark.parametrize("tenant", ["", "acme/"])
def test_a_run_that_takes_longer_than_expected_counts_while_it_runs(tenant: str) -> None:
    table, a, b = Table(), f"{tenant}a", f"{tenant}b"
    table.push(*[a] * 3, *[b] * 200)
    _, of_b = sorted(table.take(2), key=lambda found: found.fairness_key)
    table.table.ended(of_b, SECOND)  # while the run of a goes on
    seen = table.next(110, now=100.0)
    assert 95 <= seen.index(a) <= 105


@pytest.mark.parametrize("tenant", ["", "acme/"])
def test_a_run_that_never_ends_does_not_make_other_tasks_of_its_key_free(tenant: str) -> None:
    table, a, b = Table(), f"{tenant}a", f"{tenant}b"
    table.push(a, b)
    table.take(2)
    table.push(*[a] * 500, *[b] * 500)
    for now in range(1, 400):  # one start each second, while the first run of a goes on
        assert table.next(1, float(now))
    spent = Counter(run.trigger.fairness_key for run in table.lane.runs)
    assert spent[b] > spent[a]


def test_a_run_that_hangs_delays_its_key_by_a_bounded_amount() -> None:
    table = Table()
    table.push("a", "a", "b")
    table.run(10**9 * SECOND)
    rank = table.lane.flows["a"].rank
    assert rank == MOST_OWED * STRIDE_SCALE


def test_a_new_weight_divides_what_a_key_owes() -> None:
    table = Table()
    table.push("a", "a", "acme/x", "acme/x")
    for found in table.take(4):
        table.table.ended(found, 10 * SECOND)
    flows = table.lane.flows
    table.weights |= {"a": 10.0, "acme/x": 10.0}
    before = flows["a"].rank - flows["a"].lane.time.now
    table.table.reweigh(LaneKey("q", 0, 5), ["a", "acme/x"])
    assert flows["a"].rank - flows["a"].lane.time.now == pytest.approx(before / 10, rel=1e-3)
    assert flows["acme"].members["acme/x"].rank < 12 * SECOND + SECOND


def test_a_tenant_keeps_what_its_plain_key_owes_when_its_first_path_comes() -> None:
    table = Table()
    table.push("acme", "acme", "other")
    first, second = table.take(2)
    table.push("acme/x")
    for found in (first, second):
        table.table.ended(found, 10 * SECOND)
    assert table.lane.flows["acme"].rank == 10 * SECOND
    assert not table.lane.flows["acme"].running


@pytest.mark.parametrize("tenant", ["", "acme/"])
def test_a_task_with_two_triggers_is_charged_once(tenant: str) -> None:
    table = Table()
    one = following(f"{tenant}a")
    again = msgspec.structs.replace(one, seq=10**6)
    table.table.push(one)
    table.table.push(again)
    assert table.take(2) == [one, again]
    [flow] = table.lane.flows.values()
    assert flow.rank == pytest.approx(SECOND, abs=1)
    table.table.ended(again, 3 * SECOND)
    table.table.ended(one, 0)
    assert flow.rank == pytest.approx(3 * SECOND, abs=1)
    assert flow.is_idle and not [*table.lane.runs]


@pytest.mark.parametrize("tenant", ["", "acme/"])
def test_a_second_trigger_that_is_refused_while_its_task_runs_makes_the_run_no_cheaper(
    tenant: str,
) -> None:
    table = Table()
    one = following(f"{tenant}a")
    again = msgspec.structs.replace(one, seq=10**6)
    for each in (one, again):
        table.table.push(each)
        assert table.take(1) == [each]
    [flow] = table.lane.flows.values()
    table.table.ended(again, 0)  # its claim was refused, because the task runs
    table.table.ended(one, 3 * SECOND)
    assert flow.rank == pytest.approx(3 * SECOND, abs=1)
    assert flow.is_idle and not [*table.lane.runs]


@pytest.mark.parametrize("tenant", ["", "acme/"])
def test_two_triggers_of_one_claim_that_is_lost_leave_no_run_behind(tenant: str) -> None:
    table = Table()
    one = following(f"{tenant}a")
    for each in (one, msgspec.structs.replace(one, seq=10**6)):
        table.table.push(each)
    table.take(2)
    table.table.ended(one, 0)  # the claim names a task once, so one refusal comes back
    assert not [*table.lane.runs]


@pytest.mark.parametrize("tenant", ["", "acme/"])
def test_keys_without_tasks_are_dropped_once_the_lane_has_passed_them(tenant: str) -> None:
    table = Table()
    for n in range(4000):
        table.push(f"{tenant}k{n}", f"{tenant}k{n}")
        assert table.run(SECOND) == table.run(SECOND)
    assert table.lane.size < 3000


def test_stale_places_take_bounded_memory_while_a_limit_holds_a_column_back() -> None:
    table = Table(slots=5000)
    table.ledger.register_task("q", "pay", Limit(1))
    for name in NAMES:
        table.table.push(following("acme/a", name))
        table.table.push(following("acme/b", name))
    table.take(3)
    for n in range(1000):
        table.table.push(following("acme/a", "mail"))
        [found] = table.take(1)
        assert found.name == "mail"
        table.table.freed(table.ledger.release(found, 0.0))
        table.table.ended(found, 1 + n % 3 * SECOND)
    for column in table.table._board.columns.values():
        assert len(column.heads._sorted) + len(column.heads._new) < 100
        for cell in column.cells.values():
            assert len(cell._heads) < 100
