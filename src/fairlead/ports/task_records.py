"""Records of tasks, for people who show tasks and change them: listing, history, dead letters,
status of queues. `SqlStore` extends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from fairlead.model import ArgumentFilter, AttemptRecord, State, TaskRecord
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Steps
from fairlead.ports.task_store import TaskStore


class TaskFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects tasks of the hot table for a listing or a bulk action; None selects any value. A
    stored filter of a later version may have further conditions: without them, it would select more
    tasks."""

    state: State | None = None
    queue: str | None = None
    name: str | None = None
    fairness_key: str | None = None
    older_than: int | None = None
    """Instant before which a task was submitted (microseconds since the epoch)."""
    error: str | None = None
    """Part of the type or text of the last error; upper and lower case of ASCII letters are
    alike."""
    after: str | None = None
    """Id of the task after which a listing goes on; of finished tasks, a position."""
    submitted_from: int | None = None
    """Instant at or after which a task was submitted (microseconds since the epoch)."""
    ordering_key: str | None = None
    unique_key: str | None = None
    id_prefix: str | None = None
    """Hexadecimal digits with which the id begins, without hyphens."""
    argument: ArgumentFilter | None = None
    tenants: tuple[str, ...] | None = None
    """Tenants of the fairness keys: see `tenant_of`. An empty tuple selects no task."""


class TaskStatus(msgspec.Struct, frozen=True, gc=False):
    """State of a task, with its last error and its kept result."""

    id: str
    name: str
    state: State
    error_type: str | None
    error_text: str | None
    result: bytes | None
    """JSON of the kept result of a task that is DONE."""


TaskVersion = tuple[str, int]
"""Id of a task, and the version that a change expects."""


class QueueStatus(msgspec.Struct, frozen=True):
    """Status of a queue: the number of tasks by state, and the time since which the oldest is
    ready."""

    queue: str
    partitions: int
    paused: bool
    waiting: int
    submitted: int
    processing: int
    error: int
    oldest_ready_at: int | None
    """Microseconds since the epoch; None if no task is ready."""


class KeyLoad(msgspec.Struct, frozen=True):
    """Load of a fairness key that has tasks that may run."""

    fairness_key: str
    tasks: int
    weight: float
    share: float
    """Fraction of the queue's dispatches while the same keys have tasks: the tenant's weight
    divided by the sum over tenants, times the key's weight divided by the sum over keys of the
    tenant."""


class TaskRecords(TaskStore, Protocol):
    """Records of tasks, for people. A store may keep records of some tasks only, for example of
    those that have ended. Times are microseconds since the epoch."""

    # looking --------------------------------------------------------------------------------------

    def task(self, task_id: str) -> Steps[TaskRecord | None]:
        """Return the task, rebuilt from its last attempt if it has left the hot table."""

    def tasks(self, where: TaskFilter, limit: int) -> Steps[list[TaskRecord]]:
        """Return tasks of the hot table, by id and so the oldest first, at most `limit`."""

    def ids_after(self, after: str, limit: int) -> Steps[list[str]]:
        """Return the ids of tasks after this one, ascending, at most `limit` from the hot table and
        as many from the history."""

    def payload(self, task_id: str) -> Steps[tuple[bytes, str] | None]:
        """Return the stored payload and its format, while the task is in the hot table."""

    def attempts(self, task_id: str) -> Steps[list[AttemptRecord]]:
        """Return all attempts of a task, first to last."""

    def result(self, task_id: str) -> Steps[bytes | None]:
        """Return the kept result of a finished task."""

    def statuses(self, task_ids: Sequence[str]) -> Steps[list[TaskStatus]]:
        """Return the statuses of those tasks that exist, in one statement. The id of a status is
        the given one."""

    def queue_statuses(self) -> Steps[list[QueueStatus]]:
        """Return the status of every queue. May read every unfinished task, so only commands of
        people call it."""

    def ahead(self, task_id: str, most: int | None = None) -> Steps[int]:
        """Return how many SUBMITTED tasks of its partition come before this one, counted up to
        `most`."""

    def names(self) -> Steps[dict[tuple[str, str], int]]:
        """Return how many tasks wait, run or are scheduled, by (queue, name)."""

    def heaviest_keys(self, queue: str, limit: int) -> Steps[tuple[list[KeyLoad], int]]:
        """Return the keys with most tasks that may run, and how many keys have any."""

    # changing -------------------------------------------------------------------------------------

    # Each is one compare-and-set for each task, in a few statements for all of them. They return
    # the ids of the tasks that had the expected version, and the notification to announce.

    def move(
        self, tasks: Sequence[TaskVersion], to: State, run_at: int, now: int, reset_tries: bool
    ) -> Steps[tuple[set[str], Notification]]:
        """Move tasks to WAITING or SUBMITTED for a person, from any state in the hot table."""

    def change(
        self,
        tasks: Sequence[TaskVersion],
        priority: int | None,
        fairness_key: str | None,
        now: int,
        actor: str,
    ) -> Steps[tuple[set[str], Notification]]:
        """Give WAITING or SUBMITTED tasks another priority or fairness key for a person; None keeps
        the present one. SUBMITTED tasks become the last of their lanes. Tasks in another state are
        not changed."""

    def end(
        self, tasks: Sequence[TaskVersion], to: State, now: int, actor: str
    ) -> Steps[tuple[set[str], Notification]]:
        """End tasks for a person: CANCELLED or FAILED, with an attempt row. Raises NotAllowed for
        another state."""

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> Steps[bool]:
        """Set the weight of a key, which replaces the weights of its tasks from now on; None
        removes it. Return False if the queue was never registered or submitted to, or if there was
        no weight to remove."""

    def set_limit(self, queue: str, fairness_key: str, limit: int | None) -> Steps[bool]:
        """Set how many tasks of a key may run at once on each node, in place of the limit of a
        policy; None removes it. Return False if the queue was never registered or submitted to, or
        if there was no limit to remove. Raises NotSupported on a store without such limits."""
