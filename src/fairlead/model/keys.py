"""Keys of partitions, of lanes, and of tasks in an ordered queue; the tenant of a fairness key."""

from __future__ import annotations

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """Unit of ownership: one node at a time reads and orders a partition of a queue."""

    queue: str
    partition: int


class LaneKey(NamedTuple):
    """Unit of order: one priority of one partition. A fair queue keeps one backlog for each."""

    queue: str
    partition: int
    priority: int


class Feed(NamedTuple):
    """Rows of a fair lane that are read together: those of one fairness key."""

    key: str
    name: str = ""
    """Name of the tasks; empty for all names."""


class TaskKey(NamedTuple):
    """Identity of a task in an ordered queue and its position in the schedule. Keys are compared
    field by field, texts by code point, in memory and in every store."""

    run_at: int
    """Microseconds since the epoch."""
    ordering_key: str
    unique_key: str


BEFORE_ALL = TaskKey(-(1 << 62), "", "")
"""Key below the key of every task."""


PATH_SEPARATOR = "/"
"""Text in a fairness key that is a path. A key without it is a tenant of its own."""


def tenant_of(fairness_key: str) -> str:
    """Return the tenant of a fairness key: the text before the first "/" that is not its first
    character, or the whole key if there is none."""
    end = fairness_key.find(PATH_SEPARATOR, 1)
    return fairness_key if end < 0 else fairness_key[:end]
