"""Definition of ops.forgotten."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

FORGOTTEN = Table(
    "ops.forgotten",
    "rows of bronze that `maintain --keep-days` removed, counted by day; without keys and tasks",
    key=("table", "batch", "day", "store_id", "queue", "name", "outcome"),
    instant="day",
    by="date",
    columns=(
        Column("day", "timestamp", "day of the rows in UTC: of the end of a run, or of an event"),
        Column("table", "string", "table from which the rows were removed"),
        Column("store_id", "string", "identity of the store"),
        Column("queue", "string", "queue of the tasks"),
        Column("name", "string", "name of the tasks"),
        Column("outcome", "string", "outcome of the attempts, or kind of the events"),
        Column("rows", "bigint", "number of removed rows"),
        Column("busy_us", "bigint", "time of workers in these runs; 0 for events"),
        Column("batch", "string", "digest of the removed files"),
        WRITTEN_UNDER,
    ),
)
