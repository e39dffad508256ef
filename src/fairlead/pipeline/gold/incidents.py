"""Incidents: the time, the subject and the effect of each.

`fairlead pipeline incidents` writes the table. `fairlead pipeline alerts` writes it earlier, with
less detail. The build does not write it.
"""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

INCIDENTS = Table(
    "gold.incidents",
    "times in which a queue, a key or a node was in trouble, to the minute; partitioned by the date"
    " of the start",
    key=("incident_id",),
    instant="start_at",
    by="date",
    columns=(
        Column(
            "incident_id",
            "string",
            "made from kind, queue, subject and start; the same incident always has the same id",
        ),
        Column(
            "kind",
            "string",
            "stall, flood, error burst, starved, node loss; from alerts also stuck and silence",
        ),
        Column("queue", "string", "the queue; '*' for a node: all queues that it served"),
        Column(
            "subject",
            "string",
            "the key that flooded or starved, or the node; '*': the whole queue",
        ),
        Column("start_at", "timestamp", "first instant of the first minute"),
        Column("end_at", "timestamp", "first instant after the last minute"),
        Column("is_over", "boolean", "whether the history continues after the end of the incident"),
        Column("keys_hit", "int", "keys with waiting tasks or failed runs during the incident"),
        Column(
            "tasks_delayed",
            "bigint",
            "tasks that waited at the start or became ready later; runs, for errors and nodes",
        ),
        Column(
            "extra_wait_us",
            "bigint",
            "time that tasks waited during the incident, beyond the queue's median minute",
        ),
        Column(
            "found_by",
            "string",
            "alerts: found while it happened, with rough numbers; null: found in the tables",
            nullable=True,
        ),
        WRITTEN_UNDER,
    ),
)
