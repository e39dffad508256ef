"""Definition of silver.backlog."""

from __future__ import annotations

from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table

BACKLOG = Table(
    "silver.backlog",
    "waiting tasks of a key in a minute, counted once a second; a minute without"
    " waiting tasks, arrivals and remaining work has no row",
    key=("minute", "queue", "fairness_key"),
    instant="minute",
    together=True,
    columns=(
        Column("minute", "timestamp", "first instant of the minute"),
        Column("queue", "string", "queue of the tasks"),
        Column("fairness_key", "string", "fairness key of the tasks"),
        Column("weight", "double", "greatest weight of a task that waited or ran in the hour"),
        Column("arrived", "bigint", "number of tasks that became ready in the minute"),
        Column("arrived_us", "bigint", "worker time that these tasks took later; 0 while unknown"),
        Column("claimed", "bigint", "number of tasks that a node claimed in the minute"),
        Column(
            "strides",
            "double",
            "sum of 1 / weight of the claimed tasks; null in older rows",
            nullable=True,
        ),
        Column("depth_end", "bigint", "number of tasks waiting in the last second of the minute"),
        Column(
            "depth_min",
            "bigint",
            "least number of tasks waiting at the start or in any second of the minute",
        ),
        Column("backlogged_us", "bigint", "total length of the seconds in which any task waited"),
        Column(
            "work_us",
            "bigint",
            "remaining worker time, at the start of the minute, of tasks that were ready before",
        ),
        Column(
            "oldest_ready_at",
            "timestamp",
            "earliest ready_at of the tasks waiting in the last second of the minute",
            nullable=True,
        ),
        WRITTEN_UNDER,
    ),
)
