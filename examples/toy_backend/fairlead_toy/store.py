"""The task store: a dictionary of rows, changed under one lock."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from fairlead.errors import NotSupported
from fairlead.model import (
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    State,
    Submitted,
    TaskRecord,
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
from fairlead.ports.statements import Steps
from fairlead.ports.task_store import (
    IGNORE_STUCK,
    PLAIN_TERMS,
    RESUME_STUCK,
    SKIP_FAILED,
    Completed,
    Stuck,
    Terms,
    Woken,
)
from fairlead_toy.incidents import ToyIncidents

T = TypeVar("T")


@dataclass
class Row:
    """An unfinished task."""

    task: NewTask
    state: State
    run_at: int
    in_order: bool
    """True if later tasks of its ordering key wait for it."""
    seq: int = 0
    """Position among the tasks that are ready."""
    version: int = 1
    attempt: int = 0
    tries: int = 0
    lost: int = 0
    ready_at: int | None = None
    claimed_at: int | None = None
    stuck_at: int = 0
    policy: int = 0
    node: str | None = None
    error_type: str | None = None
    error_text: str | None = None

    @property
    def lane(self) -> LaneKey:
        """The lane from which the task is read."""
        return LaneKey(self.task.queue, self.task.partition, self.task.priority)

    def trigger(self) -> Trigger:
        """Return the trigger of the next run."""
        t = self.task
        return Trigger(
            t.id,
            self.version,
            t.queue,
            t.partition,
            t.name,
            t.priority,
            t.fairness_key,
            t.weight,
            t.ordering_key,
            TriggerPath.HOOK,
            self.seq,
            None,
            t.run_at,
        )

    def record(self) -> TaskRecord:
        """Return the task as people see it."""
        t = self.task
        return TaskRecord(
            t.id,
            t.queue,
            t.partition,
            t.name,
            self.state,
            self.version,
            self.attempt,
            self.tries,
            t.priority,
            t.fairness_key,
            t.weight,
            t.ordering_key,
            t.unique_key,
            t.submitted_at,
            self.run_at,
            self.ready_at,
            self.claimed_at,
            self.node,
            self.error_type,
            self.error_text,
            t.context,
            len(t.payload),
        )


class ToyDatabase:
    """A `fairlead.ports.statements.Database` whose steps yield no statements: they change the rows
    themselves, under the lock."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.lock = threading.RLock()

    def run(self, steps: Steps[T]) -> T:
        with self.lock:
            try:
                next(steps)
            except StopIteration as stop:
                result: T = stop.value
                return result
        raise NotSupported(f"{self.location} runs no statements")

    read_now = run

    async def run_async(self, steps: Steps[T], durable: bool = True) -> T:
        return self.run(steps)

    async def read(self, steps: Steps[T]) -> T:
        return self.run(steps)

    def transaction(self) -> AbstractContextManager[Any]:
        self._refuse()

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        self._refuse()

    def join(self, connection: Any, steps: Steps[T]) -> T:
        self._refuse()

    async def join_async(self, connection: Any, steps: Steps[T]) -> T:
        self._refuse()

    async def close_async(self) -> None:
        """Do nothing: other applications may use the same name."""

    async def close_loop(self) -> None:
        """Do nothing: an event loop opens nothing."""

    def close(self) -> None:
        """Do nothing: other applications may use the same name."""

    def _refuse(self) -> NoReturn:
        raise NotSupported(f"{self.location} takes part in no transaction; sqlite:// does")


