"""Definition of gold.failures."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

FAILURES = Table(
    "gold.failures",
    "runs that failed, by hour and kind of error",
    key=("hour", "queue", "name", "error_fp"),
    instant="hour",
    by="date",
    columns=(
        Column("hour", "timestamp", "hour that contains finished_at"),
        Column("queue", "string", "queue of the runs"),
        Column("name", "string", "task name of the runs"),
        Column(
            "error_fp",
            "bigint",
            "fingerprint of similar errors; for a run without an error, CRC-32 of its outcome",
        ),
        Column("n", "bigint", "number of failed runs with this error"),
        Column("tasks", "bigint", "number of tasks that these runs belong to"),
        Column(
            "retry_amplification",
            "double",
            "number of all runs of this queue and name in the hour / number of their tasks;"
            " 1: no retries",
        ),
        Column("wasted_us", "bigint", "worker time spent on the failed runs"),
        Column(
            "error_type",
            "string",
            "class of the earliest error; if its run has no error, the outcome of the run",
        ),
        Column("error_text", "string", "text of the earliest error", nullable=True),
        Column("first_seen", "timestamp", "finished_at of the first of these runs"),
        Column("last_seen", "timestamp", "finished_at of the last of these runs"),
        Column(
            "recovered_at",
            "timestamp",
            "time of the first successful run of this queue and name after last_seen, in the"
            " same hour",
            nullable=True,
        ),
        Column(
            "storm",
            "boolean",
            "whether there were at least 100 such runs, and they were more than half of all"
            " runs of this queue and name in the hour",
        ),
        WRITTEN_UNDER,
    ),
)
