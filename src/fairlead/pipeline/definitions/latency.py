"""Definitions of gold.latency_hist and gold.latency."""

from __future__ import annotations

from fairlead.pipeline.schema import Table, columns_in

GROWTH = 1.02
"""Ratio of the upper bounds of two neighbouring buckets. The value that represents a bucket is
within (1.02 - 1) / (1.02 + 1) < 1 % of every value in it."""

ERROR_BOUND = 0.01

_NAME = columns_in(
    """
    queue string queue of the attempts
    name  string name of the tasks
    """
)
_MEASURE = columns_in(
    """
    measure      string pickup (ready to started), run (started to finished), e2e (submitted to
                        finished, for the attempt that made the task DONE) or retry_delay (due to
                        started, for runs after the first)
    """,
)

LATENCY_HIST = Table(
    "gold.latency_hist",
    "histogram of the durations of attempts of all keys together in buckets that are"
    " 2 % wide; bucket b counts durations with 1.02^(b-1) < microseconds <= 1.02^b, and"
    " bucket 0 also counts 0",
    key=("hour", "queue", "name", "fairness_key", "measure", "bucket"),
    instant="hour",
    by="date",
    columns=columns_in(
        "hour timestamp hour that contains finished_at",
        *_NAME,
        "fairness_key string '*' for all keys together; old rows may be of one key",
        *_MEASURE,
        """
        bucket int    number of the bucket: ceil(ln(max(microseconds, 1)) / ln 1.02)
        n      bigint number of attempts in the bucket
        max_us bigint greatest duration in the bucket
        """,
    ),
)

LATENCY = Table(
    "gold.latency",
    "percentiles of the durations of attempts, by nearest rank; half of the durations"
    " do not exceed p50. A key has a row of an hour only for at least `least` attempts of"
    " [latency]; rows of days and of all keys together have no minimum",
    key=("window_start", "window_s", "queue", "name", "fairness_key", "measure"),
    instant="window_start",
    by="date",
    columns=columns_in(
        """
        window_start timestamp start of the window that contains finished_at
        window_s     int       length of the window in seconds: 3600, or 86400 for a day (UTC)
        """,
        *_NAME,
        "fairness_key string fairness key, or '*' for all keys together, never a key of this name",
        *_MEASURE,
        """
        n           bigint number of attempts in the window
        p50         double 50th percentile in microseconds
        p90         double 90th percentile in microseconds
        p99         double 99th percentile in microseconds
        p999        double 99.9th percentile in microseconds
        max_us      bigint greatest duration, exact
        error_bound double greatest relative error of the percentiles: 0.01, and at most 1 us below
                           100 us, for all keys together; 0 for a key, whose ranks are off by at
                           most 0.01 % of its attempts
        """,
    ),
)
