"""The stage for each kind of task store."""

from __future__ import annotations

from fairlead.pipeline.bulk.postgres import PostgresStage
from fairlead.pipeline.bulk.sqlite import SqliteStage
from fairlead.pipeline.bulk.stage import Stage
from fairlead.ports.sql_store import SqlStore


def stage_of(store: SqlStore, max_connections: int = 4) -> Stage:
    """Return the stage of a task store. At most `max_connections` processes write to a server at
    once."""
    match store.database.dialect:
        case "sqlite":
            return SqliteStage(store)
        case _:
            return PostgresStage(store, max_connections)
