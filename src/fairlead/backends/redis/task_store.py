"""The task store on Redis alone: a task is a message of a sharded queue. The task runs at least
once, and its message is then removed.

There are no rows. A node holds a claimed task for as long as it extends the claim. The end of a run
removes the message, and one script writes the next message if the task is not done. Only tasks in
ERROR are kept, for a person to decide. An operation that Redis cannot do raises NotSupported;
docs/reference/guarantees.md has the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NoReturn

import msgspec

from fairlead.backends.redis.database import SQL_STORES, RedisDatabase
from fairlead.backends.redis.dead_letters import DeadLetters
from fairlead.backends.redis.incidents import RedisIncidents
from fairlead.backends.redis.periodic import RedisPeriodics
from fairlead.backends.redis.queues import Queues
from fairlead.backends.redis.registry import RedisSteps, Registry
from fairlead.backends.redis.sharded import message
from fairlead.backends.redis.sharded.claims import Claims, LaneClaim, PriorityLane
from fairlead.backends.redis.sharded.consumer import Consumer
from fairlead.backends.redis.sharded.endpoint import GROUP, RedisEndpoint
from fairlead.backends.redis.sharded.lanes import Delivery
from fairlead.backends.redis.sharded.stats import Stats
from fairlead.backends.redis.task_messages import RETRY, HeldTask, error_fields, held, new_entry
from fairlead.backends.redis.task_reads import RedisTaskReads, require_error
from fairlead.clock import MICROS
from fairlead.core import values
from fairlead.errors import NotSupported
from fairlead.model import (
    PRIORITIES,
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
from fairlead.ports.statements import Database
from fairlead.ports.task_records import (
    KeyLoad,
    QueueStatus,
    TaskFilter,
    TaskRecords,
    TaskStatus,
    TaskVersion,
)
from fairlead.ports.task_store import Claim, Completed, Stuck, TaskDeclaration, Woken

MOST_LOST = 5
"""Lost runs of a task after which it goes to ERROR, since the task may kill its workers."""

_NO_RECORD = "Redis keeps no record of a single task, except of tasks in ERROR"


class RedisTaskStore:
    """A task store without rows. See `fairlead.ports.task_store.TaskStore`."""

    def __init__(self, endpoint: RedisEndpoint) -> None:
        self.endpoint = endpoint
        self.database: Database = RedisDatabase(endpoint)
        self.claimed: dict[str, HeldTask] = {}
        """Tasks that this node has claimed and not ended, by task id."""
        self.consumer: Consumer | None = None
        """The consumer of this node, while the node runs."""
        self._registered: set[str] = set()
        """Queues that this process has registered."""
        self._registry = Registry(endpoint.prefix)
        self._queues = Queues(endpoint, MOST_LOST)
        self._dead_letters = DeadLetters(self._registry, self._queues)
        self.incidents = RedisIncidents(endpoint.prefix, self.database, self._dead_letters)
        self.reads = RedisTaskReads(self._dead_letters)

    # abilities ------------------------------------------------------------------------------------

    runs = None

    def with_tasks(self) -> RedisTaskStore:
        return self

    def prepare(self) -> None:
        """Use Redis as it is: there are no tables."""

    def migrate(self) -> list[str]:
        return []

    def check(self, tasks: Iterable[TaskDeclaration]) -> None:
        for task in tasks:
            asked = ("transactional", "keep_result", "keep_log")
            if found := [f"{option}=True" for option in asked if getattr(task, option)]:
                what = found[0]
                raise NotSupported(
                    f"task {task.name!r} has {what}, which {self.database.location} cannot do;"
                    f" {SQL_STORES} can"
                )

    @property
    def records(self) -> TaskRecords:
        return self

    @property
    def run_notes(self) -> RunNotesStore:
        raise NotSupported(
            f"{self.database.location} keeps no progress, checkpoints or log lines of runs;"
            f" {SQL_STORES} do"
        )

    @property
    def periodics(self) -> PeriodicStore:
        return RedisPeriodics(self.endpoint.prefix, self._registry, self)

    def as_sql(self) -> SqlStore:
        raise NotSupported(
            f"{self.database.location} has no rows of tasks and attempts; {SQL_STORES} do"
        )

    def run_history(self) -> RunHistory:
        raise NotSupported(f"{self.database.location} has no ordered queues; {SQL_STORES} do")

    def store_id(self) -> RedisSteps[str | None]:
        return None
        yield

    def register_part(self, kind: str, part: str) -> RedisSteps[str]:
        return part
        yield

    # submitting and managing ----------------------------------------------------------------------

    def submission(
        self, tasks: Sequence[NewTask]
    ) -> RedisSteps[tuple[list[Submitted], Notification]]:
        lanes: defaultdict[PriorityLane, list[int]] = defaultdict(list)
        for i, task in enumerate(tasks):
            if task.keep_result:
                raise NotSupported(
                    f"task {task.name!r} has keep_result=True: Redis keeps no results;"
                    f" {SQL_STORES} do"
                )
            lanes[PriorityLane(task.queue, task.priority)].append(i)
        if unknown := {task.queue for task in tasks} - self._registered:
            yield from self._registry.register(unknown)
            self._registered |= unknown
        window = round(self.endpoint.unique * 1000)
        submitted: list[Submitted | None] = [None] * len(tasks)
        for lane, of_lane in lanes.items():
            entries = [new_entry(tasks[i], window) for i in of_lane]
            written = yield from self._queues.at(lane).put(entries)
            for i, (stream, name) in zip(of_lane, written, strict=True):
                submitted[i] = (
                    Submitted(tasks[i].id, True)
                    if stream is not None
                    else Submitted(name.decode(), False)
                )
        return [found for found in submitted if found is not None], Notification()

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> RedisSteps[tuple[list[Submitted], list[Notification]]]:
        # Check all tasks before the first is written: there is no transaction to undo.
        tasks = [task for piece in pieces for task in piece]
        submitted, notification = yield from self.submission(tasks)
        return submitted, [notification]

    def task(self, task_id: str) -> RedisSteps[TaskRecord | None]:
        found = yield from self._dead_letters.task(task_id)
        if found is None:
            raise NotSupported(f"task {values.brief(task_id)}: {_NO_RECORD}; {SQL_STORES} do")
        return found

    def tasks(self, where: TaskFilter, limit: int) -> RedisSteps[list[TaskRecord]]:
        require_error(where)
        if where.argument is not None:
            raise NotSupported(f"Redis cannot search arguments; {SQL_STORES} can")
        return (yield from self._dead_letters.matching(where, limit))

    def finished(self, where: TaskFilter, limit: int) -> RedisSteps[list[TaskRecord]]:
        _refuse("Redis keeps no history of finished tasks")

    def ids_after(self, after: str, limit: int) -> RedisSteps[list[str]]:
        """Return ids of tasks in ERROR only."""
        where = TaskFilter(state=State.ERROR, after=after)
        return [task.id for task in (yield from self._dead_letters.matching(where, limit))]

    def payload(self, task_id: str) -> RedisSteps[tuple[bytes, str] | None]:
        return (yield from self._dead_letters.payload(task_id))

    def attempts(self, task_id: str) -> RedisSteps[list[AttemptRecord]]:
        yield from self.task(task_id)
        return []

    def result(self, task_id: str) -> RedisSteps[bytes | None]:
        _refuse("Redis keeps no results")

    def statuses(self, task_ids: Sequence[str]) -> RedisSteps[list[TaskStatus]]:
        _refuse("Redis keeps no results")

    def move(
        self, tasks: Sequence[TaskVersion], to: State, run_at: int, now: int, reset_tries: bool
    ) -> RedisSteps[tuple[set[str], Notification]]:
        """Move tasks in ERROR, to run at once; any other move is refused."""
        return (yield from self._dead_letters.requeue(tasks, reset_tries)), Notification()

    def change(
        self,
        tasks: Sequence[TaskVersion],
        priority: int | None,
        fairness_key: str | None,
        now: int,
        actor: str,
    ) -> RedisSteps[tuple[set[str], Notification]]:
        _refuse("Redis cannot change the priority or fairness key of a task")

    def end(
        self, tasks: Sequence[TaskVersion], to: State, now: int, actor: str
    ) -> RedisSteps[tuple[set[str], Notification]]:
        """End tasks in ERROR; any other task is refused."""
        ended = yield from self._dead_letters.drop(tasks)
        return ended, Notification(control=True, finished=sorted(ended))

    def queue_statuses(self) -> RedisSteps[list[QueueStatus]]:
        statuses = []
        for queue, settings in (yield from self.queue_settings()).items():
            stats = yield from self._stats(queue)
            oldest = min(
                (found.oldest for found in stats if found.oldest is not None), default=None
            )
            statuses.append(
                QueueStatus(
                    queue,
                    settings.partitions,
                    settings.paused,
                    sum(found.later for found in stats),
                    sum(found.waiting for found in stats),
                    sum(found.pending for found in stats),
                    sum(found.dead for found in stats),
                    None if oldest is None else round(oldest * MICROS),
                )
            )
        return statuses

    def oldest_ready(self) -> RedisSteps[dict[str, int]]:
        statuses = yield from self.queue_statuses()
        return {
            status.queue: status.oldest_ready_at
            for status in statuses
            if status.oldest_ready_at is not None
        }

    def unfinished(self, queues: Sequence[str]) -> RedisSteps[tuple[int, int]]:
        left = in_error = 0
        for queue in queues:
            for lane in (yield from self._queues.written(queue)):
                of_lane, dead = yield from self._queues.at(lane).unfinished(RETRY)
                left += of_lane
                in_error += dead
        return left, in_error

    def has_unfinished(self, queues: Sequence[str]) -> RedisSteps[bool]:
        for queue in queues:
            for lane in (yield from self._queues.written(queue)):
                if (yield from self._queues.at(lane).has_unfinished(RETRY)):
                    return True
        return False

    def ahead(self, task_id: str, most: int | None = None) -> RedisSteps[int]:
        _refuse(_NO_RECORD)

    def names(self) -> RedisSteps[dict[tuple[str, str], int]]:
        return {}
        yield

    def heaviest_keys(self, queue: str, limit: int) -> RedisSteps[tuple[list[KeyLoad], int]]:
        return [], 0
        yield

    def weights(self, queue: str) -> RedisSteps[dict[str, float]]:
        found: dict[str, float] = yield from self._queues.at(
            PriorityLane(queue, PRIORITIES[0])
        ).weights()
        return found

    def limits(self, queue: str) -> RedisSteps[dict[str, int]]:
        return {}  # see `set_limit`
        yield

    def set_weight(self, queue: str, fairness_key: str, weight: float | None) -> RedisSteps[bool]:
        if queue not in (yield from self.queue_settings()):
            return False
        was_there = fairness_key in (yield from self.weights(queue))
        for priority in PRIORITIES:
            yield from self._queues.at(PriorityLane(queue, priority)).set_weight(
                fairness_key, weight
            )
        return weight is not None or was_there

    def set_limit(self, queue: str, fairness_key: str, limit: int | None) -> RedisSteps[bool]:
        raise NotSupported(
            "limits of fairness keys are set where tasks live in a SQL database; on Redis alone,"
            " declare them in the code: concurrency=Limit(5, per='fairness_key')"
        )
        yield

    def pause(self, queue: str, paused: bool) -> RedisSteps[bool]:
        return (yield from self._registry.pause(queue, paused))

    # running --------------------------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> RedisSteps[list[Trigger]]:
        return []
        yield

    def ready_of(
        self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int
    ) -> RedisSteps[list[Trigger]]:
        return []
        yield

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> RedisSteps[tuple[list[Trigger], int | None]]:
        return [], None
        yield

    def ready_keys(
        self, lane: LaneKey, above: str, limit: int
    ) -> RedisSteps[list[tuple[str, int]]]:
        return []
        yield

    def lanes(self) -> RedisSteps[list[LaneKey]]:
        return []
        yield

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> RedisSteps[list[tuple[Trigger, State]]]:
        return []
        yield

    def changed(self, tasks: Sequence[tuple[str, int]]) -> RedisSteps[list[str]]:
        return []
        yield

    async def claim(self, node: str, wanted: Sequence[Claim], now: int) -> list[ClaimedTask]:
        """Claim from memory: a task in memory was claimed when it was read."""
        found = []
        for claim in wanted:
            mine = self.claimed.get(claim.id)
            if mine is not None and mine.version == claim.version and claim.id in self._claims:
                found.append(mine.claimed())
        return found

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        by_lane: defaultdict[PriorityLane, list[message.ClaimEnd]] = defaultdict(list)
        refused = []
        for finish in finishes:
            claims, mine = self._claims.of(finish.id), self.claimed.get(finish.id)
            if not claims or mine is None or mine.version + 1 != finish.version:
                refused.append(finish.id)
                continue
            first, *doubles = claims
            by_lane[first.lane].append(_end(first.id, mine, finish))
            for claim in doubles:
                by_lane[claim.lane].append(message.ClaimEnd(claim.id, "done"))
        lost = await self._finish(by_lane)
        for finish in finishes:
            claims = self._claims.pop(finish.id)
            self.claimed.pop(finish.id, None)
            if claims and claims[0] in lost:
                refused.append(finish.id)
        return Completed(refused, None)

    def completion(self, node: str, finishes: Sequence[Finish]) -> RedisSteps[Completed]:
        _refuse("a task on Redis cannot join a transaction")

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        await self.release([task_id for task_id, _ in held])
        return None

    async def release(self, task_ids: Collection[str]) -> None:
        """Write tasks back to their queues, for any node, after claims without a run. Raise
        StoreUnavailable while Redis is unavailable."""
        by_lane: defaultdict[PriorityLane, list[message.ClaimEnd]] = defaultdict(list)
        for task_id in task_ids:
            mine = self.claimed.get(task_id)
            for i, claim in enumerate(self._claims.of(task_id)):
                again = (
                    message.ClaimEnd(claim.id, "again", mine.again())
                    if mine is not None and i == 0
                    else None
                )
                by_lane[claim.lane].append(again or message.ClaimEnd(claim.id, "done"))
        await self._finish(by_lane)
        for task_id in task_ids:
            self._claims.pop(task_id)
            self.claimed.pop(task_id, None)

    async def still_held(self, node: str, ids: Sequence[str]) -> set[str]:
        return {task_id for task_id in ids if task_id in self._claims}

    async def drop_claims(self, node: str, batches: Sequence[int]) -> None:
        """Do nothing: claims are not recorded in batches."""

    async def held(self, node: str) -> list[tuple[str, int]]:
        return []

    def take(self, queue: str, delivery: Delivery) -> Trigger | None:
        """Keep a claimed message, and return its trigger; None if the message is no task."""
        try:
            found = held(queue, delivery)
        except (msgspec.DecodeError, KeyError):
            return None
        claim = LaneClaim(PriorityLane(queue, delivery.priority), delivery.message.id)
        is_double = found.body.id in self._claims and claim not in self._claims.of(found.body.id)
        self._claims.add(found.body.id, claim)
        if not is_double:
            self.claimed[found.body.id] = found
        return self.claimed[found.body.id].trigger()

    def settled(self, task_ids: Iterable[str]) -> None:
        """Drop those of the tasks that another node has reclaimed."""
        for task_id in task_ids:
            if task_id not in self._claims:
                self.claimed.pop(task_id, None)

    # pollers: readers of the queue do their work --------------------------------------------------

    async def wake_due(self, now: int, limit: int) -> Woken:
        return Woken(0, None)

    async def next_due(self) -> int | None:
        return None

    async def resume_lost(
        self,
        nodes: Sequence[str],
        now: int,
        limit: int,
        most_lost: int = 5,
    ) -> Woken:
        return Woken(0, None)

    async def stuck(self, now: int, limit: int) -> list[Stuck]:
        return []

    async def release_stuck(
        self,
        task_id: str,
        version: int,
        to: State,
        now: int,
        reason: str,
    ) -> Notification | None:
        return None

    async def clean(self, before: int, limit: int) -> int:
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
        await self.database.run_async(self._registry.register_node(node, queues, names, facts))
        return Notification(control=True)

    async def heartbeat(self, node: str, now: int) -> bool:
        known: bool = await self.database.run_async(self._registry.beat(node))
        return known

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        found: list[str] = await self.database.read(self._registry.silent(silent_for))
        return found

    async def drop_node(self, node: str) -> Notification:
        await self.database.run_async(self._registry.remove(node))
        return Notification(control=True)

    def nodes(self) -> RedisSteps[list[NodeRecord]]:
        return (yield from self._registry.nodes())

    def settings_mark(self) -> RedisSteps[SettingsMark]:
        return SettingsMark((yield from self.queue_settings()))

    def queue_settings(self) -> RedisSteps[dict[str, QueueSettings]]:
        return (yield from self._registry.settings())

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        found: dict[str, QueueSettings] = await self.database.run_async(
            self._registry.register(partitions)
        )
        return {queue: found[queue] for queue in partitions}

    def registration(self, partitions: dict[str, int]) -> RedisSteps[dict[str, QueueSettings]]:
        found = yield from self._registry.register(partitions)
        return {queue: found[queue] for queue in partitions}

    def resizing(self, queue: str, partitions: int, version: int) -> RedisSteps[bool]:
        _refuse("queues on Redis have no partitions")

    # helpers --------------------------------------------------------------------------------------

    @property
    def _claims(self) -> Claims:
        assert self.consumer is not None
        return self.consumer.claims

    async def _finish(self, by_lane: dict[PriorityLane, list[message.ClaimEnd]]) -> set[LaneClaim]:
        assert self.consumer is not None
        return set(await self.consumer.finish(by_lane)) if by_lane else set()

    def _stats(self, queue: str) -> RedisSteps[list[Stats]]:
        found = []
        for lane in (yield from self._queues.written(queue)):
            found.append((yield from self._queues.at(lane).stats(GROUP)))
        return found


def _end(id: str, mine: HeldTask, finish: Finish) -> message.ClaimEnd:
    if finish.next_state == State.ERROR:
        return message.ClaimEnd(id, "dead", error_fields(finish))
    if finish.next_state == State.WAITING:
        return message.ClaimEnd(id, "later", mine.next(finish))
    if finish.next_state == State.SUBMITTED:
        return message.ClaimEnd(id, "again", mine.next(finish))
    return message.ClaimEnd(id, "done")


def _refuse(why: str) -> NoReturn:
    raise NotSupported(f"{why}; {SQL_STORES} do")
