"""Adapters of ordered queues beside the tables of a task store."""

from __future__ import annotations

from fairlead.backends.postgres.schedule import PostgresScheduleStore
from fairlead.backends.postgres.task_log import PostgresTaskLog
from fairlead.backends.postgres.task_store import PostgresTaskStore
from fairlead.backends.sql.schedule import SqlScheduleStore
from fairlead.backends.sql.task_log import SqlTaskLog
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import Clock


def schedule_of(store: SqlTaskStore) -> SqlScheduleStore:
    """Return a schedule in the database of the task store."""
    is_postgres = isinstance(store, PostgresTaskStore)
    return PostgresScheduleStore(store) if is_postgres else SqlScheduleStore(store)


def log_of(store: SqlTaskStore, clock: Clock) -> SqlTaskLog:
    """Return a task log in the database of the task store."""
    is_postgres = isinstance(store, PostgresTaskStore)
    return PostgresTaskLog(store, clock) if is_postgres else SqlTaskLog(store, clock)
