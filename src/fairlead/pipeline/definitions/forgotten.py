"""Definition of ops.forgotten."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

FORGOTTEN = Table(
    "ops.forgotten",
    "rows of bronze that `maintain --keep-days` removed, counted by day; without keys and tasks",
    key=("table", "batch", "day", "store_id", "queue", "name", "outcome"),
    instant="day",
    by="date",
    columns=columns_in(
        """
        day      timestamp day of the rows in UTC: of the end of a run, or of an event
        table    string    table from which the rows were removed
        store_id string    identity of the store
        queue    string    queue of the tasks
        name     string    name of the tasks
        outcome  string    outcome of the attempts, or kind of the events
        rows     bigint    number of removed rows
        busy_us  bigint    time of workers in these runs; 0 for events
        batch    string    digest of the removed files
        """,
    ),
)
