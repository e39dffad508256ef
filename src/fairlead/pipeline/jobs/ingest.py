"""`ingest`: one round of the exporter, recorded as a run if it moved rows or failed."""

from __future__ import annotations

from functools import partial

from fairlead.clock import Clock
from fairlead.pipeline.export import Exported, Exporter
from fairlead.pipeline.export_runs import RunExporter
from fairlead.pipeline.runs import NOTHING_TO_DO, OnRows, recorded
from fairlead.pipeline.warehouse.warehouse import Warehouse


def ingest(
    exporter: Exporter | RunExporter,
    lake: Warehouse,
    clock: Clock,
    on_rows: OnRows = lambda table, rows: None,
) -> Exported:
    """Export all rows before the horizon of the history: the position before which no further row
    will appear. Raise BrokenLake, StoreUnavailable; the job can be run again."""
    with recorded(lake, clock, "ingest", {}, keep_idle=False) as run:
        done = exporter.round(partial(on_rows, "attempts"))
        run.rows_in = run.rows_out = done.attempts + done.events
        if not run.rows_out:
            run.state = NOTHING_TO_DO
    return done
