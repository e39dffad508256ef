"""`ingest`: one round of the exporter, kept beside the other jobs when it moved anything, or
failed."""

from __future__ import annotations

from functools import partial

from fairlead.clock import Clock
from fairlead.pipeline.export import Exported, Exporter
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.runs import NOTHING_TO_DO, Tell, recorded


def ingest(
    exporter: Exporter, lake: Lake, clock: Clock, tell: Tell = lambda table, rows: None
) -> Exported:
    """Export all that is behind the safe horizon. Raises BrokenLake, StoreUnavailable; run it again
    then."""
    with recorded(lake, clock, "ingest", {}, keep_idle=False) as run:
        done = exporter.round(partial(tell, "attempts"))
        run.rows_in = run.rows_out = done.attempts + done.events
        if not run.rows_out:
            run.state = NOTHING_TO_DO
    return done
