"""The task store: the task row is the truth. Everything in batches, each change a compare-and-set
on the version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from fairlead.model import (
    AttemptRecord,
    Finish,
    GrabbedTask,
    LaneKey,
    NewTask,
    State,
    Submitted,
    TaskRecord,
    Trigger,
)
from fairlead.ports.notification import Wake
from fairlead.ports.statements import Database, Steps


class Grab(msgspec.Struct, frozen=True, gc=False):
    """One task a node wants: it wins if the task is SUBMITTED at exactly this version."""

    id: str
    version: int
    path: str
    stuck_at: int
    """Microseconds; past this the task counts as stuck even while its node lives."""


class TaskFilter(msgspec.Struct, frozen=True):
    """Which tasks of the hot table a listing or a bulk action means; None: any."""

    state: State | None = None
    queue: str | None = None
    name: str | None = None
    fairness_key: str | None = None
    older_than: int | None = None
    """Submitted before this instant (microseconds)."""


class Woken(NamedTuple):
    """What a poller's move answers: how many tasks moved on, and the wake that tells their
    nodes."""

    moved: int
    wake: Wake | None


class Completed(NamedTuple):
    """What a completion answers: the ids this node no longer held, and the wake to announce after
    the commit."""

    refused: list[str]
    wake: Wake | None


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


class QueueSettings(NamedTuple):
    """What people and nodes have set for a queue."""

    partitions: int
    """The greatest number ever registered."""
    paused: bool
    weights_version: int
    """Raised by each change of its weights and limits."""


class KeyLoad(msgspec.Struct, frozen=True):
    """A fairness key of a queue with tasks that may run."""

    fairness_key: str
    tasks: int
    weight: float
    share: float
    """Of the queue's dispatches, as long as the same keys have tasks: its weight among all of
    theirs."""


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as the others see it."""

    node: str
    started_at: int
    seen_at: int
    queues: list[str]


class TaskStore(Protocol):
    """Tasks and their history in one database. Steps run in whatever transaction the caller
    chooses."""

    database: Database

    # the user's side ------------------------------------------------------------------------------

    def submission(self, tasks: Sequence[NewTask]) -> Steps[tuple[list[Submitted], Wake]]:
        """Insert the tasks; at most one per (queue, unique_key), a taken key answers the first
        task's id. The wake must reach the nodes after the commit (on PostgreSQL the transaction
        itself carries it)."""

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Wake]]]:
        """The same for very many tasks, given piece by piece: a piece may be made while the one
        before is written, and one that cannot be made ends the transaction."""

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

    def move(
        self, task_id: str, version: int, to: State, run_at: int, now: int, reset_tries: bool
    ) -> Steps[Wake | None]:
        """A person's change to WAITING or SUBMITTED, from any state in the hot table; None when the
        version is stale."""

    def end(self, task_id: str, version: int, to: State, now: int, actor: str) -> Steps[bool]:
        """A person's end of a task: CANCELLED or FAILED; an attempt row is written. False when the
        version is stale."""

    def queue_statuses(self) -> Steps[list[QueueStatus]]:
        """Every queue with its counts by state."""

    def oldest_ready(self) -> Steps[dict[str, int]]:
        """By queue that has SUBMITTED tasks: since when the first of them is ready (microseconds).
        It counts nothing, so that it is cheap however many there are."""

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        """How many tasks of these queues are left to run or to retry, and how many are in ERROR.
        Tasks scheduled ahead that have never run do not count."""

    def ahead(self, task_id: str) -> Steps[int]:
        """How many SUBMITTED tasks of its partition stand before this one."""

    def names(self) -> Steps[dict[tuple[str, str], int]]:
        """How many tasks wait, run or are scheduled, by (queue, name)."""

    def heaviest_keys(self, queue: str, limit: int) -> Steps[tuple[list[KeyLoad], int]]:
        """The keys with most tasks that may run, and how many keys have any."""

    def weights(self, queue: str) -> Steps[dict[str, float]]:
        """The weights set at run time, by fairness key."""

    def limits(self, queue: str) -> Steps[dict[str, int]]:
        """The limits set at run time: by fairness key, how many of its tasks may run at once on
        each node."""

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> Steps[bool]:
        """Set a key's weight, which counts instead of its tasks' own from now on; None: theirs
        count again. False when no node or submit ever named that queue, or there was nothing to
        take back."""

    def pause(self, queue: str, paused: bool) -> Steps[bool]:
        """Pause or resume a queue in the whole cluster; False when no node or submit ever named
        that queue."""

    # the node's side ------------------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        """SUBMITTED tasks of one lane with a ready_seq (`seq` of the trigger) greater than `above`,
        ascending, at most `limit`; never one twice."""

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        """Of each (queue, ordering key) the first `limit` unfinished tasks, in the order in which
        they must run."""

    async def grab(self, node: str, wanted: Sequence[Grab], now: int) -> list[GrabbedTask]:
        """SUBMITTED -> PROCESSING for those still at the wanted version; of many tries exactly one
        wins. A task with an ordering key is refused while one before it, in (run_at, submission)
        order, has not ended."""

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        """End the attempts and move their tasks on, all in one transaction; nothing is written of
        those whose version has moved on."""

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        """The same as steps, for a transactional handler's own transaction."""

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Wake | None:
        """Grabbed but not started: SUBMITTED again at its old place, no attempt spent. Pairs of
        (id, version held)."""

    async def still_held(self, node: str, ids: Sequence[str]) -> set[str]:
        """Which of these this node still holds in PROCESSING."""

    async def forget_grabs(self, node: str, batches: Sequence[int]) -> None:
        """All tasks of these grabs have ended: the store need not remember that they were grabbed
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
    ) -> Wake | None:
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

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        """Nodes whose last heartbeat is more than `silent_for` microseconds old, by the clock they
        share: the database's where there is one, else `now`, this machine's."""

    async def forget_node(self, node: str) -> None:
        """Remove a node: it stopped, or all it held has been resumed."""

    def nodes(self) -> Steps[list[NodeRecord]]:
        """All nodes known."""

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        """The settings of every queue known."""

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        """Make the queues known; answers the settings of each."""
