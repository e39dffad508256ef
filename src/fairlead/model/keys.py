"""Keys: of partitions, of lanes, of tasks in an ordered queue."""

from __future__ import annotations

from typing import NamedTuple


class PartitionKey(NamedTuple):
    """The unit of ownership: one node at a time reads and orders a partition of a queue."""

    queue: str
    partition: int


class LaneKey(NamedTuple):
    """One priority of one partition: the unit of order. A fair queue keeps one backlog for each."""

    queue: str
    partition: int
    priority: int


class TaskKey(NamedTuple):
    """Which task of an ordered queue this is, and its place in the schedule. Keys are compared
    field by field, texts by code point, in memory as in every store."""

    run_at: int
    """Microseconds."""
    ordering_key: str
    unique_key: str


BEFORE_ALL = TaskKey(-(1 << 62), "", "")
"""Below the key of every task."""
