"""Recorded arrivals from the attempts in a lake."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from fairlead.clock import to_micros
from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals, arrivals_of
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.warehouse.warehouse import Warehouse

_QUEUES = "SELECT DISTINCT queue FROM {bronze.attempts} ORDER BY queue"
# A comparison with null selects no row; invalid rows are in bronze.quarantine.
_RUNS = """
SELECT name, fairness_key, weight, priority, epoch_us(ready_at) AS ready,
    epoch_us(started_at) AS started, epoch_us(finished_at) AS finished
FROM {bronze.attempts}
WHERE queue = $queue AND finished_at >= started_at AND weight > 0 AND NOT isnan(weight)
    AND epoch_us(ready_at) >= $since AND epoch_us(ready_at) < $until
ORDER BY ready_at, started_at, task_id, version LIMIT $most
"""
_LAST = 1 << 62
"""An instant after all others, in microseconds since the epoch, and a number above all others."""


def of_lake(
    lake: Warehouse,
    queue: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> Arrivals:
    """Return the recorded runs of one queue that became ready at or after `since` and before
    `until`, the first `limit` of them.

    Without `queue`, the lake must have only one. Each attempt is a task of its own: the replay does
    not connect a retry with its earlier attempt.

    Raise BrokenLake, or ConfigurationError when there is no such run, or when the lake has several
    queues and `queue` is None.
    """
    with Frames(lake, Snapshots(lake).read([ATTEMPTS])) as tables:
        if queue is None:
            queues = [row["queue"] for row in tables.totals(_QUEUES)]
            if len(queues) > 1:
                raise ConfigurationError(
                    f"the lake has several queues: choose one with --queue: {', '.join(queues)}"
                )
            queue = queues[0] if queues else None
        given = {
            "queue": queue,
            "since": -_LAST if since is None else to_micros(since),
            "until": _LAST if until is None else to_micros(until),
            "most": _LAST if limit is None else limit,
        }
        rows = tables.frame(_RUNS, given, at_most=_LAST)
    if rows.empty:
        named = "" if queue is None else f" of queue {queue!r}"
        raise ConfigurationError(
            f"{lake.shown}: no run{named} in that time; `fairlead pipeline status` lists the data"
            " in the lake"
        )
    recorded = arrivals_of(
        at=rows["ready"] - rows["ready"][0],
        run=rows["finished"] - rows["started"],
        wait=(rows["started"] - rows["ready"]).clip(lower=0),
        keys=rows["fairness_key"].tolist(),
        names=rows["name"].tolist(),
        weight=rows["weight"],
        priority=rows["priority"],
    )
    return replace(recorded, queue=queue or "")
