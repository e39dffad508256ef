"""A trigger: the small message that a task may run, with its level in a fair backlog."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.model.states import TriggerPath


class Level(NamedTuple):
    """Where a task stands in a fair backlog; compared lexicographically."""

    pass_: int
    """The pass: virtual time at which the task starts (dimensionless; a task of weight 1 takes
    1,000,000)."""
    id: int
    """Unique in the lane, ascending in the order in which levels were given."""


LOWEST = Level(0, 0)
"""Below every level that is given to a task."""


class Trigger(msgspec.Struct, frozen=True, gc=False):
    """The small message "task X at version V may run"."""

    id: str
    version: int
    queue: str
    partition: int
    name: str
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    path: str = TriggerPath.HOOK
    seq: int = 0
    """Its place in the channel that carried it (ready_seq on the database channel)."""
    level: Level | None = None
    """Its place in a fair backlog; None in a fifo queue, and before it is given."""
    order_at: int = 0
    """With its id, its place among the tasks of its ordering key (microseconds), as far as is
    known."""
