"""Definition of silver.service."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

SERVICE = Table(
    "silver.service",
    "worker time that tasks of one key and name took in a minute; the sum of busy_us"
    " is exactly the length of all runs",
    key=("window_start", "window_s", "queue", "fairness_key", "name"),
    instant="window_start",
    together=True,
    columns=columns_in(
        """
        window_start     timestamp first instant of the minute
        window_s         int       length of the window in seconds: 60
        queue            string    queue of the attempts
        fairness_key     string    fairness key of the attempts
        name             string    task name of the attempts
        weight           double    greatest weight of an attempt that ran in the window
        busy_us          bigint    worker time spent inside the window
        weighted_us      double    busy_us, the time of each run divided by the weight of its task
        attempts_started bigint    runs that started in the window
        attempts_done    bigint    runs that finished in the window with outcome done
        failed           bigint    runs that finished in the window with outcome failed, retried,
                                   timed_out or lost
        wasted_us        bigint    busy_us of runs whose outcome is neither done nor snoozed
        longest_run_us   bigint    full length of the longest run that took worker time in the
                                   window
        """,
    ),
)
