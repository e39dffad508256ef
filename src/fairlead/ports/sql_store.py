"""The store in SQL tables: with the cluster and the tasks, what people read and change, notes and
results of runs, periodic tasks, and transactions of handlers. `Cluster.with_tables` returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fairlead.model import AttemptRecord, Finish, State, TaskRecord
from fairlead.model.run_notes import Progress, ProgressReport, RunNotes
from fairlead.ports.cluster import Cluster
from fairlead.ports.notification import Notification
from fairlead.ports.statements import SqlDatabase, Statement, Steps
from fairlead.ports.task_records import (
    KeyLoad,
    QueueStatus,
    TaskFilter,
    TaskStatus,
    TaskVersion,
)
from fairlead.ports.task_store import Completed, TaskStore


class SqlStore(TaskStore, Cluster, Protocol):
    """Tasks in the tables of a SQL database. Times are microseconds since the epoch. Import this
    class for type annotations only; get a store from `App.sql_store` or
    `fairlead.connect.task_store`."""

    @property
    def database(self) -> SqlDatabase:
        """Database that runs the steps."""

    @property
    def keeps_levels(self) -> bool:
        """Whether the application keeps the levels of fair queues in this database, so that the
        store makes and checks their tables."""

    @property
    def sql(self) -> Mapping[str, str]:
        """Statements by name, in the dialect of the database."""

    def statement(self, name: str, *params: Any) -> Statement:
        """Return the named statement with its parameters."""

    def announce(self, notification: Notification) -> Steps[None]:
        """Send the notification with the commit of this transaction if the database can; otherwise
        the caller announces it after the commit."""

    def shared_clock(self, now: int) -> Steps[int]:
        """Return the clock for heartbeats (microseconds since the epoch): the database's if nodes
        may be on many machines, else `now`."""

    def bound_pauses(self, seconds: float) -> Steps[None]:
        """Let the database end this transaction, and release its locks, if the process pauses for
        longer between two statements. Nothing on SQLite, whose locks end with the process."""

    def weights(self, queue: str) -> Steps[dict[str, float]]:
        """Return the weights set at run time, by fairness key."""

    def limits(self, queue: str) -> Steps[dict[str, int]]:
        """Return the limits set at run time: by fairness key, how many of its tasks may run at once
        on each node."""

    def set_weights(self, queue: str, keys: Sequence[str], weight: float | None) -> Steps[int]:
        """Set the weight of different keys, which replaces the weights of their tasks from now on;
        None removes it. Return the number of keys that have the weight now, or of the removed
        weights; none if the queue was never registered or submitted to."""

    def set_limits(self, queue: str, keys: Sequence[str], limit: int | None) -> Steps[int]:
        """Set how many tasks of each of different keys may run at once on each node, in place of
        the limit of a policy; None removes it. Return a number as `set_weights` does."""

    # for nodes ------------------------------------------------------------------------------------

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        """Complete as `complete` does, in the transaction of a transactional handler."""

    async def write_progress(self, node: str, reports: Sequence[ProgressReport]) -> None:
        """Store the progress of tasks that this node holds at these versions, in one statement. An
        earlier report of a run never replaces a later one."""

    def store_checkpoint(self, node: str, task_id: str, version: int, value: bytes) -> Steps[bool]:
        """Store JSON that the next run of the task gets with its claim, in place of an earlier
        one. Return False, and store nothing, if the node does not hold the task at this version."""

    async def drop_claims(self, node: str, but: Sequence[int]) -> None:
        """Drop the records of batches of claims of this node, if a store keeps some, but not these
        batches, and none with a task that the node still holds in PROCESSING."""

    async def clean(self, before: int, limit: int) -> int:
        """Delete up to `limit` rows of history (attempts, results, unique keys) that ended before
        `before`. Return their number, at least `limit` while there may be more."""

    def oldest_ready(self) -> Steps[dict[str, int]]:
        """Return, for each queue with SUBMITTED tasks, since when the first of them is ready
        (microseconds since the epoch). Counts nothing, so that the cost does not grow with the
        number of tasks."""

    def has_unfinished(self, queues: Sequence[str]) -> Steps[bool]:
        """Return whether a task of these queues is left to run or to retry. Reads no task but the
        first, and those that wait until before the first retry, so that `--until-empty` can ask
        several times a second. May miss a task that changes its state meanwhile."""

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

    def progress(self, task_id: str) -> Steps[Progress | None]:
        """Return the progress of the latest run that reported any."""

    def run_notes(self, task_id: str) -> Steps[list[RunNotes]]:
        """Return the notes of the latest 200 runs that have any, first to last."""

    def statuses(self, task_ids: Sequence[str]) -> Steps[list[TaskStatus]]:
        """Return the statuses of those tasks that exist, in one statement. The id of a status is
        the given one."""

    def queue_statuses(self) -> Steps[list[QueueStatus]]:
        """Return the status of every queue. May read every unfinished task, so only commands of
        people call it."""

    def ahead(self, task_id: str, most: int | None = None) -> Steps[int]:
        """Return how many SUBMITTED tasks of its partition come before this one, counted up to
        `most`."""

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
