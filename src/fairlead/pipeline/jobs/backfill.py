"""A build of a range of past days with the present code, day by day: a backfill.

Each day is a build of its own: written beside the present tables, checked, compared with them, and
then published. Finished days are recorded, so that a backfill that was interrupted continues with
the remaining days. Building a day twice gives the same result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.errors import ConfigurationError
from fairlead.model.reading import json_reader
from fairlead.pipeline import durable
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.build_plan import EDITION, BuildPlan, Built, last_build
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs import checks
from fairlead.pipeline.jobs.build import FolderJob, digest
from fairlead.pipeline.jobs.layers import Build
from fairlead.pipeline.lake.alone import alone
from fairlead.pipeline.lake.manifest import Manifest
from fairlead.pipeline.lake.parts import dates_of, hours_of
from fairlead.pipeline.quality import sound
from fairlead.pipeline.runs import NOTHING_TO_DO, Check, OnRows, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.settings import PipelineSettings
from fairlead.pipeline.tables import Tables, lake_tables

_FILE = "_backfill.json"
_DAY = timedelta(days=1)


class Difference(msgspec.Struct, frozen=True):
    """Rows of one table on one day: total, only in the old build, only in the new one."""

    table: str
    day: str
    rows: int
    only_old: int
    only_new: int


class Backfilled(msgspec.Struct, frozen=True):
    """Result of a backfill."""

    days: list[str]
    skipped: list[str]
    """Days that an earlier run of this backfill finished."""
    differences: list[Difference]
    """Differences of the tables that changed."""
    notes: list[str]


class _BackfillProgress(msgspec.Struct, frozen=True):
    """Progress of the last backfill."""

    what: str = ""
    """Digest of bounds, settings and code, which identifies the backfill."""
    done: list[str] = []


_decode = json_reader(_BackfillProgress)


def backfill(
    job: FolderJob,
    settings: PipelineSettings,
    since: datetime,
    until: datetime,
    dry_run: bool = False,
    on_rows: OnRows = lambda table, rows: None,
    compare: bool = True,
) -> Backfilled:
    """Rebuild the days from `since` up to `until` (excluded); with `dry_run`, only compare them.

    compare: whether to compare the rebuilt days with the present tables.

    Raise ConfigurationError for an empty range; CheckFailed (earlier days stay rebuilt, the failed
    day stays as it was); NotAllowed while a build is running; BrokenLake.
    """
    days = _days(since, until)
    what = hashlib.sha256(f"{days} {digest(settings)} {EDITION} {job.catalog}".encode()).hexdigest()
    params = {"from": days[0], "to": days[-1], "dry_run": dry_run, "catalog": job.catalog}
    with alone(job.lake), recorded(job.lake, job.clock, "backfill", params) as run:
        run.spark_version = job.spark.version
        progress = _progress(job.lake.root / _FILE, what)
        skipped = [] if dry_run else progress.done
        made, differences = [], []
        for day in days:
            if day in skipped:
                continue
            found, rows, held = _one_day(job, settings, day, dry_run, on_rows, compare)
            differences += found
            made.append(day)
            run.rows_out += rows
            run.checks = held
            if not dry_run:
                progress = _BackfillProgress(what, [*progress.done, day])
                _save_progress(job.lake.root / _FILE, progress)
        if not dry_run:
            (job.lake.root / _FILE).unlink(missing_ok=True)
        if not made:
            run.state = NOTHING_TO_DO
    return Backfilled(made, list(skipped), differences, list(_notes(job, settings)))


def _one_day(
    job: FolderJob,
    settings: PipelineSettings,
    day: str,
    dry_run: bool,
    on_rows: OnRows,
    compare: bool,
) -> tuple[list[Difference], int, list[Check]]:
    tables = lake_tables(job.spark, job.lake, job.catalog, job.clock)
    attempts, events = (job.lake.table(table).manifests.newest() for table in (ATTEMPTS, EVENTS))
    plan = _plan(attempts, events, day)
    steps = Build(job.spark, tables, plan, settings, on_rows)
    steps.run()
    hours = steps.touched.service
    runs = tables.read(ATTEMPTS, steps.parts_for(("started_at",), hours)).transform(sound)
    listed = sum(attempts.parts[name].rows for name in plan.changed_attempts)
    held = [
        *checks.bronze_checks(tables, plan.changed_attempts, listed),
        *checks.service_checks(tables, runs, hours),
        *checks.latency_checks(tables, dates_of(plan.changed_attempts)),
    ]
    checks.require(held)
    differences = []
    if compare:
        old = lake_tables(job.spark, job.lake, job.catalog, job.clock)
        for table in TABLES:
            if table.name in steps.parts:
                differences += _difference(table, day, old, tables, steps.parts[table.name])
    if not dry_run:
        tables.publish()
    return differences, sum(steps.rows.values()), held


def _plan(attempts: Manifest, events: Manifest, day: str) -> BuildPlan:
    """Return a plan with all hours of the day, changed or not."""
    hours = hours_of([day])
    return BuildPlan(
        full=False,
        attempts=attempts,
        events=events,
        changed_attempts=frozenset(attempts.parts.keys() & set(hours)),
        changed_events=frozenset(events.parts.keys() & set(hours)),
        before=Built(again=hours),
        until=max(attempts.written_at, events.written_at),
    )


def _difference(
    table: Table, day: str, old: Tables, new: Tables, parts: Collection[str] | None
) -> list[Difference]:
    """Return the difference in a list, which is empty when nothing changed. Fractions are compared
    to six places, because their sums depend on the order of adding."""
    before, after = (_comparable(table, tables.read(table, parts)) for tables in (old, new))
    only_old, only_new = before.exceptAll(after).count(), after.exceptAll(before).count()
    return (
        [Difference(table.name, day, after.count(), only_old, only_new)]
        if only_old or only_new
        else []
    )


def _comparable(table: Table, rows: DataFrame) -> DataFrame:
    columns = [column for column in table.columns if column.name != "schema_version"]
    return rows.select(
        *[
            F.round(c.name, 6).alias(c.name) if c.type == "double" else F.col(c.name)
            for c in columns
        ]
    )


def _days(since: datetime, until: datetime) -> list[str]:
    if since >= until:
        raise ConfigurationError(
            f"no day lies between {since:%Y-%m-%d} and {until:%Y-%m-%d}; --until is the day"
            " after the last one"
        )
    first = since.replace(hour=0, minute=0, second=0, microsecond=0)
    days = []
    while first < until:
        days.append(f"{first:%Y-%m-%d}")
        first += _DAY
    return days


def _progress(path: Path, what: str) -> _BackfillProgress:
    try:
        found = _decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return _BackfillProgress(what)
    return found if found.what == what else _BackfillProgress(what)


def _save_progress(path: Path, progress: _BackfillProgress) -> None:
    durable.write(path, lambda path: path.write_bytes(msgspec.json.encode(progress)))


def _notes(job: FolderJob, settings: PipelineSettings) -> list[str]:
    last = last_build(job.lake.root)
    if last.edition not in (0, EDITION):
        return [
            f"the last build wrote edition {last.edition} of the tables, and this Fairlead writes"
            f" edition {EDITION}; the next build rebuilds everything"
        ]
    if last.settings not in ("", digest(settings)):
        return [
            "the last build had other settings; use the same settings for the next build, or it"
            " rebuilds everything"
        ]
    return []
