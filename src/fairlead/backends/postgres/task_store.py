"""The task store on PostgreSQL."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any

from fairlead.backends.postgres.copy_format import (
    COPY_MIN_ROWS,
    HEADER,
    NULL,
    TRAILER,
    Texts,
    bigint,
    boolean,
    double,
    smallint,
    text,
    uuid,
)
from fairlead.backends.postgres.database import PostgresDatabase, Single
from fairlead.backends.postgres.low_water import MOST_LANES, SnapshotReader, TaskMarks
from fairlead.backends.postgres.notifier import MOST_NOTIFY_BYTES
from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.rows import batch, ended_attempt, fields_of
from fairlead.backends.sql.sql_file import load
from fairlead.backends.sql.task_store import SqlTaskStore, read_tasks
from fairlead.model import (
    PRIORITIES,
    ClaimedTask,
    Finish,
    LaneKey,
    NewTask,
    State,
    Submitted,
    Trigger,
)
from fairlead.model.columns import NEW
from fairlead.model.history import START, Position, Reader
from fairlead.ports.cluster import ClusterState, NodeRecord
from fairlead.ports.notification import Lane, Notification, encode, pieces
from fairlead.ports.statements import Copy, Row, Statement, Steps
from fairlead.ports.task_store import PLAIN_TERMS, Completed, SubmitSteps, Terms, Woken

_SNAPSHOT_SECONDS = 0.05
"""Seconds after which a claim with ordering keys, or a search for due tasks, reads a new snapshot,
so that few tasks have come since the position that is settled."""

SLOW_SECONDS = 0.05
"""Seconds that a search for lanes may take before it gives marks to lanes of which it has seen no
row. Each mark makes a search longer, by less than 0.1 ms."""

_POSITIONS_CLEANED = ("clean_attempts", "clean_events")
"""Statements that delete by the position of a row."""

_LATEST_RESULT = 60_000_000
"""Microseconds after its end by which a result is stored, or is deleted only by another process."""

MOST_NOTED = 1000
"""Maximum number of running tasks that a heartbeat of a node notes for people."""

_STUCK_ROWS = 50_000
"""Rows of all lanes together in which one call looks for stuck tasks."""

_STUCK_PAGES = 3
"""Statements in which a call divides these rows: what short lanes leave goes to the long ones."""

_INSERT_ROWS = 1000
"""Maximum number of rows in one INSERT."""

_END = Position(2**62, 2**62)
"""A position behind all rows of the history."""

_FIRST = -(2**63)

_by_id = attrgetter("id", "version")
_lane_fields = attrgetter("queue", "partition", "priority")


class PostgresTaskStore(SqlTaskStore):
    """A task store on PostgreSQL. Frequent operations are one statement and one round trip for a
    whole batch."""

    database: PostgresDatabase

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database, load("task_store.sql", __package__))
        self._history = SqlHistory(database)
        self.marks = TaskMarks()
        self._clean_from: dict[str, tuple[Any, ...]] = {
            "clean_attempts": (0, 0),
            "clean_events": (0, 0),
            "clean_results": (0,),
            "clean_run_notes": (0,),
            "clean_unique_keys": (0,),
        }
        """Position in each table of the history below which no row is left to clean, so that the
        deleted ones are not read again."""
        self._stuck_from: dict[LaneKey, int] = {}
        """Positions after which long lanes are searched for stuck tasks."""
        self._heartbeats: dict[str, int] = {}
        """Heartbeats of all nodes that were read last."""
        self._sent: dict[str, int] = {}
        """Last heartbeat that this process has sent for a node."""
        snapshot = self.statement("lane_snapshot")
        self._snapshots = SnapshotReader(self.marks, snapshot, _SNAPSHOT_SECONDS)

    # the user's side ------------------------------------------------------------------------------

    def submission(self, tasks: Sequence[NewTask]) -> SubmitSteps:
        if 0 < len(tasks) < COPY_MIN_ROWS and all(task.unique_key is None for task in tasks):

            def result(rows: Sequence[Row]) -> tuple[list[Submitted], None]:
                positions = _positions(tasks, rows)
                return [Submitted(task.id, True, positions.get(task.id)) for task in tasks], None

            return Single(self._insert(tasks), result)
        return super().submission(tasks)

    def _insert(self, tasks: Sequence[NewTask]) -> Statement:
        """Return the INSERT of a few tasks, which sends their notification too."""
        if len(tasks) == 1 and _is_plain(tasks[0]):
            return self.statement("insert_due_task", *_values(tasks[0]))
        return self.statement("insert_tasks", *_columns(tasks))

    def insert(self, tasks: Sequence[NewTask]) -> Steps[tuple[Notification | None, dict[str, int]]]:
        if len(tasks) < COPY_MIN_ROWS:
            return None, _positions(tasks, (yield self._insert(tasks)))
        ((first, can_copy),) = yield self.statement("begin_copy")
        if not can_copy:
            positions: dict[str, int] = {}
            for start in range(0, len(tasks), _INSERT_ROWS):
                piece = tasks[start : start + _INSERT_ROWS]
                positions |= _positions(piece, (yield self._insert(piece)))
            return None, positions
        ready = [task for task in tasks if task.run_at <= task.submitted_at]
        lanes = [Lane(*lane, first) for lane in sorted(set(map(_lane_fields, ready)))]
        if ready:
            yield Copy(
                "fairlead_tasks",
                _READY_COLUMNS,
                [HEADER, copy_rows(ready, first, waiting=False), TRAILER],
            )
        due = None
        if len(ready) < len(tasks):
            waiting = [task for task in tasks if task.run_at > task.submitted_at]
            due = min(task.run_at for task in waiting)
            yield Copy(
                "fairlead_tasks",
                _WAITING_COLUMNS,
                [HEADER, copy_rows(waiting, first, waiting=True), TRAILER],
            )
        notification = Notification(ready=lanes, due=due)
        yield from self.announce(notification)
        return notification, {}

    def bulk(
        self, pieces: Iterable[Sequence[NewTask]]
    ) -> Steps[tuple[list[Submitted], list[Notification]]]:
        """Insert the tasks that may run now and have no unique key by one COPY, encoded
        piece by piece; then insert the others."""
        ((first, can_copy),) = yield self.statement("begin_copy")
        if not can_copy:
            return (yield from super().bulk(pieces))
        submitted: list[Submitted] = []
        rest: list[NewTask] = []
        lanes: set[tuple[str, int, int]] = set()

        def rows() -> Iterator[bytes]:
            yield HEADER
            for tasks in pieces:
                plain = [
                    task
                    for task in tasks
                    if task.unique_key is None and task.run_at <= task.submitted_at
                ]
                if len(plain) < len(tasks):
                    rest.extend(
                        task for task in tasks if task.unique_key is not None or not task.is_due
                    )
                submitted.extend([Submitted(task.id, True) for task in tasks])
                lanes.update(map(_lane_fields, plain))
                yield copy_rows(plain, first, waiting=False)
            yield TRAILER

        yield Copy("fairlead_tasks", _READY_COLUMNS, rows())
        notifications = (
            [Notification(ready=[Lane(*lane, first) for lane in sorted(lanes)])] if lanes else []
        )
        for notification in notifications:
            yield from self.announce(notification)
        if not rest:
            return submitted, notifications
        found, of_rest = yield from self.submission(rest)
        others = dict(zip((task.id for task in rest), found, strict=True))
        notifications += [] if of_rest is None else [of_rest]
        return [others.get(each.id, each) for each in submitted], notifications

    def next_seqs(self, count: int) -> Steps[Sequence[int]]:
        return [row[0] for row in (yield self.statement("next_seqs", count))]

    def shared_clock(self, now: int) -> Steps[int]:
        instant: int = (yield self.statement("clock"))[0][0]
        return instant

    def bound_pauses(self, seconds: float) -> Steps[None]:
        yield self.statement("bound_pauses", str(round(seconds * 1000)))

    def announce(self, notification: Notification) -> Steps[None]:
        yield self.statement(
            "announce", [piece.decode() for piece in pieces(notification, MOST_NOTIFY_BYTES)]
        )

    # the node's side ------------------------------------------------------------------------------

    def ready(self, lane: LaneKey, above: int, limit: int) -> Steps[list[Trigger]]:
        mark = self.marks.of(lane)
        return super().ready(lane, above or mark, limit)

    def lanes(self) -> Steps[list[LaneKey]]:
        settled, began = self.marks.settled, time.monotonic()
        rows = yield self.statement("lanes", self._mark_rows())
        found = {LaneKey(*row[:3]): row[3] for row in rows}
        if time.monotonic() - began > SLOW_SECONDS:
            yield from self._know_lanes()
        self.marks.raise_to(found, settled)
        yield from self._snapshots.read()
        return list(found)

    def _know_lanes(self) -> Steps[None]:
        """Note the lanes of all queues, so that they have marks although this process has seen no
        row of theirs: they may have had many rows before it started."""
        queues = yield self.statement("queues")
        lanes = (
            LaneKey(queue, partition, priority)
            for queue, partitions, *_ in queues
            for partition in range(partitions)
            for priority in PRIORITIES
        )
        for lane in islice(lanes, MOST_LANES):
            self.marks.of(lane)

    def _heartbeat(self, node: str, now: int) -> Steps[ClusterState | None]:
        seen = yield from super()._heartbeat(node, now)
        yield from self._snapshots.read()
        return seen

    def _beat(self, node: str, at: int) -> Steps[bool]:
        sent = self._sent.get(node, _FIRST)
        rows = yield self.statement("heartbeat", node, at, sent)
        if not rows and sent > _FIRST:  # that one was not committed, or is lost
            rows = yield self.statement("heartbeat", node, at, _FIRST)
        self._sent[node] = at
        return bool(rows)

    def _first_heartbeat(self, node: str, at: int) -> Steps[None]:
        yield self.statement("first_heartbeat", node, at)

    def _of_nodes(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return (yield self.statement(name, batch(list(self._heartbeats.items())), *params))

    def nodes(self) -> Steps[list[NodeRecord]]:
        found = yield from super().nodes()
        self._heartbeats = {each.node: each.heartbeat_at for each in found}
        return found

    def oldest_ready(self) -> Steps[dict[str, int]]:
        return dict((yield self.statement("oldest_ready", self._mark_rows())))  # type: ignore[arg-type]

    def has_unfinished(self, queues: Sequence[str]) -> Steps[bool]:
        ready = self.statement("has_ready", self._mark_rows(), batch(queues))
        if (yield ready)[0][0]:
            return True
        mark = self.marks.due
        due_at: int | None = None
        id: str | None = None
        while True:
            page = self.statement("has_retry", *mark, batch(queues), due_at, id)
            is_found, due_at, id = (yield page)[0]
            if is_found or due_at is None:
                return bool(is_found)

    def _stuck_rows(self, now: int, limit: int) -> Steps[Sequence[Row]]:
        """Return the stuck tasks among the next rows of each lane, which begins again behind its
        last one. The lanes share the rows of a call, so that its cost does not grow with the
        backlog."""
        room, begun, found = _STUCK_ROWS, self._stuck_from, list[Any]()
        for number in range(_STUCK_PAGES):
            positions = batch([(*lane, position) for lane, position in begun.items()])
            page = ("stuck", self._mark_rows(), now, positions, room, number > 0)
            rows = yield self.statement(*page)
            begun = {LaneKey(*row[:3]): row[3] for row in rows if row[3] is not None}
            for row in rows:
                found += zip(row[6], row[4], row[5], strict=True) if row[4] else ()
                room -= row[7]
            if not begun or room < len(begun):
                break
        self._stuck_from = begun
        return [each[1:] for each in sorted(found)[:limit]]

    def _mark_rows(self) -> str:
        return batch(self.marks.rows())

    async def claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> list[ClaimedTask]:
        # Need not be durable: if a crash of the server undoes a claim, the store refuses the end of
        # its run.
        if self._snapshots.is_late and any(t.ordering_key is not None for t in triggers):
            await self.database.read(self._snapshots.read())
        return await self.database.run_async(self._claim(node, triggers, now, terms), durable=False)

    def _claim(
        self, node: str, triggers: Sequence[Trigger], now: int, terms: Terms
    ) -> Steps[list[ClaimedTask]]:
        # Sorted by id, so that two nodes with the same tasks cannot deadlock.
        triggers = sorted(triggers, key=_by_id)
        ids, versions = [t.id for t in triggers], _once([t.version for t in triggers])
        paths = _once([t.path for t in triggers])
        named = [terms.get(t.name, PLAIN_TERMS) for t in triggers]
        stuck_ats = _once([each.stuck_at for each in named])
        policies = _once([each.policy for each in named])
        settled = self.marks.settled
        params = (ids, versions, paths, stuck_ats, policies, node, now)
        keys = {t.id: (t.queue, t.ordering_key) for t in triggers if t.ordering_key is not None}
        # Most claims have no ordering key, and need none of the marks.
        marks = [self.marks.of_key(t.queue, t.ordering_key) for t in triggers] if keys else []
        columns = ([mark[n] for mark in marks] for n in range(3))

        def result(rows: Sequence[Row]) -> list[ClaimedTask]:
            for id, *_, order_at in rows:
                if id in keys and order_at is not None:
                    self.marks.raise_key(keys[id], order_at, id, settled)
            return [ClaimedTask(*row[:-1]) for row in rows]

        return Single(self.statement("claim", *params, *columns, settled.server), result)

    def ordered(
        self, keys: Sequence[tuple[str, str]], limit: int
    ) -> Steps[list[tuple[Trigger, State]]]:
        settled = self.marks.settled
        given = batch([(*key, *self.marks.of_key(*key)) for key in keys])
        found = read_tasks((yield self.statement("ordered", given, limit, settled.server)))
        first: dict[tuple[str, str], Trigger] = {}
        for trigger, _ in found:
            first.setdefault((trigger.queue, trigger.ordering_key or ""), trigger)
        for key, trigger in first.items():
            self.marks.raise_key(key, trigger.order_at, trigger.id, settled)
        return found

    async def drop_claims(self, node: str, but: Sequence[int]) -> None:
        """Do nothing: the rows of the tasks name the node that holds them."""

    async def still_held(self, node: str, ids: Sequence[str], noted: bool = False) -> set[str]:
        if not noted:
            return await super().still_held(node, ids)
        # Need not be durable: the next heartbeat notes them again.
        steps = self._one("note_held", batch(ids), node, batch(ids[:MOST_NOTED]))
        rows = await self.database.run_async(steps, durable=False)
        return {row[0] for row in rows}

    def _drop_node(self, node: str) -> Steps[Notification]:
        yield self.statement("drop_node", node)
        yield self.statement("drop_heartbeat", node)
        return (yield from self._control())

    def completion(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        if all(
            f.next_state == State.DONE
            and f.result is None
            and f.error_type is None
            and f.notes is None
            for f in finishes
        ):
            return self._complete_done(node, finishes)
        return super().completion(node, finishes)

    def _complete_done(self, node: str, finishes: Sequence[Finish]) -> Steps[Completed]:
        finishes = sorted(finishes, key=_by_id)
        ids, versions = [f.id for f in finishes], _once([f.version for f in finishes])
        starts, ends = [f.started_at for f in finishes], [f.finished_at for f in finishes]

        def result(rows: Sequence[Row]) -> Completed:
            count, kept = rows[0]
            return Completed(
                [] if count == len(ids) else sorted(set(ids).difference(kept or ())), None
            )

        return Single(self.statement("complete_done", ids, versions, starts, ends, node), result)

    def _record(self, node: str, finishes: Sequence[Finish]) -> Steps[int]:
        rows = [ended_attempt(f) for f in sorted(finishes, key=_by_id)]
        return len((yield self.statement("record_attempts", batch(rows), node)))

    def alone(self, name: str, *params: Any) -> Steps[Sequence[Row]]:
        return Single(self.statement(name, *params), lambda rows: rows)

    # pollers --------------------------------------------------------------------------------------

    async def wake_due(self, now: int, limit: int) -> Woken:
        woken = await super().wake_due(now, limit)
        if woken.moved == limit:  # the next call shall not pass the tasks of this one
            await self.next_due()
        return woken

    def _due_rows(self, now: int, limit: int) -> Steps[Sequence[Row]]:
        return (yield self.statement("due", *self.marks.due, now, limit))

    def _next_due(self) -> Steps[int | None]:
        settled = self.marks.settled
        due_at: int | None = (yield self.statement("next_due", *self.marks.due))[0][0]
        self.marks.raise_due(due_at, settled)
        yield from self._snapshots.read_if_late()
        return due_at

    def _clean(self, name: str, before: int, limit: int) -> Steps[Sequence[Row]]:
        # A new reader waits until this transaction commits, so no row that it finds is deleted.
        yield self.statement("hold_readers")
        params: tuple[Any, ...] = (before, limit, *self._clean_from[name])
        if name in _POSITIONS_CLEANED:
            params += _read_through(name, (yield from self._history.readers()))
        return (yield self.statement(name, *params))

    def _cleaned(self, name: str, rows: Sequence[Row]) -> int:
        if name in _POSITIONS_CLEANED:
            xids, seqs, gone_seqs, horizon = rows[0]
            gone = set(gone_seqs)
            places = list(zip(xids, seqs, strict=True))
            last = places[-1] if places else self._clean_from[name]
            kept = next((place for place in places if place[1] not in gone), last)
            self._clean_from[name] = min(kept, (horizon, 0))
            return len(gone)
        if rows:
            latest = max(row[0] for row in rows)
            self._clean_from[name] = (max(*self._clean_from[name], latest - _LATEST_RESULT),)
        return len(rows)


def _read_through(name: str, readers: Iterable[Reader]) -> Position:
    """Return the position up to which all readers are done with the rows that the statement `name`
    deletes. A lake is done with attempts once they were compared."""
    if name == "clean_events":
        done = [reader.position for reader in readers if reader.kind == "events"]
    else:
        done = [
            reader.checked or START if reader.kind == "lake" else reader.position
            for reader in readers
            if reader.kind != "events"
        ]
    return min(done, default=_END)


# one INSERT ---------------------------------------------------------------------------------------

_NULLABLE = [number for number, column in enumerate(NEW) if column.may_be_null]


def _columns(tasks: Sequence[NewTask]) -> list[Any]:
    """Return the parameters of `insert_tasks`: the earliest run_at of waiting tasks, and the
    columns of all tasks."""
    due = min((task.run_at for task in tasks if not task.is_due), default=None)
    columns: list[list[Any]] = [*map(list, zip(*map(fields_of, tasks), strict=True))]
    for number in _NULLABLE:
        columns[number] = [value or "" for value in columns[number]]
    return [due, *columns]


def _positions(tasks: Sequence[NewTask], rows: Sequence[Row]) -> dict[str, int]:
    """Return the positions of the tasks that an INSERT has made ready, by id."""
    if len(tasks) == 1 and _is_plain(tasks[0]):
        return {tasks[0].id: rows[0][0]}
    lanes = [row for row in rows if row[3] is not None]
    return {id: seq for row in lanes for id, seq in zip(row[4], row[5], strict=True)}


def _is_plain(task: NewTask) -> bool:
    """Return whether `insert_due_task` can insert the task."""
    return task.is_due and task.ordering_key is None


def _values(task: NewTask) -> tuple[Any, ...]:
    """Return the parameters of `insert_due_task`."""
    message = encode(Notification(ready=[Lane(*_lane_fields(task), 0)])).decode()
    return (message.removesuffix("0]]}"), task.submitted_at, *fields_of(task))


# bulk submit --------------------------------------------------------------------------------------

_SHARED = [
    column for column in NEW if column.name not in ("id", "ordering_key", "unique_key", "payload")
]
"""Columns that have few values in a batch."""

_SHARED_NAMES = [column.name for column in _SHARED]
_STATE_COLUMNS = ("state", "ready_at", "triggered_at", "due_at")
_LAST_COLUMNS = ("ordering_key", "order_at", "order_seq", "unique_key", "payload")
# ready_seq is the column's default, the next position, for ready tasks, and NULL for waiting tasks.
_READY_COLUMNS = ("id", *_SHARED_NAMES, *_STATE_COLUMNS, *_LAST_COLUMNS)
_WAITING_COLUMNS = ("id", *_SHARED_NAMES, *_STATE_COLUMNS, "ready_seq", "due_seq", *_LAST_COLUMNS)
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "bigint": bigint,
    "boolean": boolean,
    "double precision": double,
    "smallint": smallint,
    "text": text,
}

_shared_fields = attrgetter(*_SHARED_NAMES)


def _once(values: list[Any]) -> list[Any]:
    """Return one value if all are equal, else all: each value of an array costs the client and the
    server time."""
    return values[:1] if len({*values}) == 1 else values


def copy_rows(tasks: Sequence[NewTask], position: int, waiting: bool) -> bytes:
    """Return the tasks as rows in the binary COPY format, with the columns of _READY_COLUMNS or
    _WAITING_COLUMNS. `position`: the order_seq and due_seq of all of them.

    Fields that tasks of a batch share are encoded once for each distinct combination; the rest is
    joined from whole columns, which takes about a microsecond for a task.
    """
    heads = repeat(struct.pack(">hi", len(_WAITING_COLUMNS if waiting else _READY_COLUMNS), 16))
    ids = [uuid(task.id) for task in tasks]
    waits = NULL + bigint(position) if waiting else b""
    shared = list(map(_Shared(waits).__getitem__, map(_shared_fields, tasks)))
    payloads = [task.payload for task in tasks]
    lengths = map(struct.Struct(">i").pack, map(len, payloads))
    no_order, order_seq = NULL + NULL + NULL, bigint(position)
    orderings = [
        no_order
        if task.ordering_key is None
        else text(task.ordering_key) + bigint(task.run_at) + order_seq
        for task in tasks
    ]
    uniques = map(Texts().__getitem__, [task.unique_key for task in tasks])
    rows = zip(heads, ids, shared, orderings, uniques, lengths, payloads)  # noqa: B905 - heads never ends
    return b"".join(chain.from_iterable(rows))


class _Shared(dict[tuple[Any, ...], bytes]):
    """Encoded fields that tasks of a batch share, by value; each is made at its first use.

    `waits`: ready_seq and due_seq of waiting tasks, empty for ready ones.
    """

    def __init__(self, waits: bytes) -> None:
        super().__init__()
        self._waits = waits

    def __missing__(self, fields: tuple[Any, ...]) -> bytes:
        values = dict(zip(_SHARED_NAMES, fields, strict=True))
        submitted_at, run_at = values["submitted_at"], values["run_at"]
        waiting = bool(self._waits)
        encoded = self[fields] = b"".join(
            (
                *(_ENCODERS[column.type](values[column.name]) for column in _SHARED),
                text(State.WAITING if waiting else State.SUBMITTED),
                bigint(None if waiting else submitted_at),
                bigint(None if waiting else submitted_at),
                bigint(run_at if waiting else None),
                self._waits,
            )
        )
        return encoded
