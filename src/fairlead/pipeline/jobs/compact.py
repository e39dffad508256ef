"""`compact`: closed hours of bronze become one sorted file each, and what nobody needs any more is
removed."""

from __future__ import annotations

from functools import partial

from fairlead.clock import Clock
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.compact import compact as compact_table
from fairlead.pipeline.lake.compact import to_compact
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import GRACE
from fairlead.pipeline.runs import OnRows, Run, recorded


def what_to_compact(lake: Lake, clock: Clock, everything: bool) -> dict[str, list[str]]:
    """By table, the hours that would be rewritten."""
    now = clock.now()
    tables = [lake.table(table) for table in (ATTEMPTS, EVENTS)]
    return {
        t.table.name: to_compact(t, t.manifests.newest(), now, everything=everything)
        for t in tables
    }


def compact(
    lake: Lake, clock: Clock, everything: bool = False, on_rows: OnRows = lambda table, rows: None
) -> Run:
    """Compact bronze; sweep all tables. Raises CheckFailed, BrokenLake."""
    with recorded(lake, clock, "compact", {"all": everything}) as run:
        for table in (ATTEMPTS, EVENTS):
            done = compact_table(
                lake.table(table),
                clock.now(),
                everything=everything,
                on_rows=partial(_tell, on_rows, table.name),
            )
            run.rows_in += done.rows
            run.rows_out += done.rows
            run.tables[table.name] = done.rows
            if done.skipped:
                run.notes.append(
                    f"{table.name}: rows came meanwhile, left for the next time:"
                    f" {', '.join(done.skipped)}"
                )
        for table in TABLES:
            lake.table(table).sweep(clock.now() - GRACE)
    return run


def _tell(on_rows: OnRows, table: str, _part: str, rows: int) -> None:
    on_rows(table, rows)
