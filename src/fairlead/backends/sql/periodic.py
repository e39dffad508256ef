"""Periodic tasks in the store: one record per declaration, shared by all nodes that declare it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from fairlead.backends.sql.rows import batch
from fairlead.backends.sql.sql_file import load, package_of
from fairlead.model import NewTask, Submitted
from fairlead.model.fields import Time, Version
from fairlead.ports.notification import Notification
from fairlead.ports.sql_store import SqlStore
from fairlead.ports.statements import Many, Row, Statement, Steps


class PeriodicDeclaration(msgspec.Struct, frozen=True):
    """A periodic task as an application declares it."""

    name: str
    """Name of the record: the task's name; the second declaration of a task adds `#2`."""
    task: str
    queue: str
    cron: str
    timezone: str
    catch_up: str
    """A `fairlead.core.policies.catch_up.CatchUp`."""


class PeriodicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic task in the store; instants in microseconds since the epoch."""

    name: str
    task: str
    queue: str
    cron: str
    timezone: str
    catch_up: Annotated[str, msgspec.Meta(pattern=r"\A(last|all|none)\Z")]
    paused: bool = False
    version: Version = 1
    """Raised by each registration, pause, and submitted slot."""
    registered_at: Time
    """When a node first registered the record; no earlier slot runs."""
    passed_at: Time
    """Slots up to this instant are submitted, or skipped for good."""
    last_slot_at: Time | None = None
    """Slot that was submitted last, in microseconds since the epoch."""
    declared_at: Time
    """When a living node last declared the periodic task, by `PeriodicStore.clock`."""
    declared_by: str
    """Name of this node."""


class Advance(NamedTuple):
    """Advance of a periodic task past its due slots; applied only if the record has this
    version."""

    name: str
    version: int
    passed_at: int
    """Instant of the last due slot, in microseconds since the epoch, as `last_slot_at`."""
    last_slot_at: int | None
    """Slot that is submitted last (microseconds since the epoch); None if all due slots are
    skipped."""


class PeriodicStore:
    """Store of the periodic tasks of all applications that share the store. Each change is atomic
    for one record. Times are microseconds since the epoch, by `clock`."""

    def __init__(self, tasks: SqlStore) -> None:
        self._tasks = tasks
        self._sql = load("periodic.sql", package_of(tasks.database))

    def register(self, declared: Sequence[PeriodicDeclaration], node: str, now: int) -> Steps[None]:
        """Add the missing records, whose first slot is after `now`, and update the others to these
        declarations. A record with another cron expression or timezone skips its slots up to
        `now`."""
        at = yield from self._tasks.shared_clock(now)
        # Sorted, so that two nodes that register the same records wait without a deadlock.
        rows = sorted(
            (d.name, d.task, d.queue, d.cron, d.timezone, d.catch_up, now, at, node)
            for d in declared
        )
        yield Many(self._sql["register"], rows)

    def declare(self, names: Sequence[str], node: str, now: int, every: int) -> Steps[None]:
        """Record that the node declares these records, unless another node did so within `every`
        microseconds."""
        at = yield from self._tasks.shared_clock(now)
        yield self._statement("declare", batch(names), at, node, at - every)

    def records(self) -> Steps[list[PeriodicRecord]]:
        """Return all records, sorted by name."""
        return [_record(row) for row in (yield self._statement("records"))]

    def clock(self, now: int) -> Steps[int]:
        """Return the instant by the clock that all nodes share: the server's if there is one, else
        `now`."""
        return (yield from self._tasks.shared_clock(now))

    def submission(
        self, advance: Advance, tasks: Sequence[NewTask]
    ) -> Steps[tuple[list[Submitted], Notification | None] | None]:
        """Submit the tasks of due slots and advance the record, both or neither. Return None and
        submit nothing if the record is paused or has another version."""
        if not (yield self._statement("pass", *advance)):
            return None
        for task in tasks:
            if task.unique_key is not None and task.unique_until is None:
                yield self._statement("free_key", task.queue, task.unique_key)
        return (yield from self._tasks.submission(tasks))

    def pause(self, name: str, paused: bool, now: int) -> Steps[bool]:
        """Pause or resume a record; return False if it is unknown. A record that was paused skips
        its slots up to `now`."""
        return bool((yield self._statement("pause", name, paused, now)))

    def remove(self, name: str, declared_at: int) -> Steps[bool]:
        """Remove the record; return False if it is unknown, or was declared at another instant."""
        return bool((yield self._statement("remove", name, declared_at)))

    def _statement(self, name: str, *params: Any) -> Statement:
        return Statement(self._sql[name], params)


def _record(row: Row) -> PeriodicRecord:
    fields = dict(zip(PeriodicRecord.__struct_fields__, row, strict=True))
    return PeriodicRecord(**fields | {"paused": bool(fields["paused"])})
