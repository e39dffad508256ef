"""When something was wrong, whom it hit and when it was over; made by `fairlead pipeline
incidents`, and at once but with less detail by `alerts`; not by the build."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

INCIDENTS = Table(
    "gold.incidents",
    "stretches of time in which a queue, a key or a node was in trouble, to the minute; partitioned"
    " by the date they began",
    key=("incident_id",),
    instant="start_at",
    by="date",
    columns=(
        Column(
            "incident_id",
            "string",
            "made of kind, queue, subject and start: the same incident has the same id again",
        ),
        Column(
            "kind",
            "string",
            "stall, flood, error burst, starved, node loss; by alerts also stuck and silence",
        ),
        Column("queue", "string", "the queue; '*': of a node, all that it served"),
        Column(
            "subject",
            "string",
            "the key that flooded or starved, or the node; '*': the whole queue",
        ),
        Column("start_at", "timestamp", "first instant of its first minute"),
        Column("end_at", "timestamp", "first instant after its last minute"),
        Column("is_over", "boolean", "whether history goes on after it without it"),
        Column("keys_hit", "int", "keys that had tasks waiting, or runs that failed, meanwhile"),
        Column(
            "tasks_delayed",
            "bigint",
            "tasks that waited when it began or became ready meanwhile; of errors and nodes, runs",
        ),
        Column(
            "extra_wait_us",
            "bigint",
            "time that tasks spent waiting meanwhile, beyond that queue's median minute",
        ),
        Column(
            "found_by",
            "string",
            "alerts: seen while it happened, its numbers are rough; null: by the tables",
            nullable=True,
        ),
        WRITTEN_UNDER,
    ),
)
