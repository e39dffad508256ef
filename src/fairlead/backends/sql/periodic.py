"""The periodic tasks over SQL, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.model import NewTask, Submitted
from fairlead.ports.notification import Notification
from fairlead.ports.periodic_store import Advance, PeriodicDeclaration, PeriodicRecord
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Many, Row, Statement, Steps


class SqlPeriodics:
    """A `fairlead.ports.periodic_store.PeriodicStore` in the database of a task store."""

    def __init__(self, tasks: SqlStore) -> None:
        self._tasks = tasks
        self._sql = load("periodic.sql", package_of(tasks.database))

    def register(self, declared: Sequence[PeriodicDeclaration], node: str, now: int) -> Steps[None]:
        at = yield from self._tasks.shared_clock(now)
        # Sorted, so that two nodes that register the same records wait without a deadlock.
        rows = sorted(
            (d.name, d.task, d.queue, d.cron, d.timezone, d.catch_up, now, at, node)
            for d in declared
        )
        yield Many(self._sql["register"], rows)

    def declare(self, names: Sequence[str], node: str, now: int, every: int) -> Steps[None]:
        at = yield from self._tasks.shared_clock(now)
        yield self._statement("declare", batch(names), at, node, at - every)

    def records(self) -> Steps[list[PeriodicRecord]]:
        return [_record(row) for row in (yield self._statement("records"))]

    def clock(self, now: int) -> Steps[int]:
        return (yield from self._tasks.shared_clock(now))

    def submission(
        self, advance: Advance, tasks: Sequence[NewTask]
    ) -> Steps[tuple[list[Submitted], Notification | None] | None]:
        if not (yield self._statement("pass", *advance)):
            return None  # the record is paused or has another version
        for task in tasks:
            if task.unique_key is not None and task.unique_until is None:
                yield self._statement("free_key", task.queue, task.unique_key)
        return (yield from self._tasks.submission(tasks))

    def pause(self, name: str, paused: bool, now: int) -> Steps[bool]:
        return bool((yield self._statement("pause", name, paused, now)))

    def remove(self, name: str, declared_at: int) -> Steps[bool]:
        return bool((yield self._statement("remove", name, declared_at)))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def _record(row: Row) -> PeriodicRecord:
    fields = dict(zip(PeriodicRecord.__struct_fields__, row, strict=True))
    return PeriodicRecord(**fields | {"paused": bool(fields["paused"])})