class ToyStore:
    """A task store in memory. See `fairlead.ports.task_store.TaskStore`."""

    def __init__(self, location: str) -> None:
        self.database = ToyDatabase(location)
        self._rows: dict[str, Row] = {}
        self._keys: dict[tuple[str, str], str] = {}
        """Id of the first task, by queue and unique key."""
        self._queues: dict[str, QueueSettings] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._last_seq = 0
        self.incidents = ToyIncidents(self._in_error)

    # abilities ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do nothing: there are no tables."""

    def migrate(self) -> list[str]:
        return []

    runs = None  # there are no ordered queues

    def with_tasks(self) -> ToyStore:
        return self

    def with_tables(self) -> None:
        return None

    # submitting ----------------------------------------------------------------------------------

    def submission(self, tasks: Sequence[NewTask]) -> Steps[tuple[list[Submitted], Notification]]:
        added, submitted = [], []
        for task in tasks:
            if task.unique_until is not None:
                raise NotSupported(f"{self.database.location} forgets unique keys: no unique_for")
            if task.unique_key is not None:
                owner = self._keys.get((task.queue, task.unique_key), task.id)
                if owner in self._rows:
                    submitted.append(Submitted(owner, False))
                    continue
                self._keys[task.queue, task.unique_key] = task.id
            is_due = task.run_at <= task.submitted_at
            row = Row(task, State.WAITING, task.run_at, task.ordering_key is not None)
            self._rows[task.id] = row
            if is_due:
                self._make_ready(row, task.submitted_at)
            added.append(row)
            submitted.append(Submitted(task.id, True, row.seq if is_due else None))
        return submitted, _notification(added)
        yield  # makes this function a generator, without any statement

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Notification]]]:
        # Make all tasks before the first is stored: a faulty piece must leave nothing.
        tasks = [task for piece in pieces for task in piece]
        submitted, notification = yield from self.submission(tasks)
        return submitted, [notification]

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        rows = [row for row in self._rows.values() if row.task.queue in queues]
        in_error = sum(row.state is State.ERROR for row in rows)
        ahead = sum(row.state is State.WAITING and not row.attempt for row in rows)
        return len(rows) - in_error - ahead, in_error
        yield

    # running -------------------------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        rows = [r for r in self._in(State.SUBMITTED) if r.lane == lane and r.seq > above]
        return [row.trigger() for row in sorted(rows, key=lambda row: row.seq)[:limit]]
        yield

    def ready_of(
        self, lane: LaneKey, keys: Sequence[tuple[str, int]], limit: int
    ) -> Steps[list[Trigger]]:
        found: list[Trigger] = []
        for key, above in keys:
            rows = yield from self.ready(lane, above, len(self._rows))
            found += [trigger for trigger in rows if trigger.fairness_key == key][:limit]
        return sorted(found, key=lambda trigger: trigger.seq)

    def ready_without(
        self, lane: LaneKey, above: int, limit: int
    ) -> Steps[tuple[list[Trigger], int | None]]:
        rows = yield from self.ready(lane, above, len(self._rows))
        found = [trigger for trigger in rows if not trigger.fairness_key][:limit]
        return found, found[-1].seq if len(found) == limit else None

    def ready_keys(self, lane: LaneKey, above: str, limit: int) -> Steps[list[tuple[str, int]]]:
        rows = yield from self.ready(lane, 0, len(self._rows))
        last = {trigger.fairness_key: trigger.seq for trigger in rows}
        return sorted((key, seq) for key, seq in last.items() if key > above)[:limit]

    def lanes(self) -> Steps[list[LaneKey]]:
        return sorted({row.lane for row in self._in(State.SUBMITTED)})
        yield

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        found = []
        for key in keys:
            rows = [row for row in self._rows.values() if row.in_order and _key(row) == key]
            found += [(row.trigger(), row.state) for row in sorted(rows, key=_position)[:limit]]
        return found
        yield

    def changed(self, tasks: Sequence[tuple[str, int]]) -> Steps[list[str]]:
        rows = self._rows
        return [id for id, version in tasks if id not in rows or rows[id].version != version]
        yield

    async def claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> list[ClaimedTask]:
        won = []
        with self.database.lock:
            for trigger in triggers if node in self._nodes else ():
                row = self._rows.get(trigger.id)
                if row is None or (row.state, row.version) != (State.SUBMITTED, trigger.version):
                    continue
                if self._must_wait(row):
                    continue
                row.state, row.node, row.claimed_at = State.PROCESSING, node, now
                row.stuck_at, row.policy = terms.get(trigger.name, PLAIN_TERMS)
                row.version, row.attempt, row.tries = (
                    row.version + 1,
                    row.attempt + 1,
                    row.tries + 1,
                )
                t = row.task
                won.append(
                    ClaimedTask(
                        t.id,
                        row.version,
                        row.attempt,
                        row.tries,
                        t.payload,
                        t.payload_format,
                        row.ready_at or now,
                        t.keep_result,
                        t.context,
                    )
                )
        return won

    async def complete(self, node: str, finishes: Sequence[Finish]) -> Completed:
        refused, moved, finished = [], [], []
        with self.database.lock:
            for finish in finishes:
                row = self._held(node, finish.id, finish.version)
                if row is None:
                    refused.append(finish.id)
                elif finish.next_state == State.DONE:
                    del self._rows[finish.id]
                else:
                    self._put_back(row, finish)
                    moved.append(row)
                    finished += [finish.id] if row.state is State.ERROR else []
        notification = _notification(moved, finished)
        return Completed(refused, None if notification.is_empty else notification)

    async def hand_back(self, node: str, held: Sequence[tuple[str, int]]) -> Notification | None:
        rows = [row for id, version in held if (row := self._held(node, id, version)) is not None]
        with self.database.lock:
            for row in rows:
                row.state, row.node, row.claimed_at = State.SUBMITTED, None, None
                row.version, row.attempt, row.tries = (
                    row.version + 1,
                    row.attempt - 1,
                    row.tries - 1,
                )
        return _notification(rows) if rows else None

    async def still_held(self, node: str, ids: Sequence[str]) -> set[str]:
        return {id for id, _ in await self.held(node)} & set(ids)

    async def held(self, node: str) -> list[tuple[str, int]]:
        rows = self._in(State.PROCESSING)
        return [(row.task.id, row.version) for row in rows if row.node == node]

    # pollers --------------------------------------------------------------------------------------

    async def wake_due(self, now: int, limit: int) -> Woken:
        with self.database.lock:
            due = [row for row in self._in(State.WAITING) if row.run_at <= now]
            rows = sorted(due, key=lambda row: row.run_at)[:limit]
            for row in rows:
                row.version += 1
                self._make_ready(row, now)
        return Woken(len(rows), _notification(rows) if rows else None)

    async def next_due(self) -> int | None:
        return min((row.run_at for row in self._in(State.WAITING)), default=None)

    async def resume_lost(
        self,
        nodes: Sequence[str],
        now: int,
        limit: int,
        most_lost: int = 5,
    ) -> Woken:
        with self.database.lock:
            rows = [row for row in self._in(State.PROCESSING) if row.node in nodes][:limit]
            for row in rows:
                row.lost += 1
                to = State.SUBMITTED if row.lost < most_lost else State.ERROR
                self._release(row, to, now, f"node {row.node} stopped")
        ended = [row.task.id for row in rows if row.state is State.ERROR]
        return Woken(len(rows), _notification(rows, ended) if rows else None)

    async def stuck(self, now: int, limit: int) -> list[Stuck]:
        running = self._in(State.PROCESSING)
        rows = [r for r in running if r.stuck_at < now and not r.policy & IGNORE_STUCK]
        return [
            Stuck(
                row.task.id,
                row.version,
                row.task.queue,
                row.task.name,
                row.node,
                row.claimed_at,
                State.SUBMITTED if row.policy & RESUME_STUCK else State.ERROR,
            )
            for row in rows[:limit]
        ]

    async def release_stuck(
        self,
        task_id: str,
        version: int,
        to: State,
        now: int,
        reason: str,
    ) -> Notification | None:
        with self.database.lock:
            row = self._rows.get(task_id)
            if row is None or row.state is not State.PROCESSING or row.version != version:
                return None
            self._release(row, to, now, reason)
        return (
            _notification([row])
            if to is State.SUBMITTED
            else Notification(control=True, finished=[task_id])
        )

    # the cluster ----------------------------------------------------------------------------------

    async def register_node(
        self,
        node: str,
        queues: Sequence[str],
        names: Sequence[str],
        now: int,
        facts: NodeFacts,
    ) -> Notification:
        known = self._nodes.get(node)
        started = now if known is None else known.started_at
        self._nodes[node] = NodeRecord(node, started, now, list(queues), list(names), facts=facts)
        return Notification(control=True)

    async def heartbeat(self, node: str, now: int) -> ClusterState | None:
        if (known := self._nodes.get(node)) is None:
            return None
        self._nodes[node] = msgspec.structs.replace(known, heartbeat_at=now)
        return ClusterState([*self._nodes.values()], SettingsMark(dict(self._queues)))

    async def silent_nodes(self, now: int, silent_for: int) -> list[str]:
        return [n.node for n in self._nodes.values() if now - n.heartbeat_at > silent_for]

    async def drop_node(self, node: str) -> Notification:
        self._nodes.pop(node, None)
        return Notification(control=True)

    def nodes(self) -> Steps[list[NodeRecord]]:
        return list(self._nodes.values())
        yield

    def settings_mark(self) -> Steps[SettingsMark]:
        return SettingsMark((yield from self.queue_settings()))

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        return dict(self._queues)
        yield

    async def register_queues(self, partitions: dict[str, int]) -> dict[str, QueueSettings]:
        with self.database.lock:
            for queue, count in partitions.items():
                known = self._queues.get(queue)
                most = count if known is None else max(count, known.partitions)
                self._queues[queue] = QueueSettings(most, False, 0)
        return {queue: self._queues[queue] for queue in partitions}

    # helpers -------------------------------------------------------------------------------------

    def _in_error(self) -> list[TaskRecord]:
        return [row.record() for row in self._in(State.ERROR)]

    def _in(self, state: State) -> list[Row]:
        with self.database.lock:
            return [row for row in self._rows.values() if row.state is state]

    def _held(self, node: str, task_id: str, version: int) -> Row | None:
        row = self._rows.get(task_id)
        if row is None or row.state is not State.PROCESSING:
            return None
        return row if (row.node, row.version) == (node, version) else None

    def _must_wait(self, row: Row) -> bool:
        """Return whether another task of the same ordering key runs, or must run first."""
        if row.task.ordering_key is None:
            return False
        others = [r for r in self._rows.values() if r is not row and _key(r) == _key(row)]
        return any(
            other.state is State.PROCESSING
            or (row.in_order and other.in_order and _position(other) < _position(row))
            for other in others
        )

    def _make_ready(self, row: Row, now: int) -> None:
        self._last_seq += 1
        row.state, row.seq, row.ready_at = State.SUBMITTED, self._last_seq, now

    def _put_back(self, row: Row, finish: Finish) -> None:
        """Put the task back after a run that did not end it."""
        row.version, row.node, row.claimed_at, row.ready_at = row.version + 1, None, None, None
        row.error_type, row.error_text = finish.error_type, finish.error_text
        row.tries = 0 if finish.resets_tries else row.tries - (not finish.spends_try)
        row.in_order = row.in_order and not finish.leaves_order
        if finish.next_state == State.SUBMITTED:
            self._make_ready(row, finish.finished_at)
            return
        row.state = State(finish.next_state)
        if finish.run_at is not None:
            row.run_at = finish.run_at

    def _release(self, row: Row, to: State, now: int, reason: str) -> None:
        """Take the task from its node."""
        row.version, row.node, row.claimed_at, row.ready_at = row.version + 1, None, None, None
        if to is State.SUBMITTED:
            self._make_ready(row, now)
            return
        row.state, row.error_type, row.error_text = to, "fairlead.NodeLost", reason
        row.in_order = row.in_order and not row.policy & SKIP_FAILED


def _key(row: Row) -> tuple[str, str | None]:
    return row.task.queue, row.task.ordering_key


def _position(row: Row) -> tuple[int, str]:
    return row.task.run_at, row.task.id


def _notification(rows: Sequence[Row], finished: Sequence[str] = ()) -> Notification:
    first: dict[LaneKey, int] = {}
    for row in rows:
        if row.state is State.SUBMITTED:
            first[row.lane] = min(row.seq, first.get(row.lane, row.seq))
    due = min((row.run_at for row in rows if row.state is State.WAITING), default=None)
    lanes = [Lane(*lane, seq) for lane, seq in first.items()]
    return Notification(ready=lanes, due=due, finished=list(finished))
