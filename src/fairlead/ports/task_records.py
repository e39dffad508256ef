"""Tasks as records that people look at and change: listing, history, dead letters, queues in
numbers. A store offers them by `TaskStore.records`."""

from __future__ import annotations

from typing import Protocol

import msgspec

from fairlead.model import AttemptRecord, State, TaskRecord
from fairlead.ports.cluster_state import ClusterState
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Steps


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks of the hot table a listing or a bulk action means; None: any."""

    state: State | None = None
    queue: str | None = None
    name: str | None = None
    fairness_key: str | None = None
    older_than: int | None = None
    """Submitted before this instant (microseconds)."""


class QueueStatus(msgspec.Struct, frozen=True):
    """A queue in numbers."""

    queue: str
    partitions: int
    paused: bool
    waiting: int
    submitted: int
    processing: int
    error: int
    oldest_ready_at: int | None


class KeyLoad(msgspec.Struct, frozen=True):
    """A fairness key of a queue with tasks that may run."""

    fairness_key: str
    tasks: int
    weight: float
    share: float
    """Of the queue's dispatches, as long as the same keys have tasks: its weight among all of
    theirs."""


class TaskRecords(ClusterState, Protocol):
    """Tasks as people see them. A store may keep records of some tasks only, say
    of those in ERROR: it raises NotSupported when it is asked for another."""

    # looking --------------------------------------------------------------------------------------

    def task(self, task_id: str) -> Steps[TaskRecord | None]:
        """The task, pieced together from its last attempt when it has left the hot table."""

    def tasks(self, where: TaskFilter, limit: int) -> Steps[list[TaskRecord]]:
        """Tasks of the hot table, oldest first, at most `limit`."""

    def payload(self, task_id: str) -> Steps[tuple[bytes, str] | None]:
        """The stored payload and its format, while the task is in the hot table."""

    def attempts(self, task_id: str) -> Steps[list[AttemptRecord]]:
        """All attempts of a task, first to last."""

    def result(self, task_id: str) -> Steps[bytes | None]:
        """The kept result of a finished task."""

    def queue_statuses(self) -> Steps[list[QueueStatus]]:
        """Every queue with its counts by state."""

    def ahead(self, task_id: str) -> Steps[int]:
        """How many SUBMITTED tasks of its partition stand before this one."""

    def names(self) -> Steps[dict[tuple[str, str], int]]:
        """How many tasks wait, run or are scheduled, by (queue, name)."""

    def heaviest_keys(self, queue: str, limit: int) -> Steps[tuple[list[KeyLoad], int]]:
        """The keys with most tasks that may run, and how many keys have any."""

    # changing -------------------------------------------------------------------------------------

    def move(
        self, task_id: str, version: int, to: State, run_at: int, now: int, reset_tries: bool
    ) -> Steps[Notification | None]:
        """A person's change to WAITING or SUBMITTED, from any state in the hot table; None when the
        version is stale."""

    def end(self, task_id: str, version: int, to: State, now: int, actor: str) -> Steps[bool]:
        """A person's end of a task: CANCELLED or FAILED; an attempt row is written. False when the
        version is stale."""

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> Steps[bool]:
        """Set a key's weight, which counts instead of its tasks' own from now on; None: theirs
        count again. False when no node or submit ever named that queue, or there was nothing to
        take back."""

    def pause(self, queue: str, paused: bool) -> Steps[bool]:
        """Pause or resume a queue in the whole cluster; False when no node or submit ever named
        that queue."""
