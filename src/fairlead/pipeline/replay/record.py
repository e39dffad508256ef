"""Recorded arrivals from the attempts in a lake."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from fairlead.clock import to_micros
from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals, arrivals_of
from fairlead.pipeline.bronze import ATTEMPTS

if TYPE_CHECKING:
    from fairlead.pipeline.lake.lake import Lake

_COLUMNS = (
    *("queue", "name", "fairness_key", "weight", "priority"),
    *("ready_at", "started_at", "finished_at"),
)


def of_lake(
    lake: Lake,
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
    import pyarrow as pa
    import pyarrow.compute as pc

    table = lake.table(ATTEMPTS)
    manifest = table.manifests.newest()
    table.check(manifest)
    rows = table.load(manifest, columns=list(_COLUMNS))
    if rows.num_rows and queue is None:
        queues = sorted(pc.unique(rows["queue"]).to_pylist())
        if len(queues) > 1:
            raise ConfigurationError(
                f"the lake has several queues: choose one with --queue: {', '.join(queues)}"
            )
        queue = queues[0]
    for name in ("ready_at", "started_at", "finished_at"):
        rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.int64()))
    # A comparison with null is null and selects no row; invalid rows are in bronze.quarantine.
    ran = pc.and_(
        pc.is_valid(rows["ready_at"]), pc.greater_equal(rows["finished_at"], rows["started_at"])
    )
    chosen = pc.and_(
        pc.equal(rows["queue"], queue or ""), pc.and_(ran, pc.greater(rows["weight"], 0.0))
    )
    if since is not None:
        chosen = pc.and_(chosen, pc.greater_equal(rows["ready_at"], to_micros(since)))
    if until is not None:
        chosen = pc.and_(chosen, pc.less(rows["ready_at"], to_micros(until)))
    rows = rows.filter(chosen).sort_by([("ready_at", "ascending"), ("started_at", "ascending")])
    rows = rows if limit is None else rows.slice(0, limit)
    if not rows.num_rows:
        named = "" if queue is None else f" of queue {queue!r}"
        raise ConfigurationError(
            f"{lake.root}: no run{named} in that time; `fairlead pipeline status` lists the data in"
            " the lake"
        )
    ready, started, finished = (
        rows[name].to_numpy() for name in ("ready_at", "started_at", "finished_at")
    )
    found = arrivals_of(
        at=ready - ready[0],
        run=finished - started,
        wait=(started - ready).clip(0),
        keys=rows["fairness_key"].to_pylist(),
        names=rows["name"].to_pylist(),
        weight=rows["weight"].to_numpy(),
        priority=rows["priority"].to_numpy(),
    )
    return found.recorded_in(queue or "", int(ready[0]))
