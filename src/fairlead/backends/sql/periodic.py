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
        yield self._statement("declare", self._known(names), at, node, at - every)

    def _known(self, names: Sequence[str]) -> str:
        """Return the names as a parameter of `declare`."""
        return batch(names)

    def records(self) -> Steps[list[PeriodicRecord]]:
        rows = yield from self._record_rows()
        return [
            PeriodicRecord(
                name=name,
                task=task,
                queue=queue,
                cron=cron,
                timezone=timezone,
                catch_up=catch_up,
                paused=bool(paused),
                version=version,
                registered_at=registered_at,
                passed_at=passed_at,
                last_slot_at=last_slot_at,
                declared_at=declared_at,
                declared_by=declared_by,
            )
            for (
                name,
                task,
                queue,
                cron,
                timezone,
                catch_up,
                paused,
                version,
                registered_at,
                passed_at,
                last_slot_at,
                declared_at,
                declared_by,
            ) in rows
        ]

    def _record_rows(self) -> Steps[Sequence[Row]]:
        return (yield self._statement("records"))

    def clock(self, now: int) -> Steps[int]:
        return (yield from self._tasks.shared_clock(now))

    def submission(
        self, advance: Advance, tasks: Sequence[NewTask]
    ) -> Steps[tuple[list[Submitted], Notification] | None]:
        if not (yield from self._pass(advance)):
            return None
        for task in tasks:
            if task.unique_key is not None and task.unique_until is None:
                yield self._statement("free_key", task.queue, task.unique_key)
        return (yield from self._tasks.submission(tasks))

    def _pass(self, advance: Advance) -> Steps[Sequence[Row]]:
        """Advance the record. Return no row if it is paused or has another version."""
        return (yield self._statement("pass", *advance))

    def pause(self, name: str, paused: bool, now: int) -> Steps[bool]:
        return bool((yield self._statement("pause", name, paused, now)))

    def remove(self, name: str, declared_at: int) -> Steps[bool]:
        return bool((yield self._statement("remove", name, declared_at)))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)
