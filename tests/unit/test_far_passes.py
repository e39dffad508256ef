"""Virtual times stay exact however many tasks a lane has run, and never leave the range that the
stores and records can keep."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from fairlead.core.fair.table import TriggerTable
from fairlead.core.levels.backlog import Backlog, Changes, Timing
from fairlead.core.levels.levels import LAST_PASS
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.model import LaneKey, LaneRecord, Level, Trigger
from tests import tiers
from tests.builders import trigger
from tests.tiers import seeds

MONTH = 30 * 86_400 * 10_000 * 1_000_000
"""Virtual time of a lane that is never empty for 30 days, at 10,000 tasks of weight 1 a second."""


def level_of(row: Trigger) -> Level:
    assert row.level is not None
    return row.level


class FarLane:
    """A lane with memory for ten triggers, whose virtual time begins at `start`."""

    def __init__(self, start: int) -> None:
        self.weights: dict[str, float] = {}
        at = Level(start, 1)
        record = LaneRecord(at, at, at)
        self.backlog = Backlog(1, record, 10, Timing(delete_acks=1), self.weights)
        self.rows: list[Trigger] = []
        """Stored entries, ascending by level."""
        self.table = TriggerTable(SlotLedger(10**9))
        self.table.weigh("q", self.weights)
        self.number = 0
        self._read()

    def add(self, keys: Sequence[tuple[str, float]]) -> None:
        triggers = []
        for key, weight in keys:
            self.number += 1
            triggers.append(trigger(self.number, "n", key, weight=weight))
        self._apply(self.backlog.add(triggers))
        self._read()

    def run(self, most: int) -> list[int]:
        """Run the next tasks; return their numbers."""
        ran = []
        while len(ran) < most and (taken := self.table.take(1, 0.0)[0]):
            ran.append(taken[0].seq)
            self.backlog.take(taken)
            self.backlog.ack(taken)
            self._read()
        return ran

    def reweigh(self, key: str, weight: float) -> None:
        self.weights[key] = weight
        self.table.reweigh(LaneKey("q", 0, 5), [key])

    def _read(self) -> None:
        while (read := self.backlog.next_read()) is not None:
            above = [row for row in self.rows if level_of(row) > read.above]
            self._apply(self.backlog.read(read, above[: read.limit]))
        if (through := self.backlog.next_delete(0.0)) is not None:
            self.rows = [row for row in self.rows if level_of(row) > through]
            self.backlog.upkeep.deleted(through, 0.0)

    def _apply(self, changes: Changes) -> None:
        if self.backlog.write is not None:
            self.rows = sorted([*self.rows, *self.backlog.write.entries], key=level_of)
            changes = self.backlog.written(0.0)
        self.table.remove(changes.dropped)
        for each in changes.added:
            self.table.push(each)


def order(start: int, seed: int) -> list[int]:
    """Return the order of the tasks of a random world."""
    chance = random.Random(f"far lane {seed}")
    keys = [(f"k{n}", chance.choice([0.001, 0.03, 1.0, 1.0, 7.0, 1000.0])) for n in range(12)]
    lane, ran = FarLane(start), []
    for _ in range(60):
        kind = chance.random()
        if kind < 0.5:
            lane.add([chance.choice(keys) for _ in range(chance.choice([1, 3, 40]))])
        elif kind < 0.95:
            ran += lane.run(chance.choice([1, 5, 30]))
        else:
            lane.reweigh(chance.choice(keys)[0], chance.choice([0.001, 1.0, 1000.0]))
    ran += lane.run(10**6)
    assert sorted(ran) == list(range(1, lane.number + 1))
    return ran


@pytest.mark.parametrize("seed", seeds(2))
def test_the_order_is_the_same_after_a_month_as_at_first(seed: int) -> None:
    """Weights of 0.001 beside 1,000; a float would lose the last bits beyond 2**53."""
    first = order(10**6, tiers.seed() + seed)
    for start in (2**53 + 1, MONTH + 1, LAST_PASS // 2 + 1):
        assert order(start, tiers.seed() + seed) == first


@pytest.mark.parametrize("seed", seeds(2))
def test_every_task_runs_once_at_the_end_of_the_virtual_time(seed: int) -> None:
    for before in (0, 1, 10**7, 10**10):
        order(LAST_PASS - before, tiers.seed() + seed)


def test_a_lane_at_the_end_of_the_virtual_time_keeps_records_and_rows_that_can_be_read() -> None:
    lane = FarLane(LAST_PASS - 10**9)
    lane.add([("a", 0.001)] * 200)
    for _ in range(150):
        lane.run(1)
        lane.add([("a", 0.001), ("b", 1.0)])
        record = lane.backlog.record()
        assert msgspec.json.decode(msgspec.json.encode(record), type=LaneRecord) == record
        lane.reweigh("b", 0.001)
    assert len(lane.rows) <= 200 + 150 + 20
    assert all(level_of(row).pass_ <= LAST_PASS for row in lane.rows)
