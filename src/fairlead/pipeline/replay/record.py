"""Recorded arrivals from the attempts in a lake."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.errors import ConfigurationError
from fairlead.lab.policies.arrivals import Arrivals, arrivals_of
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.warehouse.warehouse import Warehouse

_TEXTS = ("name", "fairness_key")
_COLUMNS = (*_TEXTS, "weight", "priority", "ready_at", "started_at", "finished_at")


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
    table = lake.table(ATTEMPTS)
    snapshot = table.state().snapshot
    if queue is None:
        known = table.load(columns=["queue"], snapshot=snapshot, encoded=["queue"])["queue"]
        queues = sorted(pc.unique(known).to_pylist())
        if len(queues) > 1:
            raise ConfigurationError(
                f"the lake has several queues: choose one with --queue: {', '.join(queues)}"
            )
        queue = queues[0] if queues else None
    # A comparison with null is null and selects no row; invalid rows are in bronze.quarantine.
    chosen = (
        (pc.field("queue") == (queue or ""))
        & pc.field("ready_at").is_valid()
        & (pc.field("finished_at") >= pc.field("started_at"))
        & (pc.field("weight") > 0.0)
    )
    if since is not None:
        chosen &= pc.field("ready_at") >= pa.scalar(since)
    if until is not None:
        chosen &= pc.field("ready_at") < pa.scalar(until)
    rows = table.load(columns=list(_COLUMNS), where=chosen, snapshot=snapshot, encoded=_TEXTS)
    rows = rows.sort_by([("ready_at", "ascending"), ("started_at", "ascending")])
    rows = rows if limit is None else rows.slice(0, limit)
    if not rows.num_rows:
        named = "" if queue is None else f" of queue {queue!r}"
        raise ConfigurationError(
            f"{lake.shown}: no run{named} in that time; `fairlead pipeline status` lists the data"
            " in the lake"
        )
    ready, started, finished = (
        rows[name].cast(pa.int64()).to_numpy() for name in ("ready_at", "started_at", "finished_at")
    )
    recorded = arrivals_of(
        at=ready - ready[0],
        run=finished - started,
        wait=(started - ready).clip(0),
        keys=_texts(rows["fairness_key"]),
        names=_texts(rows["name"]),
        weight=rows["weight"].to_numpy(),
        priority=rows["priority"].to_numpy(),
    )
    return replace(recorded, queue=queue or "")


def _texts(column: pa.ChunkedArray) -> list[str]:
    """Return the texts of a column with a dictionary; equal texts are one object."""
    rows = column.combine_chunks()
    known = rows.dictionary.to_pylist()
    return [known[index] for index in rows.indices.to_pylist()]
