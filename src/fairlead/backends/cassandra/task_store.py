"""The task store of an application without a SQL database: it has the queues, nodes and incidents,
and no tasks. Its tasks are in ordered queues, so in a log and a schedule.

An operation that needs rows of tasks raises NotSupported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from fairlead.backends.cassandra import registry
from fairlead.backends.cassandra.database import SQL_CURE, CassandraDatabase
from fairlead.backends.cassandra.ended_tasks import ended_task, last_attempt
from fairlead.backends.cassandra.incidents import CassandraIncidents
from fairlead.backends.cassandra.run_history import CassandraRunHistory
from fairlead.core import values
from fairlead.errors import NotSupported
from fairlead.model import (
    AttemptRecord,
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    State,
    Submitted,
    TaskRecord,
    Trigger,
)
from fairlead.ports.cluster_state import (
    NO_FACTS,
    NodeFacts,
    NodeRecord,
    QueueSettings,
    SettingsMark,
)
from fairlead.ports.notification import Notification
from fairlead.ports.periodic_store import PeriodicStore
from fairlead.ports.run_history import RunHistory
from fairlead.ports.run_notes import RunNotesStore
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Database, Steps
from fairlead.ports.task_records import (
    KeyLoad,
    QueueStatus,
    TaskFilter,
    TaskRecords,
    TaskStatus,
    TaskVersion,
)
from fairlead.ports.task_store import Claim, Completed, Stuck, TaskDeclaration, Woken


class CassandraTaskStore:
    """A task store without tasks. See `fairlead.ports.task_store.TaskStore`."""

    def __init__(self, url: str) -> None:
        """Open no connection yet. Raise ConfigurationError."""
        self.url = url
        self._own = CassandraDatabase(url)
        self.database: Database = self._own
        self.incidents = CassandraIncidents(self.database)

    # abilities ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.database.read_now(self.run_history().store_id())

    def migrate(self) -> list[str]:
        from fairlead.backends.cassandra.schedule import CassandraScheduleStore

        # First, because our statements read the history in the tables of the schedule.
        CassandraScheduleStore(self.url, None).session.migrate_now()
        self._own.session.migrate_now()
        self.database.run(registry.make_store_id())
        return []

    def check(self, tasks: Iterable[TaskDeclaration]) -> None:
        """Accept all tasks: those of ordered queues have no option that only some stores have."""

    def store_id(self) -> Steps[str | None]:
        return (yield from registry.store_id())

    def register_part(self, kind: str, part: str) -> Steps[str]:
        return (yield from registry.register_part(kind, part))

    @property
    def records(self) -> TaskRecords:
        return self

    @property
    def run_notes(self) -> RunNotesStore:
        _refuse("keeps no progress, checkpoints or log lines of runs")

    @property
    def periodics(self) -> PeriodicStore:
        _refuse("has no periodic tasks")

    def as_sql(self) -> SqlStore:
        _refuse("has no tables of tasks")

    def run_history(self) -> RunHistory:
        return CassandraRunHistory(self.database)

    # submitting and managing ----------------------------------------------------------------------

    def submission(self, tasks: Sequence[NewTask]) -> Steps[tuple[list[Submitted], Notification]]:
        _refuse(f"has ordered queues only, and {tasks[0].queue!r} is none")

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Notification]]]:
        for piece in pieces:
            yield from self.submission(piece)
        return [], []

    def task(self, task_id: str) -> Steps[TaskRecord | None]:
        """Return a task that has ended; others are in the schedule."""
        return (yield from ended_task(task_id))

    def tasks(self, where: TaskFilter, limit: int) -> Steps[list[TaskRecord]]:
        _no_rows()

    def ids_after(self, after: str, limit: int) -> Steps[list[str]]:
        _no_record(after)

    def payload(self, task_id: str) -> Steps[tuple[bytes, str] | None]:
        return None
        yield

    def attempts(self, task_id: str) -> Steps[list[AttemptRecord]]:
        """Return the last attempt of a task that has ended; the lake has all attempts."""
        return (yield from last_attempt(task_id))

    def result(self, task_id: str) -> Steps[bytes | None]:
        return None
        yield

    def statuses(self, task_ids: Sequence[str]) -> Steps[list[TaskStatus]]:
        """Return tasks that have ended, one read each: this store keeps no results, so nobody waits
        for many."""
        found = []
        for task_id in task_ids:
            if (task := (yield from self.task(task_id))) is not None:
                error = (task.error_type, task.error_text)
                found.append(TaskStatus(task_id, task.name, task.state, *error, None))
        return found

    def move(
        self, tasks: Sequence[TaskVersion], to: State, run_at: int, now: int, reset_tries: bool
    ) -> Steps[tuple[set[str], Notification]]:
        _no_record(tasks[0][0])

    def change(
        self,
        tasks: Sequence[TaskVersion],
        priority: int | None,
        fairness_key: str | None,
        now: int,
        actor: str,
    ) -> Steps[tuple[set[str], Notification]]:
        _no_record(tasks[0][0])

    def end(
        self, tasks: Sequence[TaskVersion], to: State, now: int, actor: str
    ) -> Steps[tuple[set[str], Notification]]:
        _no_record(tasks[0][0])

    def queue_statuses(self) -> Steps[list[QueueStatus]]:
        """Return the queues without counts; `fairlead ordered status` counts."""
        return [
            QueueStatus(queue, settings.partitions, settings.paused, 0, 0, 0, 0, None)
            for queue, settings in sorted((yield from self.queue_settings()).items())
        ]

    def ahead(self, task_id: str, most: int | None = None) -> Steps[int]:
        _no_record(task_id)

    def names(self) -> Steps[dict[tuple[str, str], int]]:
        return {}
        yield

    def heaviest_keys(self, queue: str, limit: int) -> Steps[tuple[list[KeyLoad], int]]:
        return [], 0
        yield

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> Steps[bool]:
        _refuse("has no weights")

    def set_limit(self, queue: str, fairness_key: str, limit: int | None) -> Steps[bool]:
        _refuse("has no limits of fairness keys")

    def pause(self, queue: str, paused: bool) -> Steps[bool]:
        return (yield from registry.pause(queue, paused))

    def oldest_ready(self) -> Steps[dict[str, int]]:
        return {}
        yield

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        return 0, 0
        yield

    def has_unfinished(self, queues: Sequence[str]) -> Steps[bool]:
        return False
        yield

    def weights(self, queue: str) -> Steps[dict[str, float]]:
        return {}
        yield

    def limits(self, queue: str) -> Steps[dict[str, int]]:
        return {}
        yield

    # for nodes: there is no task ------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        return []
        yield

    def ready_of(
        self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int
    ) -> Steps[list[Trigger]]:
        return []
        yield

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> Steps[tuple[list[Trigger], int | None]]:
        return [], None
        yield

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> Steps[list[tuple[str, int]]]:
        return []
        yield

    def lanes(self) -> Steps[list[LaneKey]]:
        return []
        yield

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        return []
        yield

    def changed(self, tasks: Sequence[tuple[str, int]]) -> Steps[list[str]]:
        return []
        yield

    async def claim(self, node: str, wanted: Sequence[Claim], now: int) -> list[ClaimedTask]:
        return []

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        return Completed([finish.id for finish in finishes], None)

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        _refuse("runs no transactional handlers")

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        return None

    async def still_held(self, node: str, ids: Sequence[str]) -> set[str]:
        return set()

    async def drop_claims(self, node: str, batches: Sequence[int]) -> None:
        """Do nothing: nothing is claimed."""

    async def held(self, node: str) -> list[tuple[str, int]]:
        return []

    async def wake_due(self, now: int, limit: int) -> Woken:
        return Woken(0, None)

    async def next_due(self) -> int | None:
        return None

    async def resume_lost(
        self, nodes: Sequence[str], now: int, limit: int, most_lost: int = 5
    ) -> Woken:
        return Woken(0, None)

    async def stuck(self, now: int, limit: int) -> list[Stuck]:
        return []

    async def release_stuck(
        self, task_id: str, version: int, to: State, now: int, reason: str
    ) -> Notification | None:
        return None

    async def clean(self, before: int, limit: int) -> int:
        """Do nothing: the owners of partitions clean the history."""
        return 0

    # the cluster ----------------------------------------------------------------------------------

    async def register_node(
        self,
        node: str,
        queues: Sequence[str],
        names: Sequence[str],
        now: int,
        facts: NodeFacts = NO_FACTS,
    ) -> Notification:
        await self.database.run_async(registry.register_node(node, queues, names, now, facts))
        return Notification(control=True)

    async def heartbeat(self, node: str, now: int) -> bool:
        return await self.database.run_async(registry.beat(node, now))

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        nodes = await self.database.read(registry.nodes())
        return [each.node for each in nodes if each.heartbeat_at < now - silent_for]

    async def drop_node(self, node: str) -> Notification:
        await self.database.run_async(registry.remove(node))
        return Notification(control=True)

    def nodes(self) -> Steps[list[NodeRecord]]:
        return (yield from registry.nodes())

    def settings_mark(self) -> Steps[SettingsMark]:
        return SettingsMark((yield from self.queue_settings()))

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        return (yield from registry.queue_settings())

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        return await self.database.run_async(self.registration(partitions))

    def registration(self, partitions: dict[str, int]) -> Steps[dict[str, QueueSettings]]:
        return (yield from registry.register(partitions))

    def resizing(self, queue: str, partitions: int, version: int) -> Steps[bool]:
        return (yield from registry.resize(queue, partitions, version))


def _no_rows() -> NoReturn:
    _refuse("keeps no rows of tasks", "`fairlead ordered tasks QUEUE` lists what waits")


def _no_record(task_id: str) -> NoReturn:
    _refuse(
        f"keeps no record of task {values.brief(task_id)}",
        "`fairlead ordered tasks QUEUE` lists what waits, and the lake has what has run",
    )


def _refuse(what: str, instead: str = SQL_CURE) -> NoReturn:
    raise NotSupported(f"an application without a SQL database {what}: {instead}")
