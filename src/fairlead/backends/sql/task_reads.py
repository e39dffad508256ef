"""Bounded reads of tasks and of their history, for consoles.

No read costs more on a larger table: each walks at most a fixed number of rows and says where it
stopped."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from fairlead.backends.sql.rows import batch, task_record
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.core.arguments import matches
from fairlead.core.payload import unpack
from fairlead.errors import InvalidTask
from fairlead.model import FINAL_STATES, ArgumentFilter, AttemptRecord, State
from fairlead.model.history import Position
from fairlead.model.task_facts import (
    Backlog,
    ErrorFact,
    KeyCount,
    KeySetting,
    RunFact,
    RunningTask,
    TaskPage,
)
from fairlead.ports.statements import Row, SqlDatabase, Statement, Steps
from fairlead.ports.task_records import TaskFilter

MOST_WALKED = 20_000
"""Greatest number of rows that one page walks over."""
MOST_UNTIL_HIT = 1_000_000
"""Greatest number of rows that a page walks over which has found nothing."""
MOST_RUNNING = 10_000
"""Greatest number of running tasks that are read."""
MOST_SEARCHED_ARGUMENTS = 2000
"""Number of payloads in which one page of at most 500 tasks searches an argument; a larger page
searches four for each task that it may have."""
MOST_PAYLOADS = 16 << 20
"""Bytes of stored payloads in which one page searches an argument."""
MOST_PAYLOAD = 1 << 20
"""Greatest size in bytes of a payload in which an argument is searched, stored or unpacked."""
MOST_SAMPLED = 10_000
"""Number of unfinished tasks up to which `backlog` counts them all."""
_LAST_ID = (1 << 128) - 1
_LAST = Position((1 << 63) - 1, (1 << 63) - 1)
_PAGES = 1000
"""Pages of the table that a sample reads on PostgreSQL."""
_FEW = 500
"""Greatest number of ids in one statement."""
_FIRST_WINDOW = 4000
"""Rows that a walk reads before it goes on to its bound."""
_LATER_WINDOW = 100_000
"""Rows that a walk reads at once when it goes on beyond its bound."""


class _Walk(NamedTuple):
    """How a page walks over rows."""

    order: Literal["oldest", "newest"]
    """The rows that come first."""
    most: int
    """Greatest number of rows."""
    columns: Literal["tasks", "sizes", "ids"] = "tasks"
    """Columns of each row: those of a task, its id and the size of its payload, or its id alone."""
    until_hit: int = 0
    """Greatest number of rows if nothing is found."""

    def windows(self, found: Sequence[Row]) -> Iterator[int]:
        """Yield the numbers of rows to walk over, one after the other. The first is small, because
        the tasks of a page are often near. Go on beyond the bound while nothing is `found`."""
        first = min(_FIRST_WINDOW, self.most)
        yield first
        if first < self.most:
            yield self.most - first
        for _ in range(self.most, self.until_hit, _LATER_WINDOW):
            if found:
                return
            yield _LATER_WINDOW


class _Found(NamedTuple):
    """Rows that a walk has found."""

    rows: Sequence[Row]
    after: str | None
    """Cursor from which the walk can go on; None at the end."""
    is_cut: bool = False


class TaskReads:
    """Bounded reads of the tables of a task store, for people."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database
        sql = load("task_reads.sql", package_of(database))
        for order in ("oldest", "newest"):
            for columns in ("tasks", "sizes", "ids"):
                for rows in ("in_range", "of"):
                    parts = (columns, rows, "matching_tasks", f"{order}_task_first")
                    sql[f"{columns}_{rows}_{order}"] = "\n".join(sql[part] for part in parts)
            for columns in ("finished", "ends"):
                parts = (columns, "in_history", "matching_attempts", f"{order}_end_first")
                sql[f"{columns}_{order}"] = "\n".join(sql[part] for part in parts)
        self.sql = sql

    def page(
        self,
        where: TaskFilter,
        limit: int,
        newest_first: bool,
        most_walked: int = MOST_WALKED,
        until_hit: int = MOST_UNTIL_HIT,
    ) -> Steps[TaskPage]:
        """Return a page of tasks that match, by id; with a final state, of finished ones, by their
        end. Walks over at most `most_walked` rows after `where.after`; without a hit among them,
        over at most `until_hit`. Raises InvalidTask for an `after` that is no cursor."""
        if where.tenants == () or limit == 0:
            return TaskPage([], None)
        order: Literal["oldest", "newest"] = "newest" if newest_first else "oldest"
        walk = _Walk(order, most_walked, until_hit=until_hit)
        if where.state in FINAL_STATES:
            return (yield from self._finished(where, limit, walk))
        if where.argument is not None:
            return (yield from self._with_argument(where, where.argument, limit, walk))
        found = yield from self._tasks(where, limit, walk)
        return TaskPage([task_record(row) for row in found.rows], found.after, found.is_cut)

    def count(self, where: TaskFilter, most: int) -> Steps[tuple[int, bool]]:
        """Return the number of tasks that match, counted up to `most` and as far as one page walks,
        and whether there may be more. Reads no task whole."""
        if where.tenants == ():
            return 0, False
        if where.argument is not None:
            page = yield from self.page(where, most + 1, True)
            return min(len(page.tasks), most), page.next is not None
        read = self._ends if where.state in FINAL_STATES else self._tasks
        found = yield from read(where, most + 1, _Walk("newest", MOST_WALKED, "ids"))
        return min(len(found.rows), most), found.after is not None

    def _tasks(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[_Found]:
        if where.state is State.ERROR:
            return (yield from self._in_error(where, limit, walk))
        ids = yield from self._indexed(where)
        low, high = _ids(where, walk.order)
        if ids is not None:
            rows = yield from self._among(where, ids, (low, high), limit, walk)
            return _Found(rows, rows[-1][0] if len(rows) == limit else None)
        found: list[Row] = []
        is_short = _selects_all(where) and limit <= walk.most
        for window in [limit] if is_short else walk.windows(found):
            end = yield self._statement(f"end_of_{walk.order}", low, high, window - 1)
            last = end[0][0] if end else low if walk.order == "newest" else high
            within = (low, last) if walk.order == "oldest" else (last, high)
            found += yield self._statement(
                f"{walk.columns}_in_range_{walk.order}",
                *_matching(where),
                *within,
                limit - len(found),
            )
            if len(found) == limit:
                return _Found(found, found[-1][0])
            if not end:
                return _Found(found, None)
            low, high = _ids(msgspec.structs.replace(where, after=last), walk.order)
            if where.state is State.PROCESSING:
                found += yield from self._running(where, (low, high), limit - len(found), walk)
                return _Found(found, found[-1][0] if len(found) == limit else None)
        return _Found(found, last, is_cut=True)

    def _running(
        self, where: TaskFilter, within: tuple[str, str], limit: int, walk: _Walk
    ) -> Steps[Sequence[Row]]:
        """Return those of the running tasks that match, whose ids are within the range."""
        running = yield from self.running(MOST_RUNNING)
        ids = [task.id for task in running]
        return (yield from self._among(where, ids, within, limit, walk))

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

    def _in_error(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[_Found]:
        """Walk over the tasks in ERROR only, by their incidents."""
        low, high = _ids(where, walk.order)
        found: list[Row] = []
        for walked in range(0, walk.most, _FEW):
            most = min(_FEW, walk.most - walked)
            rows = yield self._statement(f"{walk.order}_error_ids", low, high, most)
            ids = [row[0] for row in rows]
            found += yield from self._among(where, ids, (low, high), limit - len(found), walk)
            if len(found) == limit:
                return _Found(found, found[-1][0])
            if len(ids) < most:
                return _Found(found, None)
            after = UUID(ids[-1]).int
            low, high = (
                (_text(after + 1), high) if walk.order == "oldest" else (low, _text(after - 1))
            )
        return _Found(found, ids[-1], is_cut=True)

    def _among(
        self,
        where: TaskFilter,
        ids: Sequence[str],
        within: tuple[str, str],
        limit: int,
        walk: _Walk,
    ) -> Steps[Sequence[Row]]:
        """Return those of the tasks that match, whose ids are within the range."""
        return (
            yield self._statement(
                f"{walk.columns}_of_{walk.order}", *_matching(where), *within, limit, batch(ids)
            )
        )

    def _with_argument(
        self, where: TaskFilter, argument: ArgumentFilter, limit: int, walk: _Walk
    ) -> Steps[TaskPage]:
        """Search the payloads of the tasks that the other conditions of the filter select."""
        found, not_searched = yield from self._searched(where, argument, limit, walk)
        ids = [row[0] for row in found.rows]
        rows = yield from self._among(where, ids, _ids(where, walk.order), limit, walk)
        tasks = [task_record(row) for row in rows]
        return TaskPage(tasks, found.after, found.is_cut, not_searched)

    def _searched(
        self, where: TaskFilter, argument: ArgumentFilter, limit: int, walk: _Walk
    ) -> Steps[tuple[_Found, int]]:
        """Return the ids of the tasks whose payloads match, and the number of tasks whose payloads
        were not searched."""
        searched = min(walk.most, max(MOST_SEARCHED_ARGUMENTS, 4 * limit))
        page = yield from self._tasks(where, searched, walk._replace(columns="sizes"))
        found: list[Row] = []
        not_searched = size = 0
        for tasks in _pieces(page.rows):
            short = [task_id for task_id, length in tasks if length <= MOST_PAYLOAD]
            rows = yield self._statement("payloads", batch(short))
            payloads = {task_id: _unpacked(bytes(data), form) for task_id, data, form in rows}
            for task in tasks:
                payload = payloads.get(task[0])
                if payload is None:
                    not_searched += 1
                    continue
                size += len(payload)
                if matches(argument, payload):
                    found.append(task)
                if len(found) == limit:
                    return _Found(found, task[0]), not_searched
            if size > MOST_PAYLOADS:
                return _Found(found, tasks[-1][0], True), not_searched
        return _Found(found, page.after, page.after is not None), not_searched

    def _finished(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[TaskPage]:
        found = yield from self._ends(where, limit, walk)
        tasks = [AttemptRecord(*row[1:]).ended_task for row in found.rows]
        return TaskPage(tasks, found.after, found.is_cut)

    def _ends(self, where: TaskFilter, limit: int, walk: _Walk) -> Steps[_Found]:
        """Walk over the history; the first two columns of a row are its position."""
        order = walk.order
        low, high = _positions(where, order)
        ids = map(_text, _range(where.id_prefix))
        conditions, span = _matching(where), list(ids)
        columns = "finished" if walk.columns == "tasks" else "ends"
        found: list[Row] = []
        for window in walk.windows(found):
            end = yield self._statement(f"end_of_{order}_ends", *low, *high, window - 1)
            last = Position(*end[0]) if end else low if order == "newest" else high
            within = (low, last) if order == "oldest" else (last, high)
            found += yield self._statement(
                f"{columns}_{order}", *conditions, *within[0], *within[1], *span, limit - len(found)
            )
            if len(found) == limit:
                return _Found(found, str(Position(*found[-1][:2])))
            if not end:
                return _Found(found, None)
            low, high = _positions(msgspec.structs.replace(where, after=str(last)), order)
        return _Found(found, str(last), is_cut=True)

    def runs(self, limit: int) -> Steps[list[RunFact]]:
        """Return the latest attempts, latest first."""
        return [RunFact(*row) for row in (yield self._statement("runs", limit))]

    def running(self, limit: int) -> Steps[list[RunningTask]]:
        """Return the tasks that nodes hold, the longest first; on PostgreSQL without those that a
        node has claimed since its last heartbeat, and at most 1,000 of a node."""
        return [RunningTask(*row) for row in (yield self._statement("running", limit))]

    def backlog(self) -> Steps[Backlog]:
        """Return counts of the unfinished tasks: of all if there are few, else of a sample that is
        the same for the same rows."""
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
        """Return tasks in ERROR, latest first."""
        return [ErrorFact(*row) for row in (yield self._statement("errors", limit))]

    def mark(self) -> Steps[tuple[object, ...]]:
        """Return a value that differs after a task has ended, an incident was opened, or settings
        of queues have changed. Costs a few look-ups in indexes. Submits have notifications, and the
        start of a task changes nothing here."""
        return tuple((yield self._statement("mark"))[0])

    def key_settings(self, keys: Sequence[tuple[str, str]]) -> Steps[list[KeySetting]]:
        """Return the settings of those (queue, fairness key) that have any."""
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
        where.tags,
    )


def _selects_all(where: TaskFilter) -> bool:
    """Return whether the filter has no condition but the range of ids."""
    return all(value is None for value in _matching(where))


def _range(prefix: str | None) -> tuple[int, int]:
    """Return the first and the last id that begins with these digits, as numbers."""
    digits = prefix or ""
    return int(digits.ljust(32, "0"), 16), int(digits.ljust(32, "f"), 16)


def _ids(where: TaskFilter, order: str) -> tuple[str, str]:
    """Return the first and the last id of the range that is left to walk over."""
    low, high = _range(where.id_prefix)
    if where.after is not None:
        try:
            after = UUID(where.after).int
        except ValueError:
            raise InvalidTask("after: use the cursor that the page before returned") from None
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


def _pieces(tasks: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield tasks, each an id and the size of its payload, in pieces whose payloads are read
    together."""
    piece: list[Row] = []
    size = 0
    for task in tasks:
        piece.append(task)
        size += min(task[1], MOST_PAYLOAD)
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
