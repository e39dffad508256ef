"""Definition of silver.service."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

SERVICE = Table(
    "silver.service",
    "worker time that tasks of one key and name took in a minute; the sum of busy_us"
    " is exactly the length of all runs",
    key=("window_start", "window_s", "queue", "fairness_key", "name"),
    instant="window_start",
    together=True,
    columns=(
        Column("window_start", "timestamp", "first instant of the minute"),
        Column("window_s", "int", "length of the window in seconds: 60"),
        Column("queue", "string", "queue of the attempts"),
        Column("fairness_key", "string", "fairness key of the attempts"),
        Column("name", "string", "task name of the attempts"),
        Column("weight", "double", "greatest weight of an attempt that ran in the window"),
        Column("busy_us", "bigint", "worker time spent inside the window"),
        Column(
            "weighted_us",
            "double",
            "busy_us, the time of each run divided by the weight of its task; null in older rows",
            nullable=True,
        ),
        Column("attempts_started", "bigint", "runs that started in the window"),
        Column("attempts_done", "bigint", "runs that finished in the window with outcome done"),
        Column(
            "failed",
            "bigint",
            "runs that finished in the window with outcome failed, retried, timed_out or lost",
        ),
        Column("wasted_us", "bigint", "busy_us of runs whose outcome is neither done nor snoozed"),
        Column(
            "longest_run_us",
            "bigint",
            "full length of the longest run that took worker time in the window",
        ),
        WRITTEN_UNDER,
    ),
)
