"""`reconcile`: compares the lake with the store; rows that agree may be cleaned from the store."""

from __future__ import annotations

from fairlead.clock import Clock
from fairlead.pipeline.reconcile import reconcile as compare
from fairlead.pipeline.runs import Check, JobRun, OnRows, recorded
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import HistoryStore


def reconcile(
    history: HistoryStore, lake: Warehouse, clock: Clock, on_rows: OnRows = lambda table, rows: None
) -> JobRun:
    """Compare everything exported since the last comparison. Raise CheckFailed with the
    differences, in which case nothing may be cleaned."""
    with recorded(lake, clock, "reconcile", {}) as run:
        found = compare(history, lake, clock, on_rows=lambda rows: on_rows("attempts", rows))
        run.rows_in = found.rows
        run.checks = [
            Check("attempts in the lake and in the store", found.rows, found.rows),
            Check("worker time of the attempts in microseconds", found.busy_us, found.busy_us),
        ]
    return run
