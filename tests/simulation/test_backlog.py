"""The fair backlog under faults: ten thousand random schedules of crashes, lost responses and late
writes, checked after every step.

A failure prints the seed of the schedule, its last steps, and the command that repeats it. Set
FAIRLEAD_SEED to repeat a whole run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from fairlead.core.levels.backlog import Backlog, Changes, Timing
from fairlead.model import LaneKey, LaneRecord, Level, Trigger
from fairlead.ports.backlog_store import OwnedBacklog
from fairlead.ports.statements import Steps
from tests import tiers
from tests.builders import trigger
from tests.simulation.backlog_lane import LANE, PARTITION
from tests.simulation.backlog_simulation import Broken, Simulation
from tests.simulation.level_store import LevelStore
from tests.tiers import seeds

SCHEDULES = 100
"""Number of schedules in each block."""


@pytest.mark.parametrize("number", seeds(1))
def test_every_task_runs_exactly_once_under_all_faults(number: int) -> None:
    for seed in tiers.block(number, SCHEDULES):
        try:
            Simulation(seed).run()
        except Broken as broken:
            pytest.fail(f"FAIRLEAD_SEED={tiers.seed()}, block {number}: {broken}", pytrace=False)


# deliberate faults, each of which the simulation must detect -----------------------------------------------------------------


class AckLevelNotPinned(Backlog):
    """The ack level moves past levels that were assigned to a write that is not merged yet."""

    def _begin_write(self, levelled: Sequence[Trigger], leaving: Sequence[Trigger] = ()) -> None:
        super()._begin_write(levelled, leaving)
        assert self.write is not None
        self.write.pin = Level(1 << 62, 0)


class LoadsTwice(Backlog):
    """A read that races with acks adds triggers a second time that are already in memory."""

    def _is_new_level(self, level: Level) -> bool:
        return level > self.ack_level


class AtEndAfterTrim(Backlog):
    """The backlog believes that the store has no more entries after it drops triggers from memory, so
    it never reads them again."""

    def _trim(self) -> list[Trigger]:
        is_at_end = self.is_at_end
        dropped = super()._trim()
        self.is_at_end = is_at_end
        return dropped


class AcksForgotten(Backlog):
    """The backlog forgets entries acked above the ack level, so a second read dispatches them again."""

    def ack(self, triggers: Iterable[Trigger]) -> None:
        super().ack(triggers)
        self._memory.acked.clear()


class UnstoredOmitted(Backlog):
    """The first write omits the triggers that were only in memory until then."""

    def add(self, triggers: Sequence[Trigger]) -> Changes:
        changes = super().add(triggers)
        if self.write is not None:
            self.write.entries = [
                trigger
                for trigger in self.write.entries
                if trigger.level not in self._memory.unstored
            ]
        return changes


class SharedIds(Backlog):
    """Ids do not contain the range id, so two owners give the same ids."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._levels.last_id = 0


class Unfenced(LevelStore):
    """The store accepts the write of a former owner."""

    def _fenced(self, lane: LaneKey, range_id: int) -> Steps[None]:
        yield from ()


BROKEN_BACKLOGS = [
    AckLevelNotPinned,
    LoadsTwice,
    AtEndAfterTrim,
    AcksForgotten,
    UnstoredOmitted,
    SharedIds,
]


@pytest.mark.parametrize("broken", BROKEN_BACKLOGS)
def test_a_broken_backlog_is_detected(broken: type[Backlog]) -> None:
    assert any(_breaks(Simulation(seed, backlog=broken)) for seed in range(3000))


def test_a_broken_store_is_detected() -> None:
    assert any(_breaks(Simulation(seed, store=Unfenced)) for seed in range(3000))


def _breaks(simulation: Simulation) -> bool:
    try:
        simulation.run()
    except Broken:
        return True
    return False


# rare cases -----------------------------------------------------------------------


async def test_a_record_that_takes_effect_after_a_later_write_of_the_same_owner_hides_no_row() -> (
    None
):
    store = LevelStore()
    owned = (await store.take_over([PARTITION]))[PARTITION]
    owner = _backlog(owned)
    late = owner.record()  # times out and may take effect later
    await _write_three(store, owner, owned.range_id)
    await store.write(LANE, owned.range_id, (), late)
    assert _backlog((await store.take_over([PARTITION]))[PARTITION]).next_read() is not None


async def test_rows_that_a_crash_left_at_or_below_the_ack_level_are_deleted_by_the_next_owner() -> (
    None
):
    store = LevelStore()
    owned = (await store.take_over([PARTITION]))[PARTITION]
    owner = _backlog(owned)
    await _write_three(store, owner, owned.range_id)
    while (reading := owner.next_read()) is not None or len(owner):
        if reading is not None:
            owner.read(reading, await store.read_above(LANE, *reading))
        triggers = owner.loaded()
        owner.take(triggers)
        owner.ack(triggers)
    await store.write(LANE, owned.range_id, (), owner.record())
    following = _backlog((await store.take_over([PARTITION]))[PARTITION])
    assert following.next_delete(now=0.0) == following.ack_level


async def _write_three(store: LevelStore, owner: Backlog, range_id: int) -> None:
    reading = owner.next_read()
    assert reading is not None
    owner.read(reading, await store.read_above(LANE, *reading))
    owner.add([_trigger(1), _trigger(2), _trigger(3)])
    assert owner.write is not None
    await store.write(LANE, range_id, owner.write.entries, owner.write.record)
    owner.written(0.0)


def _backlog(found: OwnedBacklog) -> Backlog:
    record = found.lanes.get(LANE.priority, LaneRecord())
    return Backlog(found.range_id, record, 2, Timing())


def _trigger(seq: int) -> Trigger:
    return trigger(str(UUID(int=seq)), "mail", "a", seq=seq, **LANE._asdict())
