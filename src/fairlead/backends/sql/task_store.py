"""The task store over SQL: the part that SQLite and PostgreSQL share.

A dialect adds its statements and its fast paths. Statements of both dialects have the same names
and parameters; a batch is one parameter, a JSON array of arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.migrate import check, migrate
from fairlead.backends.sql.rows import (
    NODE_LOST,
    batch,
    canonical,
    lanes_of,
    lost_attempt,
    notification_for,
    shared,
    storable,
    task_record,
)
from fairlead.backends.sql.run_notes import MOST_NOTES, notes_rows, progress_rows, run_notes
from fairlead.backends.sql.task_records import SqlTaskRecords
from fairlead.errors import ConfigurationError
from fairlead.model import (
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    Progress,
    ProgressReport,
    RunNotes,
    State,
    Submitted,
    Trigger,
    TriggerPath,
)
from fairlead.ports.cluster import (
    ClusterState,
    NodeFacts,
    NodeRecord,
    QueueSettings,
    SettingsMark,
)
from fairlead.ports.notification import Lane, Notification
from fairlead.ports.run_history import RunHistory
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Many, Row, SqlDatabase, Steps
from fairlead.ports.task_store import (
    RESUME_STUCK,
    Completed,
    Stuck,
    SubmitSteps,
    TaskStore,
    Terms,
    Woken,
)

MOST_PASSED = 5000
"""Maximum number of tasks with a fairness key that one search for tasks without one passes."""

_MOST_HELD = 100_000

_CLAIM_ROUNDS = 10
"""Maximum number of tries to claim unique keys. The second is needed only for keys that became free
between the two statements of the first, or whose windows have passed."""

_decode = msgspec.json.Decoder(list[str]).decode


class SqlTaskStore(SqlTaskRecords):
    """A `fairlead.ports.task_store.TaskStore` for both dialects."""

    keeps_levels = False  # until a backlog store is made on this store

    def __init__(self, database: SqlDatabase, sql: dict[str, str]) -> None:
        super().__init__(database, sql)
        self._served: dict[str, tuple[list[str], list[str]]] = {}
        """Queues and task names of the nodes read last, by digest."""

    # other ports on the same tables ---------------------------------------------------------------

    def prepare(self) -> None:
        check(self.database, levels=self.keeps_levels)

    def migrate(self) -> list[str]:
        return migrate(self.database, levels=self.keeps_levels)

    runs: RunHistory | None = None  # the history of all tasks has them

    def with_tasks(self) -> TaskStore:
        return self

    def with_tables(self) -> SqlStore | None:
        return self

    # implemented by a dialect ---------------------------------------------------------------------

    def insert(
        self, tasks: Sequence[NewTask]
    ) -> Steps[tuple[Notification | None, Mapping[str, int]]]:
        """Insert tasks whose unique keys, if any, are claimed already.

        Return the notification unless the transaction carries it, and the tasks' positions in their
        lanes by id, as far as known.
        """
        raise NotImplementedError

    def shared_clock(self, now: int) -> Steps[int]:
        """Return the instant by which nodes compare heartbeats, in microseconds since 1970.

        The database's clock decides if nodes may run on several machines; else `now` is returned.
        """
        return now
        yield

    def bound_pauses(self, seconds: float) -> Steps[None]:
        """Let the transaction end if this process pauses for longer. The locks of a SQLite file end
        with the process only."""
        yield from ()

    # the user's side ------------------------------------------------------------------------------

    def submission(self, tasks: Sequence[NewTask]) -> SubmitSteps:
        if not tasks:
            return [], None
        keyed = [task for task in tasks if task.unique_key is not None]
        if not keyed:
            notification, positions = yield from self.insert(tasks)
            return [
                Submitted(task.id, True, positions.get(task.id)) for task in tasks
            ], notification
        owners = yield from self._claim_unique(keyed)
        fresh = [
            task
            for task in tasks
            if task.unique_key is None or owners[task.queue, task.unique_key] == task.id
        ]
        notification, positions = (yield from self.insert(fresh)) if fresh else (None, {})
        return [
            Submitted(task.id, True, positions.get(task.id))
            if task.unique_key is None
            else Submitted(
                owner := owners[task.queue, task.unique_key],
                owner == task.id,
                positions.get(task.id),
            )
            for task in tasks
        ], notification

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Notification]]]:
        submitted: list[Submitted] = []
        notifications: list[Notification] = []
        for tasks in pieces:
            results, notification = yield from self.submission(tasks)
            submitted += results
            notifications += [] if notification is None else [notification]
        return submitted, notifications

    def _claim_unique(self, tasks: Sequence[NewTask]) -> Steps[dict[tuple[str, str | None], str]]:
        """Claim the unique keys. Return the id of the task that owns each key now: one of ours, or
        an earlier task."""
        first: dict[tuple[str, str | None], NewTask] = {}
        for task in tasks:
            first.setdefault((task.queue, task.unique_key), task)
        # Two transactions with the same keys wait for each other without a deadlock.
        order = sorted(first)
        owners: dict[tuple[str, str | None], str] = {}
        for _ in range(_CLAIM_ROUNDS):
            keys = [key for key in order if key not in owners]
            rows = [(*key, first[key].id, first[key].unique_until) for key in keys]
            claimed = yield self.statement("claim_unique_keys", batch(rows))
            owners |= {(queue, key): owner for queue, key, owner in claimed}
            if len(owners) == len(first):
                return owners
            taken = batch([key for key in keys if key not in owners])
            now = tasks[0].submitted_at
            known = yield self.statement("unique_key_owners", taken, now)
            owners |= {(queue, key): owner for queue, key, owner, is_free in known if not is_free}
            if any(row[3] for row in known):
                yield self.statement("free_unique_keys", taken, now)
            if len(owners) == len(first):
                return owners
        raise ConfigurationError(
            f"{self.database.location}: a unique key is in use, but its row is hidden from this"
            " role; let its policy of row-level security show all rows of fairlead_unique_keys"
        )

    # the node's side ------------------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        return _triggers(lane, (yield self.statement("ready", *lane, above, limit)))

    def ready_of(
        self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int
    ) -> Steps[list[Trigger]]:
        return _triggers(lane, (yield self.statement("ready_of", *lane, batch(keys), limit)))

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> Steps[tuple[list[Trigger], int | None]]:
        rows = yield self.statement("ready_without", *lane, above, MOST_PASSED, limit)
        is_all = len(rows) < limit and not any(row[-1] for row in rows)
        triggers = _triggers(lane, [row[:-1] for row in rows if not row[4]])
        return triggers, None if is_all else rows[-1][0]

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> Steps[list[tuple[str, int]]]:
        return [
            (key, seq)
            for key, seq in (yield self.statement("ready_keys", *lane, above, limit))
            if seq is not None
        ]

    def lanes(self) -> Steps[list[LaneKey]]:
        return [LaneKey(*row) for row in (yield self.statement("lanes"))]

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        return read_tasks((yield self.statement("ordered", batch(keys), limit)))

    def changed(self, tasks: Sequence[tuple[str, int]]) -> Steps[list[str]]:
        return [row[0] for row in (yield self.statement("changed", batch(tasks)))]

    async def claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> list[ClaimedTask]:
        raise NotImplementedError

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        return await self.database.run_async(self.completion(node, finishes))

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        finishes = [storable(f) for f in finishes]
        held = yield from self._record(node, finishes)
        refused: list[str] = []
        if held < len(finishes):
            ours = yield from self._held(node, finishes)
            refused = [f.id for f in finishes if f.id not in ours]
            finishes = [f for f in finishes if f.id in ours]
        ending = [f for f in finishes if f.next_state == State.DONE]
        going_on = [f for f in finishes if f.next_state != State.DONE]
        due: list[int] = []
        lanes: list[Lane] = []
        if ending:
            yield from self._delete(node, ending)
        if going_on:
            lanes, due = yield from self._continue(node, going_on)
        if notes := notes_rows([*ending, *going_on]):
            yield self.statement("keep_notes", batch(notes))
        results = [(f.id, f.finished_at, f.result) for f in ending if f.result is not None]
        if results:
            yield Many(self.sql["keep_result"], results)
        # Announce the ends that a caller may wait for: with a result, or in ERROR.
        finished = [row[0] for row in results] + [
            f.id for f in going_on if f.next_state == State.ERROR
        ]
        notification = Notification(ready=lanes, due=min(due, default=None), finished=finished)
        if notification.is_empty:
            return Completed(refused, None)
        yield from self.announce(notification)
        return Completed(refused, notification)

    def _record(self, node: str, finishes: Sequence[Finish]) -> Steps[int]:
        """Append the attempts of the tasks that the node still holds, and return their number."""
        raise NotImplementedError

    def _held(self, node: str, finishes: Sequence[Finish]) -> Steps[set[str]]:
        """Return the ids of the tasks that the node still holds."""
        rows = yield self.statement("held", batch([(f.id, f.version) for f in finishes]), node)
        return {row[0] for row in rows}

    def _delete(self, node: str, finishes: Sequence[Finish]) -> Steps[None]:
        yield self.statement("delete_held", batch([(f.id, f.version) for f in finishes]), node)

    def _continue(
        self, node: str, finishes: Sequence[Finish]
    ) -> Steps[tuple[list[Lane], list[int]]]:
        again = [f for f in finishes if f.next_state == State.SUBMITTED]
        seqs = (
            dict(zip((f.id for f in again), (yield from self.next_seqs(len(again))), strict=True))
            if again
            else {}
        )
        rows = yield self.statement(
            "continue_held",
            batch(
                [
                    (
                        f.id,
                        f.version,
                        f.next_state,
                        f.run_at,
                        f.finished_at if f.id in seqs else None,
                        seqs.get(f.id),
                        int(f.spends_try),
                        f.resets_tries,
                        f.error_type,
                        f.error_text,
                        f.leaves_order,
                    )
                    for f in finishes
                ]
            ),
            node,
        )
        failed = [f for f in finishes if f.next_state == State.ERROR]
        if failed:
            now = max(f.finished_at for f in failed)
            yield from self.incidents.note_errors([f.id for f in failed], now)
        ready = [row[:4] for row in rows if row[4] == State.SUBMITTED]
        due = [row[5] for row in rows if row[4] == State.WAITING]
        return lanes_of(ready), due

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        return await self.database.run_async(self._hand_back(node, held))

    def _hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Steps[Notification | None]:
        rows = yield self.statement("hand_back", batch(held), node)
        return (yield from self._announced(notification_for(rows)))

    async def still_held(self, node: str, ids: Sequence[str], noted: bool = False) -> set[str]:
        return await self.database.read(self._still_held(node, ids))

    def _still_held(self, node: str, ids: Sequence[str]) -> Steps[set[str]]:
        rows = yield self.statement("still_held", batch(ids), node)
        return {row[0] for row in rows}

    async def write_progress(self, node: str, reports: Sequence[ProgressReport]) -> None:
        steps = self.alone("write_progress", batch(progress_rows(reports)), node)
        # Need not be durable: the next report, or the end of the run, is.
        await self.database.run_async(steps, durable=False)

    def store_checkpoint(self, node: str, task_id: str, version: int, value: bytes) -> Steps[bool]:
        given = (canonical(task_id), version, node, value)
        return bool((yield self.statement("store_checkpoint", *given)))

    def progress(self, task_id: str) -> Steps[Progress | None]:
        rows = yield self.statement("progress", canonical(task_id))
        return Progress(*rows[0]) if rows else None

    def run_notes(self, task_id: str) -> Steps[list[RunNotes]]:
        return run_notes((yield self.statement("notes", canonical(task_id), MOST_NOTES)))

    async def held(self, node: str) -> list[tuple[str, int]]:
        rows = await self.database.run_async(self._one("held_by", batch([node]), _MOST_HELD))
        return [(task_id, version) for task_id, version, *_ in rows]

    # pollers --------------------------------------------------------------------------------------

    async def wake_due(self, now: int, limit: int) -> Woken:
        return await self.database.run_async(self._wake_due(now, limit))

    def _wake_due(self, now: int, limit: int) -> Steps[Woken]:
        due = yield from self._due_rows(now, limit)
        return (yield from self._make_ready([row[:2] for row in due], now, TriggerPath.POLLER))

    def _due_rows(self, now: int, limit: int) -> Steps[Sequence[Row]]:
        """Return ids and versions of due tasks, the earliest first, which this transaction has
        locked or is the only one to write."""
        return (yield self.statement("due", now, limit))

    def _make_ready(self, tasks: Sequence[Row], now: int, path: TriggerPath) -> Steps[Woken]:
        """Make tasks SUBMITTED, in this order. Each is given as (id, version); this transaction has
        locked it, or is the only one that writes."""
        if not tasks:
            return Woken(0, None)
        seqs = yield from self.next_seqs(len(tasks))
        params = batch(
            [(task_id, version, seq) for (task_id, version), seq in zip(tasks, seqs, strict=True)]
        )
        rows = yield self.statement("make_ready", params, now, path)
        return Woken(len(rows), (yield from self._announced(notification_for(rows))))

    def _announced(self, notification: Notification | None) -> Steps[Notification | None]:
        if notification is not None:
            yield from self.announce(notification)
        return notification

    async def next_due(self) -> int | None:
        return await self.database.read(self._next_due())

    def _next_due(self) -> Steps[int | None]:
        rows = yield self.statement("next_due")
        instant: int | None = rows[0][0]
        return instant

    async def resume_lost(
        self,
        nodes: Sequence[str],
        now: int,
        limit: int,
        most_lost: int = 5,
    ) -> Woken:
        return await self.database.run_async(self._resume_lost(nodes, now, limit, most_lost))

    def _resume_lost(
        self, nodes: Sequence[str], now: int, limit: int, most_lost: int
    ) -> Steps[Woken]:
        held = yield self.statement("held_by", batch(nodes), limit)
        if not held:
            return Woken(0, None)
        again = [row[:2] for row in held if row[3] + 1 < most_lost]
        failing = [row[:2] for row in held if row[3] + 1 >= most_lost]
        lost = [
            lost_attempt(
                task_id,
                version,
                State.SUBMITTED if times + 1 < most_lost else State.ERROR,
                now,
                f"node {node} stopped",
            )
            for task_id, version, node, times in held
        ]
        yield self.statement("record_attempts", batch(lost), None)
        for task_id, version in failing:
            reason = (
                f"its node stopped {most_lost} times during its runs; the task may be the cause"
            )
            yield self.statement("error_task", task_id, version, NODE_LOST, reason)
        woken = yield from self._make_ready(again, now, TriggerPath.HEAL)
        notification = woken.notification
        if failing:
            failed = [task_id for task_id, _ in failing]
            yield from self.incidents.note_errors(failed, now)
            ended = Notification(control=True, finished=failed)
            yield from self.announce(ended)
            ready = [] if notification is None else notification.ready
            notification = msgspec.structs.replace(ended, ready=ready)
        return Woken(len(held), notification)

    async def stuck(self, now: int, limit: int) -> list[Stuck]:
        return await self.database.read(self._stuck(now, limit))

    def _stuck(self, now: int, limit: int) -> Steps[list[Stuck]]:
        found = []
        for task_id, policy in (yield from self._stuck_rows(now, limit)):
            to = State.SUBMITTED if policy & RESUME_STUCK else State.ERROR
            for row in (yield self.statement("task", task_id)):
                task = task_record(row)
                found.append(
                    Stuck(
                        task.id,
                        task.version,
                        task.queue,
                        task.name,
                        task.node,
                        task.claimed_at,
                        to,
                    )
                )
        return found

    def _stuck_rows(self, now: int, limit: int) -> Steps[Sequence[Row]]:
        """Return the ids and policies of stuck tasks."""
        return (yield self.statement("stuck", now, limit))

    async def release_stuck(
        self,
        task_id: str,
        version: int,
        to: State,
        now: int,
        reason: str,
    ) -> Notification | None:
        return await self.database.run_async(self._release_stuck(task_id, version, to, now, reason))

    def _release_stuck(
        self, task_id: str, version: int, to: State, now: int, reason: str
    ) -> Steps[Notification | None]:
        task_id = canonical(task_id)
        record = lost_attempt(task_id, version, to, now, reason)
        yield self.statement("record_attempts", batch([record]), None)
        if to == State.SUBMITTED:
            return (
                yield from self._make_ready([(task_id, version)], now, TriggerPath.HEAL)
            ).notification
        rows = yield self.statement("error_task", task_id, version, NODE_LOST, reason)
        if rows:
            yield from self.incidents.note_errors([task_id], now)
        return (
            yield from self._announced(
                Notification(control=True, finished=[task_id]) if rows else None
            )
        )

    async def clean(self, before: int, limit: int) -> int:
        deleted = 0
        for name in (
            "clean_attempts",
            "clean_events",
            "clean_results",
            "clean_run_notes",
            "clean_unique_keys",
        ):
            rows = await self.database.run_async(self._clean(name, before, limit - deleted))
            deleted += self._cleaned(name, rows)
        return deleted

    def _clean(self, name: str, before: int, limit: int) -> Steps[Sequence[Row]]:
        return (yield self.statement(name, before, limit))

    def _cleaned(self, name: str, rows: Sequence[Row]) -> int:
        """Return the number of deleted rows, after the commit."""
        return len(rows)

    # the cluster ----------------------------------------------------------------------------------

    async def register_node(
        self,
        node: str,
        queues: Sequence[str],
        names: Sequence[str],
        now: int,
        facts: NodeFacts,
    ) -> Notification:
        steps = self._register_node(node, batch(queues), batch(names), now, facts)
        return await self.database.run_async(steps, durable=False)

    def _register_node(
        self, node: str, queues: str, names: str, now: int, facts: NodeFacts
    ) -> Steps[Notification]:
        at = yield from self.shared_clock(now)
        digest = blake2b(f"{queues}\n{names}".encode(), digest_size=16).hexdigest()
        about = (facts.slots, facts.version, facts.python)
        yield self.statement("register_node", node, at, queues, names, digest, *about)
        yield from self._first_heartbeat(node, at)
        return (yield from self._control())

    def _first_heartbeat(self, node: str, at: int) -> Steps[None]:
        """Write the heartbeat of a node that registers, if it is not in the row of the node."""
        yield from ()

    def _control(self) -> Steps[Notification]:
        notification = Notification(control=True)
        yield from self.announce(notification)
        return notification

    async def heartbeat(self, node: str, now: int) -> ClusterState | None:
        return await self.database.run_async(self._heartbeat(node, now), durable=False)

    def _heartbeat(self, node: str, now: int) -> Steps[ClusterState | None]:
        at = yield from self.shared_clock(now)
        if not (yield from self._beat(node, at)):
            return None
        return ClusterState((yield from self.nodes()), (yield from self.settings_mark()))

    def _beat(self, node: str, at: int) -> Steps[bool]:
        return bool((yield self.statement("heartbeat", node, at)))

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        return await self.database.read(self._silent_nodes(now, silent_for))

    def _silent_nodes(self, now: int, silent_for: int) -> Steps[list[str]]:
        at = yield from self.shared_clock(now)
        steps = self._of_nodes("silent_nodes", at - silent_for)
        return [row[0] for row in (yield from steps)]

    def _of_nodes(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        """Execute a statement that reads the heartbeats of all nodes."""
        return (yield self.statement(name, *params))

    async def drop_node(self, node: str) -> Notification:
        return await self.database.run_async(self._drop_node(node))

    def _drop_node(self, node: str) -> Steps[Notification]:
        yield self.statement("drop_claims", node, batch([]))
        yield self.statement("drop_node", node)
        return (yield from self._control())

    async def drop_claims(self, node: str, but: Sequence[int]) -> None:
        await self.database.run_async(self._one("drop_claims", node, batch(but)))

    def _one(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return (yield self.statement(name, *params))

    def alone(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        """Return steps of one statement, in the cheapest transaction."""
        return self._one(name, *params)

    def nodes(self) -> Steps[list[NodeRecord]]:
        known = self._served
        rows = yield from self._of_nodes("nodes", batch(list(known)))
        served: dict[str, tuple[list[str], list[str]]] = {}
        for _, _, _, digest, queues, names, *_ in rows:
            if digest not in served:
                served[digest] = known.get(digest) or (_decode(queues), _decode(names))
        self._served = served
        return [
            NodeRecord(node, started_at, heartbeat_at, *served[digest], NodeFacts(*facts))
            for node, started_at, heartbeat_at, digest, _, _, *facts in rows
        ]

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        return await self.database.run_async(self.registration(partitions))

    def store_id(self) -> Steps[str | None]:
        return (yield from SqlHistory(self.database).store_id())

    def register_part(self, kind: str, part: str) -> Steps[str]:
        return part
        yield

    def registration(self, partitions: dict[str, int]) -> Steps[dict[str, QueueSettings]]:
        known = yield from self.queue_settings()
        new = [
            (queue, count)
            for queue, count in partitions.items()
            if queue not in known or known[queue].partitions < count
        ]
        if new:
            yield self.statement("change_queues")
            yield self.statement("register_queues", batch(new))
            known = yield from self.queue_settings()
        return {queue: known[queue] for queue in partitions}

    def resizing(self, queue: str, partitions: int, version: int) -> Steps[bool]:
        yield self.statement("change_queues")
        return bool((yield self.statement("resize_queue", queue, partitions, version)))

    def settings_mark(self) -> Steps[SettingsMark]:
        rows = yield self.statement("queues_mark")
        return SettingsMark(*rows[0]) if rows else SettingsMark(0)


def read_tasks(rows: Iterable[Row]) -> list[tuple[Trigger, State]]:
    """Return the tasks in the rows of `ordered`."""
    return [
        (Trigger(*task, TriggerPath.HOOK, seq or 0, None, order_at), State(state))  # type: ignore[call-arg]
        for seq, *task, order_at, state in rows
    ]


def _triggers(lane: LaneKey, rows: Iterable[Row]) -> list[Trigger]:
    queue, partition, priority = lane
    one = shared()
    return [
        Trigger(
            id,
            version,
            queue,
            partition,
            one(name),
            priority,
            one(key),
            weight,
            ordering_key and one(ordering_key),
            TriggerPath.HOOK,
            seq,
            None,
            order_at,
        )
        for seq, id, version, name, key, weight, ordering_key, order_at in rows
    ]
