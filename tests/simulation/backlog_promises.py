"""The promises of a fair backlog, checked from outside after every step of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from fairlead.core.levels.backlog import Backlog
from fairlead.model import LaneRecord, Level, Trigger
from tests.simulation.backlog_lane import Owner, Task, key_of, level_of, shown

Waiting = Mapping[tuple[str, int], Task]


def check_next_owner(
    record: LaneRecord, stored: Sequence[Trigger], waiting: Waiting, begin: Callable[[], Backlog]
) -> None:
    """Check that the next owner would find every task after a crash at this moment. `stored` has the
    entries above the saved A."""
    if stored and record.max_level <= record.ack_level:
        assert not begin().is_at_end, "the next owner will not read the stored entries"
    for key in waiting.keys() - map(key_of, stored):
        task = waiting[key]
        assert task.trigger.seq > record.read_seq or task.is_late or not task.is_committed, (
            f"the next owner will not find {shown(task.trigger)}"
        )


def check_levels(owner: Owner) -> None:
    """Check that A only moves forward, is not above R, and stays below every level that was given and
    is not merged."""
    backlog = owner.backlog
    assert backlog.ack_level >= owner.ack_level, "A moved back"
    owner.ack_level = backlog.ack_level
    assert backlog.read_level >= backlog.ack_level, "R is below A"
    assert owner.table.keys() == backlog._memory.loaded.keys(), (
        "the reported changes do not add up to the loaded triggers"
    )
    for trigger in () if owner.has_acked_a_successor else owner.placed:
        assert level_of(trigger) > backlog.ack_level, f"A is not below {shown(trigger)}"


def check_none_lost(owner: Owner, stored: Sequence[Trigger], waiting: Waiting) -> None:
    """Check that every waiting task is in the source, on its way into the backlog, or in the backlog.
    `stored` has the entries above A."""
    missing = waiting.keys() - map(key_of, chain(owner.in_memory(), owner.intake or (), stored))
    for key in missing:
        task = waiting[key]
        assert (
            task.trigger.seq > owner.position or task.is_to_be_announced or not task.is_committed
        ), f"lost: {shown(task.trigger)}"


def check_memory(backlog: Backlog, stored: set[Level]) -> None:
    """Check that memory holds the stored entries in (A, R]. `stored` has the entries above A."""
    assert not (stored and backlog.is_at_end) or max(stored) <= backlog.max_level, "a row above M"
    assert backlog._memory.loaded.keys().isdisjoint(backlog._memory.taken), (
        "a trigger waits that was taken"
    )
    if backlog.write is not None:
        return
    assert not (stored and backlog._memory.unstored), (
        "a trigger is only in memory although the store has entries above A"
    )
    memory = {
        *backlog._memory.loaded,
        *backlog._memory.taken,
        *backlog._memory.acked,
    } - backlog._memory.unstored.keys()
    assert memory <= stored, f"in memory and not stored: {shown(memory - stored)}"
    missing = stored - memory
    if not backlog.is_at_end:
        missing = {level for level in missing if level <= backlog.read_level}
    assert not missing, f"stored below R and not in memory: {shown(missing)}"
