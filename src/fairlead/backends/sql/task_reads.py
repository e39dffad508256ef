"""Bounded reads of tasks and their history over SQL, for both dialects."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

from fairlead.backends.sql.rows import batch, canonical, task_record
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.core.arguments import matches
from fairlead.core.payload import unpack
from fairlead.errors import InvalidTask
from fairlead.model import FINAL_STATES, ArgumentFilter, State, TaskRecord
from fairlead.ports.history import Position
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps
from fairlead.ports.task_reads import (
    MOST_PAYLOAD,
    MOST_PAYLOADS,
    MOST_SAMPLED,
    MOST_SEARCHED_ARGUMENTS,
    MOST_WALKED,
    Backlog,
    ErrorFact,
    KeyCount,
    KeySetting,
    RunFact,
    TaskPage,
)
from fairlead.ports.task_records import TaskFilter

_LAST_ID = (1 << 128) - 1
_LAST = Position((1 << 63) - 1, (1 << 63) - 1)
_PAGES = 1000
"""Pages of the table that a sample reads on PostgreSQL."""
_FEW = 500
"""Greatest number of ids in one statement."""
_COLUMNS = 22
"""Columns of a row of which `task_record` makes a record."""


class _Walk(NamedTuple):
    """How a page walks over rows."""

    order: Literal["oldest", "newest"]
    """The rows that come first."""
    most: int
    """Greatest number of rows."""


class SqlTaskReads:
    """A `fairlead.ports.task_reads.TaskReads` in the database of a task store."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        sql = load("task_reads.sql", package_of(database))
        for order in ("oldest", "newest"):
            for name in ("tasks", "tasks_of"):
                parts = (name, "matching_tasks", f"{order}_task_first")
                sql[f"{name}_{order}"] = "\n".join(sql[part] for part in parts)
            parts = ("finished", "matching_attempts", f"{order}_end_first")
            sql[f"finished_{order}"] = "\n".join(sql[part] for part in parts)
        self.sql = sql

    def page(
        self,
        where: TaskFilter,
        limit: int,
        newest_first: bool,
        most_walked: int = MOST_WALKED,
    ) -> Steps[TaskPage]:
        if where.tenants == () or limit == 0:
            return TaskPage([], None)
        walk = _Walk("newest" if newest_first else "oldest", most_walked)
        if where.state in FINAL_STATES:
            return (yield from self._finished(where, limit, walk))
        if where.argument is not None:
            return (yield from self._with_argument(where, where.argument, limit, walk))
        return (yield from self._tasks(where, limit, walk))

    def _tasks(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[TaskPage]:
        if where.state is State.ERROR:
            return (yield from self._in_error(where, limit, walk))
        ids = yield from self._indexed(where)
        low, high = _ids(where, walk.order)
        if ids is not None:
            found = yield from self._among(where, ids, (low, high), limit, walk)
            return TaskPage(found, found[-1].id if len(found) == limit else None)
        end: str | None = None
        rows = yield self._statement(f"end_of_{walk.order}", low, high, walk.most - 1)
        if rows:
            end = rows[0][0]
            low, high = (low, end) if walk.order == "oldest" else (end, high)
        rows = yield self._statement(f"tasks_{walk.order}", *_matching(where), low, high, limit)
        found = [task_record(row) for row in rows]
        if len(found) == limit:
            return TaskPage(found, found[-1].id)
        return TaskPage(found, end, is_cut=end is not None)

    def _indexed(self, where: TaskFilter) -> Steps[list[str] | None]:
        """Return the ids of all tasks that may match, if an index finds few; else None."""
        if where.unique_key is not None:
            rows = yield self._statement("ids_of_unique_key", where.unique_key, where.queue)
            return [row[0] for row in rows]
        if where.ordering_key is not None:
            rows = yield self._statement(
                "ids_of_ordering_key", where.ordering_key, where.queue, _FEW + 1
            )
            return [row[0] for row in rows] if len(rows) <= _FEW else None
        return None

    def _in_error(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[TaskPage]:
        """Walk over the tasks in ERROR only, by their incidents."""
        low, high = _ids(where, walk.order)
        found: list[TaskRecord] = []
        for walked in range(0, walk.most, _FEW):
            most = min(_FEW, walk.most - walked)
            rows = yield self._statement(f"{walk.order}_error_ids", low, high, most)
            ids = [row[0] for row in rows]
            found += yield from self._among(where, ids, (low, high), limit - len(found), walk)
            if len(found) == limit:
                return TaskPage(found, found[-1].id)
            if len(ids) < most:
                return TaskPage(found, None)
            after = UUID(ids[-1]).int
            low, high = (
                (_text(after + 1), high) if walk.order == "oldest" else (low, _text(after - 1))
            )
        return TaskPage(found, ids[-1], is_cut=True)

    def _among(
        self,
        where: TaskFilter,
        ids: Sequence[str],
        within: tuple[str, str],
        limit: int,
        walk: _Walk,
    ) -> Steps[list[TaskRecord]]:
        """Return those of the tasks that match, whose ids are within the range."""
        rows = yield self._statement(
            f"tasks_of_{walk.order}", *_matching(where), *within, limit, batch(ids)
        )
        return [task_record(row) for row in rows]

    def _with_argument(
        self, where: TaskFilter, argument: ArgumentFilter, limit: int, walk: _Walk
    ) -> Steps[TaskPage]:
        """Search the payloads of the tasks that the other conditions of the filter select."""
        searched = min(walk.most, max(MOST_SEARCHED_ARGUMENTS, 4 * limit))
        page = yield from self._tasks(where, searched, walk)
        found: list[TaskRecord] = []
        not_searched = size = 0
        for tasks in _pieces(page.tasks):
            short = [task.id for task in tasks if task.payload_bytes <= MOST_PAYLOAD]
            rows = yield self._statement("payloads", batch(short))
            payloads = {task_id: _unpacked(bytes(data), form) for task_id, data, form in rows}
            for task in tasks:
                payload = payloads.get(task.id)
                if payload is None:
                    not_searched += 1
                    continue
                size += len(payload)
                if matches(argument, payload):
                    found.append(task)
                if len(found) == limit:
                    return TaskPage(found, task.id, not_searched=not_searched)
            if size > MOST_PAYLOADS:
                return TaskPage(found, tasks[-1].id, True, not_searched)
        return TaskPage(found, page.after, page.after is not None, not_searched)

    def _finished(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[TaskPage]:
        order = walk.order
        low, high = _positions(where, order)
        end: Position | None = None
        rows = yield self._statement(f"end_of_{order}_ends", *low, *high, walk.most - 1)
        if rows:
            end = Position(*rows[0])
            low, high = (low, end) if order == "oldest" else (end, high)
        ids = _range(where.id_prefix)
        rows = yield self._statement(
            f"finished_{order}", *_matching(where), *low, *high, *map(_text, ids), limit
        )
        found = [task_record(row[:_COLUMNS]) for row in rows]
        if len(found) == limit:
            return TaskPage(found, str(Position(*rows[-1][_COLUMNS:])))
        return TaskPage(found, None if end is None else str(end), is_cut=end is not None)

    def runs(self, limit: int) -> Steps[list[RunFact]]:
        return [RunFact(*row) for row in (yield self._statement("runs", limit))]

    def backlog(self) -> Steps[Backlog]:
        if self._database.dialect == "postgres":
            part: float = (yield self._statement("sampled_part", _PAGES))[0][0]
            rows = yield self._statement("backlog", part)
            return _backlog(rows, 1 / part)
        first, last, tasks = (yield self._statement("range", MOST_SAMPLED + 1))[0]
        if tasks <= MOST_SAMPLED:
            return _backlog((yield self._statement("backlog")), 1.0)
        seqs, factor = _sample(first, last)
        return _backlog((yield self._statement("backlog_of", batch(seqs))), factor)

    def errors(self, limit: int) -> Steps[list[ErrorFact]]:
        return [ErrorFact(*row) for row in (yield self._statement("errors", limit))]

    def mark(self) -> Steps[tuple[object, ...]]:
        return tuple((yield self._statement("mark"))[0])

    def key_settings(self, keys: Sequence[tuple[str, str]]) -> Steps[list[KeySetting]]:
        rows = yield self._statement("key_settings", batch(keys))
        return [KeySetting(*row) for row in rows]

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self.sql[name], params)


def _matching(where: TaskFilter) -> Row:
    return (
        where.state,
        where.queue,
        where.name,
        where.fairness_key,
        where.older_than,
        where.submitted_from,
        where.error,
        where.ordering_key,
        where.unique_key,
        None if where.tenants is None else batch(where.tenants),
    )


def _range(prefix: str | None) -> tuple[int, int]:
    """Return the first and the last id that begins with these digits, as numbers."""
    digits = prefix or ""
    return int(digits.ljust(32, "0"), 16), int(digits.ljust(32, "f"), 16)


def _ids(where: TaskFilter, order: str) -> tuple[str, str]:
    """Return the first and the last id of the range that is left to walk over."""
    low, high = _range(where.id_prefix)
    if where.after is not None:
        after = UUID(canonical(where.after)).int
        if order == "oldest":
            low = max(low, after + 1)
        else:
            high = min(high, after - 1)
    if low > high:  # an empty range, in which no id is
        return _text(1), _text(0)
    return _text(low), _text(high)


def _text(number: int) -> str:
    return str(UUID(int=min(number, _LAST_ID)))


def _positions(where: TaskFilter, order: str) -> tuple[Position, Position]:
    low, high = Position(0, 0), _LAST
    if where.after is not None:
        parts = where.after.split(".")
        if len(parts) != 2 or not all(map(_is_number, parts)):
            raise InvalidTask("after: use the cursor that the page before returned")
        after = Position.of(where.after)
        if order == "oldest":
            low = Position(after.xid, after.seq + 1)
        else:
            high = Position(after.xid, after.seq - 1)
    return low, high


def _is_number(digits: str) -> bool:
    """Return whether a text is a number that a database can hold, after which another one comes."""
    return digits.isascii() and digits.isdigit() and len(digits) < 19


def _pieces(tasks: Sequence[TaskRecord]) -> Iterator[Sequence[TaskRecord]]:
    """Yield the tasks in pieces whose payloads are read together."""
    piece: list[TaskRecord] = []
    size = 0
    for task in tasks:
        piece.append(task)
        size += min(task.payload_bytes, MOST_PAYLOAD)
        if size >= MOST_PAYLOAD or len(piece) == 500:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _unpacked(stored: bytes, payload_format: str) -> bytes | None:
    try:
        return unpack(stored, payload_format, MOST_PAYLOAD)
    except InvalidTask:
        return None


def _sample(first: int, last: int) -> tuple[list[int], float]:
    """Return positions of tasks, one at random in each of as many equal ranges, and the number of
    positions for which each stands."""
    # Not at equal distances, because tenants may submit in turns.
    source = random.Random(0)
    width = (last - first + 1) / MOST_SAMPLED
    seqs = [first + int((i + source.random()) * width) for i in range(MOST_SAMPLED)]
    return seqs, width


def _backlog(rows: Sequence[Row], factor: float) -> Backlog:
    counts = [
        KeyCount(queue, name, key, State(state), tasks, oldest, weight)
        for queue, name, key, state, tasks, oldest, weight in rows
    ]
    return Backlog(counts, factor)
