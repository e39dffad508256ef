"""The records of tasks over SQL, for people: what SQLite and PostgreSQL share of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.backends.sql.incidents import SqlIncidents
from fairlead.backends.sql.rows import (
    ALL_ROWS,
    batch,
    canonical,
    ended_attempt,
    lanes_of,
    task_record,
)
from fairlead.backends.sql.task_reads import TaskReads
from fairlead.errors import NotAllowed
from fairlead.model import AttemptRecord, Finish, Outcome, State, TaskRecord
from fairlead.ports.cluster import QueueSettings
from fairlead.ports.notification import Notification
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps
from fairlead.ports.task_records import (
    KeyLoad,
    QueueStatus,
    TaskFilter,
    TaskStatus,
    TaskVersion,
)


class SqlTaskRecords:
    """The records of tasks of a `fairlead.ports.sql_store.SqlStore` for both dialects."""

    def __init__(self, database: SqlDatabase, sql: dict[str, str]) -> None:
        self.database = database
        self.sql = sql
        self.incidents = SqlIncidents(database)
        self.reads = TaskReads(database)

    def statement(self, name: str, *params: Any) -> Statement:
        """Return the named statement with its parameters."""
        return Statement(self.sql[name], params)

    # implemented by a dialect ---------------------------------------------------------------------

    def next_seqs(self, count: int) -> Steps[Sequence[int]]:
        """Return `count` new positions, ascending, at the end of all lanes."""
        raise NotImplementedError

    def announce(self, notification: Notification) -> Steps[None]:
        """Send the notification when this transaction commits, if the database can.

        Otherwise the caller sends the notification.
        """
        return
        yield

    # looking --------------------------------------------------------------------------------------

    def task(self, task_id: str) -> Steps[TaskRecord | None]:
        task_id = canonical(task_id)
        if rows := (yield self.statement("task", task_id)):
            return task_record(rows[0])
        rows = yield self.statement("last_attempt", task_id)
        return AttemptRecord(*rows[0][1:]).ended_task if rows else None

    def tasks(self, where: TaskFilter, limit: int) -> Steps[list[TaskRecord]]:
        page = yield from self.reads.page(where, limit, False)
        found = page.tasks
        while page.next is not None and len(found) < limit:
            where = msgspec.structs.replace(where, after=page.next)
            page = yield from self.reads.page(where, limit - len(found), False)
            found += page.tasks
        return found

    def ids_after(self, after: str, limit: int) -> Steps[list[str]]:
        rows = yield self.statement("ids_after", canonical(after), limit)
        return [row[0] for row in rows]

    def payload(self, task_id: str) -> Steps[tuple[bytes, str] | None]:
        rows = yield self.statement("payload", canonical(task_id))
        return (bytes(rows[0][0]), rows[0][1]) if rows else None

    def attempts(self, task_id: str) -> Steps[list[AttemptRecord]]:
        rows = yield self.statement("attempts", canonical(task_id))
        return [AttemptRecord(*row[1:]) for row in rows]

    def result(self, task_id: str) -> Steps[bytes | None]:
        rows = yield self.statement("result", canonical(task_id))
        return bytes(rows[0][0]) if rows else None

    def statuses(self, task_ids: Sequence[str]) -> Steps[list[TaskStatus]]:
        given: dict[str, list[str]] = {}
        for task_id in task_ids:
            given.setdefault(canonical(task_id), []).append(task_id)
        rows = yield self.statement("statuses", batch(list(given)))
        return [
            TaskStatus(task_id, row[1], State(row[2]), row[3], row[4], row[5] and bytes(row[5]))
            for row in rows
            for task_id in given[row[0]]
        ]

    # changing tasks -------------------------------------------------------------------------------

    def move(
        self, tasks: Sequence[TaskVersion], to: State, run_at: int, now: int, reset_tries: bool
    ) -> Steps[tuple[set[str], Notification]]:
        kind = "resumed" if to == State.SUBMITTED else "rescheduled"
        yield self.statement("note_events", _versions(tasks), kind, now, run_at, None)
        ready_at = now if to == State.SUBMITTED else None
        rows = yield self.statement(
            "move_tasks", (yield from self._placed(tasks)), to, run_at, ready_at, reset_tries
        )
        moved = {row[0] for row in rows}
        yield from self._drop_errors(tasks, moved)
        notification = Notification()
        if rows and to == State.SUBMITTED:
            notification = Notification(ready=lanes_of(row[1:] for row in rows))
        elif rows:
            notification = Notification(due=run_at)
        yield from self._announce_any(rows, notification)
        return moved, notification

    def change(
        self,
        tasks: Sequence[TaskVersion],
        priority: int | None,
        fairness_key: str | None,
        now: int,
        actor: str,
    ) -> Steps[tuple[set[str], Notification]]:
        yield self.statement("note_events", _versions(tasks), "changed", now, None, actor)
        rows = yield self.statement(
            "change_tasks", (yield from self._placed(tasks)), priority, fairness_key, now
        )
        notification = Notification(ready=lanes_of(row[1:] for row in rows if row[4] is not None))
        yield from self._announce_any(rows, notification)
        return {row[0] for row in rows}, notification

    def end(
        self, tasks: Sequence[TaskVersion], to: State, now: int, actor: str
    ) -> Steps[tuple[set[str], Notification]]:
        if to not in (State.CANCELLED, State.FAILED):
            raise NotAllowed(f"a person ends a task as CANCELLED or FAILED, not {to}")
        outcome = Outcome.CANCELLED if to == State.CANCELLED else Outcome.FAILED
        records = [
            ended_attempt(Finish(task_id, version, outcome, to, None, now, None, f"by {actor}"))
            for task_id, version in _canonical(tasks)
        ]
        yield self.statement("record_attempts", batch(records), None)
        kind = "cancelled" if to == State.CANCELLED else "marked_failed"
        yield self.statement("note_events", _versions(tasks), kind, now, None, actor)
        rows = yield self.statement("end_tasks", _versions(tasks))
        ended = {row[0] for row in rows}
        yield from self._drop_errors(tasks, ended)
        notification = Notification(control=True, finished=sorted(ended))
        yield from self._announce_any(rows, notification)
        return ended, notification

    def _placed(self, tasks: Sequence[TaskVersion]) -> Steps[str]:
        """Return rows (id, version, ready_seq), with a new position for each task."""
        positions = yield from self.next_seqs(len(tasks))
        return batch([(*task, seq) for task, seq in zip(_canonical(tasks), positions, strict=True)])

    def _drop_errors(self, tasks: Sequence[TaskVersion], changed: set[str]) -> Steps[None]:
        left_error = [task for task in _canonical(tasks) if task[0] in changed]
        yield from self.incidents.drop_errors(left_error)

    def _announce_any(self, rows: Sequence[Row], notification: Notification) -> Steps[None]:
        if rows:
            yield from self.announce(notification)

    # queues ---------------------------------------------------------------------------------------

    def queue_statuses(self) -> Steps[list[QueueStatus]]:
        known = yield from self.queue_settings()
        counts: dict[str, dict[str, int]] = {queue: {} for queue in known}
        oldest: dict[str, int | None] = {}
        for queue, state, count, ready_at in (yield self.statement("queue_counts")):
            counts.setdefault(queue, {})[state] = count
            if state == State.SUBMITTED:
                oldest[queue] = ready_at
        return [
            QueueStatus(
                queue=queue,
                partitions=known[queue].partitions if queue in known else 0,
                paused=queue in known and known[queue].paused,
                waiting=of.get(State.WAITING, 0),
                submitted=of.get(State.SUBMITTED, 0),
                processing=of.get(State.PROCESSING, 0),
                error=of.get(State.ERROR, 0),
                oldest_ready_at=oldest.get(queue),
            )
            for queue, of in sorted(counts.items())
        ]

    def oldest_ready(self) -> Steps[dict[str, int]]:
        return dict((yield self.statement("oldest_ready")))  # type: ignore[arg-type]

    def unfinished(self, queues: Sequence[str]) -> Steps[tuple[int, int]]:
        unfinished, in_error = (yield self.statement("unfinished", batch(queues)))[0]
        return unfinished, in_error

    def has_unfinished(self, queues: Sequence[str]) -> Steps[bool]:
        for name in ("has_ready", "has_retry"):
            if (yield self.statement(name, batch(queues)))[0][0]:
                return True
        return False

    def ahead(self, task_id: str, most: int | None = None) -> Steps[int]:
        limit = ALL_ROWS if most is None else most
        count: int = (yield self.statement("ahead", canonical(task_id), limit))[0][0]
        return count

    def heaviest_keys(self, queue: str, limit: int) -> Steps[tuple[list[KeyLoad], int]]:
        rows = yield self.statement("heaviest_keys", queue, limit)
        loads = [KeyLoad(*row[:4]) for row in rows]
        return loads, rows[0][4] if rows else 0

    def weights(self, queue: str) -> Steps[dict[str, float]]:
        return dict((yield self.statement("weights", queue)))  # type: ignore[arg-type]

    def limits(self, queue: str) -> Steps[dict[str, int]]:
        return dict((yield self.statement("limits", queue)))  # type: ignore[arg-type]

    def set_weights(self, queue: str, keys: Sequence[str], weight: float | None) -> Steps[int]:
        if weight is None:
            return (yield from self._set_keys("clear_weights", queue, keys))
        return (yield from self._set_keys("set_weights", queue, keys, weight))

    def set_limits(self, queue: str, keys: Sequence[str], limit: int | None) -> Steps[int]:
        if limit is None:
            return (yield from self._set_keys("clear_limits", queue, keys))
        return (yield from self._set_keys("set_limits", queue, keys, limit))

    def _set_keys(self, name: str, queue: str, keys: Sequence[str], *given: float) -> Steps[int]:
        yield self.statement("change_queues")
        if not (yield self.statement("settings_changed", queue)):
            return 0
        rows = yield self.statement(name, queue, batch(list(keys)), *given)
        yield from self.announce(Notification(control=True))
        return len(rows)

    def pause(self, queue: str, paused: bool) -> Steps[bool]:
        yield self.statement("change_queues")
        rows = yield self.statement("pause", queue, paused)
        if rows:
            yield from self.announce(Notification(control=True))
        return bool(rows)

    def queue_settings(self) -> Steps[dict[str, QueueSettings]]:
        rows = yield self.statement("queues")
        return {
            queue: QueueSettings(count, bool(paused), version)
            for queue, count, paused, version in rows
        }


def _canonical(tasks: Sequence[TaskVersion]) -> list[TaskVersion]:
    return [(canonical(task_id), version) for task_id, version in tasks]


def _versions(tasks: Sequence[TaskVersion]) -> str:
    return batch(_canonical(tasks))
