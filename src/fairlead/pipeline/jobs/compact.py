"""`compact`: rewrites each closed hour of bronze as one sorted file, and deletes unused files."""

from __future__ import annotations

from functools import partial

from fairlead.clock import Clock
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake.compact import compact as compact_table
from fairlead.pipeline.lake.compact import to_compact
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.lake.table import GRACE
from fairlead.pipeline.runs import JobRun, OnRows, recorded


def what_to_compact(lake: Lake, clock: Clock, everything: bool) -> dict[str, list[str]]:
    """Return the hours to rewrite, by table."""
    now = clock.now()
    tables = [lake.table(table) for table in (ATTEMPTS, EVENTS)]
    return {
        t.table.name: to_compact(t, t.manifests.newest(), now, everything=everything)
        for t in tables
    }


def compact(
    lake: Lake, clock: Clock, everything: bool = False, on_rows: OnRows = lambda table, rows: None
) -> JobRun:
    """Compact bronze, and delete the unused files of all tables. Raise CheckFailed, BrokenLake."""
    with recorded(lake, clock, "compact", {"all": everything}) as run:
        for table in (ATTEMPTS, EVENTS):
            done = compact_table(
                lake.table(table),
                clock.now(),
                everything=everything,
                on_rows=partial(_report, on_rows, table.name),
            )
            run.rows_in += done.rows
            run.rows_out += done.rows
            run.tables[table.name] = done.rows
            if done.skipped:
                run.notes.append(
                    f"{table.name}: new rows arrived during the compaction of these hours, so the"
                    f" next one compacts them: {', '.join(done.skipped)}"
                )
        for table in TABLES:
            lake.table(table).sweep(clock.now() - GRACE)
    return run


def _report(on_rows: OnRows, table: str, _part: str, rows: int) -> None:
    on_rows(table, rows)
