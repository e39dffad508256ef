"""Triggers: small messages that a task may run, with its level in a fair backlog."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.model.fields import (
    Key,
    Micros,
    Partition,
    Pass,
    Priority,
    Seq,
    TaskId,
    Version,
    Weight,
)
from fairlead.model.states import TriggerPath


class Level(NamedTuple):
    """Position of a task in a fair backlog; compared lexicographically."""

    pass_: Pass
    """Virtual time at which the task starts (dimensionless; a task of weight 1 takes 1,000,000)."""
    id: Seq
    """Unique in the lane; ascends in the order in which levels are given."""


LOWEST = Level(0, 0)
"""Level below every level that is given to a task."""


class Trigger(msgspec.Struct, frozen=True, gc=False):
    """A message "task X at version V may run"."""

    id: TaskId
    version: Version
    queue: str
    partition: Partition
    name: str
    priority: Priority
    fairness_key: Key
    weight: Weight
    ordering_key: Key | None
    path: str = TriggerPath.HOOK
    seq: Seq = 0
    """Position in the channel that carried the trigger (ready_seq on the database channel)."""
    level: Level | None = None
    """Position in a fair backlog; None in a fifo queue, and before a level is given."""
    order_at: Micros = 0
    """Time that orders the task, together with its id, among the tasks of its ordering key
    (microseconds since the epoch), as far as known."""

    def at(self, pass_: int, id: int) -> Trigger:
        """Return the trigger at this level."""
        # A third of the time of msgspec.structs.replace and Level(pass_, id).
        return Trigger(
            self.id,
            self.version,
            self.queue,
            self.partition,
            self.name,
            self.priority,
            self.fairness_key,
            self.weight,
            self.ordering_key,
            self.path,
            self.seq,
            tuple.__new__(Level, (pass_, id)),
            self.order_at,
        )
