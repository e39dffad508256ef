"""Definition of silver.backlog."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

BACKLOG = Table(
    "silver.backlog",
    "waiting tasks of a key in a minute, counted once a second; a minute without"
    " waiting tasks, arrivals and remaining work has no row",
    key=("minute", "queue", "fairness_key"),
    instant="minute",
    together=True,
    columns=columns_in(
        """
        minute          timestamp  first instant of the minute
        queue           string     queue of the tasks
        fairness_key    string     fairness key of the tasks
        weight          double     greatest weight of a task that waited or ran in the hour
        arrived         bigint     number of tasks that became ready in the minute
        arrived_us      bigint     worker time that these tasks took later; 0 while unknown
        claimed         bigint     number of tasks that a node claimed in the minute
        strides         double     sum of 1 / weight of the claimed tasks
        depth_end       bigint     number of tasks waiting in the last second of the minute
        depth_min       bigint     least number of tasks waiting at the start or in any second of
                                   the minute
        backlogged_us   bigint     total length of the seconds in which any task waited
        work_us         bigint     remaining worker time, at the start of the minute, of tasks that
                                   were ready before
        oldest_ready_at timestamp? earliest ready_at of the tasks waiting in the last second of the
                                   minute
        """,
    ),
)
