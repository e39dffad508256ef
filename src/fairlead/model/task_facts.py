"""Facts of tasks and of their history that bounded reads return, for consoles."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlead.model import State, TaskRecord


class TaskPage(msgspec.Struct, frozen=True):
    """A page of tasks."""

    tasks: list[TaskRecord]
    next: str | None
    """Cursor of the next page; None at the end."""
    is_cut: bool = False
    """Whether the page has ended because it walked over as many rows as a page may, so that a next
    page may have more tasks even if this one is empty."""
    not_searched: int = 0
    """Tasks of this page's range that were left out because their payload is too long to search."""


class RunFact(NamedTuple):
    """One attempt of the history."""

    queue: str
    name: str
    fairness_key: str
    weight: float
    ready_at: int | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: str
    next_state: str


class RunningTask(NamedTuple):
    """A task that a node holds."""

    id: str
    version: int
    queue: str
    name: str
    fairness_key: str
    node: str
    claimed_at: int
    """Microseconds since the epoch."""


class KeyCount(NamedTuple):
    """Unfinished tasks of a name and fairness key in one state, among those that were looked at."""

    queue: str
    name: str
    fairness_key: str
    state: State
    tasks: int
    oldest_at: int
    """Earliest time at which one of them became ready, or is to run if it waits."""
    weight: float
    """Greatest weight of the tasks."""


class Backlog(NamedTuple):
    """Counts of unfinished tasks by queue, name, fairness key and state."""

    counts: list[KeyCount]
    factor: float
    """Number of tasks for which one in `counts` stands: 1 if all were counted, more if a sample
    was."""


class ErrorFact(NamedTuple):
    """A task in ERROR."""

    task_id: str
    queue: str
    name: str
    fairness_key: str
    since: int
    error_type: str | None


class KeySetting(NamedTuple):
    """Settings that people and policies have made for a fairness key."""

    queue: str
    fairness_key: str
    weight: float | None
    slots: int | None
    """Tasks of the key that each node may run at once."""
