"""The task store: submit, claim, complete. Everything in batches, each change a compare-and-set on
the version.

Every store keeps `TaskStore`, a new one begins here. Some offer more: `TaskRecords` for people
(task_records.py), `SqlStore` where tasks are rows of tables (sql_store.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.model import (
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    State,
    Submitted,
    TaskRecord,
    Trigger,
)
from fairlead.ports.cluster_state import ClusterState, QueueSettings
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Steps
from fairlead.ports.task_records import TaskRecords


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One task a node wants: it wins if the task is SUBMITTED at exactly this version."""

    id: str
    version: int
    path: str
    stuck_at: int
    """Microseconds; past this the task counts as stuck even while its node lives."""


class Woken(NamedTuple):
    """What a poller's move answers: how many tasks moved on, and the wake that tells their
    nodes."""

    moved: int
    notification: Notification | None


class Completed(NamedTuple):
    """What a completion answers: the ids this node no longer held, and the wake to announce after
    the commit."""

    refused: list[str]
    notification: Notification | None


class TaskDeclaration(Protocol):
    """A declared task, as far as a store may be unable to run it."""

    name: str
    transactional: bool
    keep_result: bool


class TaskStore(ClusterState, Protocol):
    """Tasks until they end: every store keeps these promises. Steps run in whatever transaction the
    caller chooses.

    What not every store has is asked of the store: `records` for people who look at tasks and
    change them, `as_sql` for tables. Nobody asks for the kind of a store.
    """

    # what it is able to do ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Check that the store can be used; a file of one's own gets its tables here. Raises
        SchemaMismatch, StoreUnavailable."""

    def migrate(self) -> list[str]:
        """Bring the tables up to date; return the names of the migrations applied, none where the
        store has no tables. Raises SchemaMismatch, StoreUnavailable."""

    def check(self, tasks: Iterable[TaskDeclaration]) -> None:
        """Raise NotSupported for the first task that this store cannot run as declared."""

    @property
    def records(self) -> TaskRecords:
        """This store for people, who look at tasks and change them. Raises NotSupported where tasks
        cannot be looked at."""

    def as_sql(self) -> SqlStore:
        """Return this store with what its tables add. Raises NotSupported where tasks do not live
        in a SQL database."""

    # the user's side ------------------------------------------------------------------------------

    def submission(self, tasks: Sequence[NewTask]) -> Steps[tuple[list[Submitted], Notification]]:
        """Insert the tasks; at most one per (queue, unique_key), a taken key answers the first
        task's id. The wake must reach the nodes after the commit (on PostgreSQL the transaction
        itself carries it)."""

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Notification]]]:
        """The same for very many tasks, given piece by piece: a piece may be made while the one
        before is written, and one that cannot be made ends the transaction."""

    # the node's side ------------------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        """SUBMITTED tasks of one lane with a ready_seq (`seq` of the trigger) greater than `above`,
        ascending, at most `limit`; never one twice."""

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        """Of each (queue, ordering key) the first `limit` unfinished tasks, in the order in which
        they must run."""

    async def claim(self, node: str, wanted: Sequence[Claim], now: int) -> list[ClaimedTask]:
        """SUBMITTED -> PROCESSING for those still at the wanted version; of many tries exactly one
        wins. A task with an ordering key is refused while one before it, in (run_at, submission)
        order, has not ended."""

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        """End the attempts and move their tasks on, all in one transaction; nothing is written of
        those whose version has moved on."""

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        """Complete as `complete` does, in the transaction of a transactional handler. Raises
        NotSupported where the store takes part in no transaction."""

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        """Claimed but not started: SUBMITTED again at its old place, no attempt spent. Pairs of
        (id, version held)."""

    async def still_held(self, node: str, ids: Sequence[str]) -> set[str]:
        """Which of these this node still holds in PROCESSING."""

    async def drop_claims(self, node: str, batches: Sequence[int]) -> None:
        """All tasks of these claims have ended: the store need not remember that they were claimed
        together."""

    async def held(self, node: str) -> list[tuple[str, int]]:
        """(id, version) of everything this node holds in PROCESSING."""

    # pollers --------------------------------------------------------------------------------------

    async def wake_due(self, now: int, limit: int) -> Woken:
        """WAITING tasks whose time has come -> SUBMITTED."""

    async def next_due(self) -> int | None:
        """When the next WAITING task is due (microseconds), None when there is none."""

    async def resume_lost(
        self,
        nodes: Sequence[str],
        now: int,
        limit: int,
        most_lost: int = 5,
        skipping: Sequence[str] = (),
    ) -> Woken:
        """What these dead nodes had in PROCESSING -> SUBMITTED, the attempt kept as `lost`; a task
        that has now been lost `most_lost` times -> ERROR, for it may be what kills its nodes.
        `skipping`: names of tasks that do not hold the others of their ordering key when they are
        in ERROR."""

    async def stuck(self, now: int, limit: int) -> list[TaskRecord]:
        """Tasks in PROCESSING past their stuck_at."""

    async def release_stuck(
        self,
        task_id: str,
        version: int,
        to: State,
        now: int,
        reason: str,
        skipping: Sequence[str] = (),
    ) -> Notification | None:
        """A stuck task -> SUBMITTED or ERROR, the attempt kept as `lost`; a stale version changes
        nothing. `skipping`: as above."""

    async def clean(self, before: int, limit: int) -> int:
        """Delete up to `limit` rows of history (attempts, results, unique keys) that ended before
        `before`."""

    async def incidents(self, limit: int) -> list[TaskRecord]:
        """Tasks in ERROR, oldest first."""

    # the cluster ----------------------------------------------------------------------------------

    async def heartbeat(self, node: str, queues: Sequence[str], now: int) -> None:
        """Note that the node lives."""

    async def drop_node(self, node: str) -> None:
        """Remove a node: it stopped, or all it held has been resumed."""

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        """Make the queues known; answers the settings of each."""
