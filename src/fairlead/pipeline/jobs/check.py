"""`check`: checks of all layers, over all their rows, without Spark."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from fairlead.clock import Clock, to_micros
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.business_days import first_hour
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.parts import micros_of
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.runs import Check, JobRun, OnRows, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.table import FORGOTTEN_BEFORE
from fairlead.pipeline.warehouse.warehouse import Warehouse


def check(warehouse: Warehouse, clock: Clock, on_rows: OnRows = lambda table, rows: None) -> JobRun:
    """Check that files are whole, that keys are unique, and that the layers agree: the newest
    build with the rows of bronze that it has read. Raise BrokenLake, CheckFailed."""
    with recorded(warehouse, clock, "check", {}) as run:
        snapshots = Snapshots(warehouse)
        with Frames(warehouse, snapshots.look()) as tables:
            for table, at in tables.seen.tables.items():
                found = checks.file_check(tables, table, sum(file.rows for file in at.files))
                run.rows_in += found.found
                run.checks.append(found)
                on_rows(table.name, found.found)
        run.checks += _of_build(warehouse, snapshots, run)
        checks.require(run.checks)
    return run


def _of_build(warehouse: Warehouse, snapshots: Snapshots, run: JobRun) -> list[Check]:
    """Check the newest build, and the days of bronze that are whole."""
    seen = snapshots.look(as_built=True)
    kept = [warehouse.table(table).state().properties for table in (ATTEMPTS, EVENTS)]
    first = max(properties.get(FORGOTTEN_BEFORE, "") for properties in kept)
    rows = {table: sum(file.rows for file in at.files) for table, at in seen.tables.items()}
    with Frames(warehouse, seen) as tables:

        def parts(table: Table) -> list[str]:
            return [part for part in tables.parts(table) if part >= first]

        attempts = [] if ATTEMPTS not in seen.tables else seen.tables[ATTEMPTS].files
        listed = sum(file.rows for file in attempts if file.part >= first)
        found = checks.bronze_checks(tables, parts, listed)
        if not seen.build.id or seen.build.again:
            run.notes.append("the layers are compared after the next build")
        if not seen.build.id:
            return found[:-1]  # no build has put unsound rows into quarantine
        found += checks.event_checks(tables, parts)
        if seen.build.again:
            return found
        since = hour = checks.ALWAYS
        if first:
            since = micros_of(first)
            hour = to_micros(first_hour(first, ZoneInfo(seen.build.zone)))
        return [
            *found,
            *checks.layer_checks(tables, parts, rows, since),
            *checks.histogram_checks(tables, parts=parts, since=hour),
        ]
