"""Definition of gold.failures."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

FAILURES = Table(
    "gold.failures",
    "runs that failed, by hour and kind of error",
    key=("hour", "queue", "name", "error_fp"),
    instant="hour",
    by="date",
    columns=columns_in(
        """
        hour                timestamp  hour that contains finished_at
        queue               string     queue of the runs
        name                string     task name of the runs
        error_fp            bigint     fingerprint of similar errors; for a run without an error,
                                       CRC-32 of its outcome
        n                   bigint     number of failed runs with this error
        tasks               bigint     number of tasks that these runs belong to
        retry_amplification double     number of all runs of this queue and name in the hour /
                                       number of their tasks; 1: no retries
        wasted_us           bigint     worker time spent on the failed runs
        error_type          string     class of the earliest error; if its run has no error, the
                                       outcome of the run
        error_text          string?    text of the earliest error
        first_seen          timestamp  finished_at of the first of these runs
        last_seen           timestamp  finished_at of the last of these runs
        recovered_at        timestamp? time of the first successful run of this queue and name after
                                       last_seen, in the same hour
        storm               boolean    whether there were at least 100 such runs, and they were more
                                       than half of all runs of this queue and name in the hour
        """,
    ),
)
