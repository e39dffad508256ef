"""Checks that the totals of the layers agree: statements of SQL for a build before it publishes its
tables, and for the job `check`, which checks all rows of all layers without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from string import Template

from fairlead.clock import Clock, to_micros
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.jobs.totals import Tables
from fairlead.pipeline.models import ATTEMPTS, EVENTS, LATENCY_HIST, SERVICE, TASKS
from fairlead.pipeline.partitions import (
    PartsOf,
    all_parts,
    hours_of,
    micros_of,
    runs_of,
)
from fairlead.pipeline.quality import IS_SOUND, IS_SOUND_EVENT
from fairlead.pipeline.reading.frames import Frames
from fairlead.pipeline.reading.snapshots import Snapshots, TableAt
from fairlead.pipeline.runs import Check, JobRun, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.data_files import rows_in
from fairlead.pipeline.warehouse.table import KEPT_FROM
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.windows import WINDOWS

ALWAYS = -(1 << 62)
"""An instant before all others, in microseconds since the epoch."""

# Count hashes of the keys, which is cheaper than counting keys. If there are as many distinct
# hashes as expected, that is the number of keys; otherwise count the keys themselves.
_KEYS = "SELECT count(DISTINCT xxhash64($key)) AS keys FROM {$table} WHERE $pass"
_SOUND = """
SELECT * FROM (SELECT count(*) AS n, count_if($is_sound) AS sound FROM {$table} AS event)
CROSS JOIN (SELECT count(*) AS refused FROM {bronze.quarantine} WHERE source LIKE '$table/%')
"""
_BRONZE = """
SELECT count(DISTINCT CASE WHEN unix_micros(submitted_at) >= $since
        THEN xxhash64(store_id, task_id) END) AS tasks,
    sum(CASE WHEN unix_micros(submitted_at) >= $since
        THEN unix_micros(finished_at) - unix_micros(started_at) END) AS task_us,
    sum(CASE WHEN started_at IS NOT NULL
        THEN unix_micros(finished_at) - greatest(unix_micros(started_at), $since) END) AS us
FROM (SELECT * FROM {bronze.attempts} WHERE $sound) WHERE $pass
"""
_TASKS = """
SELECT count_if(unix_micros(submitted_at) >= $since AND last_finished_at IS NOT NULL) AS tasks,
    count_if(last_finished_at IS NULL) AS open,
    sum(CASE WHEN unix_micros(submitted_at) >= $since THEN run_us END) AS us
FROM {silver.tasks} WHERE $pass
"""
_SERVICE = """
SELECT sum(busy_us) AS us,
    sum(CASE WHEN unix_micros(window_start) >= $since THEN busy_us END) AS kept_us
FROM {silver.service}
"""
# An attempt that never started would seem to run in all hours, because `greatest` ignores nulls.
_SERVED = """
SELECT (SELECT sum($inside) FROM {bronze.attempts} WHERE started_at IS NOT NULL AND $sound)
        AS spent,
    (SELECT sum(busy_us) FROM {silver.service}) AS served
"""
_HISTOGRAM = """
SELECT (SELECT count(started_at) FROM {bronze.attempts} WHERE $sound AND ($within)) AS runs,
    (SELECT sum(n) FROM {gold.latency_hist} WHERE measure = 'run' AND fairness_key = '*'
        AND unix_micros(hour) >= $since) AS counted
"""


def check(warehouse: Warehouse, clock: Clock) -> JobRun:
    """Check that files are whole, that keys are unique, and that the layers agree: the newest
    build with the rows of bronze that it has read. Raise BrokenLake, CheckFailed."""
    with recorded(warehouse, clock, "check", {}) as run:
        snapshots = Snapshots(warehouse)
        run.checks = [file_check(table, at) for table, at in snapshots.read().tables.items()]
        run.rows_in = sum(each.found for each in run.checks)
        run.checks += _of_build(warehouse, snapshots, run)
        require(run.checks)
    return run


def _of_build(warehouse: Warehouse, snapshots: Snapshots, run: JobRun) -> list[Check]:
    """Check the newest build, and the days of bronze that are whole."""
    seen = snapshots.read(as_built=True)
    kept = [warehouse.table(table).state().properties for table in (ATTEMPTS, EVENTS)]
    first = max(properties.get(KEPT_FROM, "") for properties in kept)
    rows = {table: sum(file.rows for file in at.files) for table, at in seen.tables.items()}
    with Frames(warehouse, seen) as tables:

        def parts(table: Table) -> list[str]:
            return [part for part in tables.parts(table) if part >= first]

        attempts = [] if ATTEMPTS not in seen.tables else seen.tables[ATTEMPTS].files
        listed = sum(file.rows for file in attempts if file.part >= first)
        found = key_checks(tables, {ATTEMPTS: listed}, parts)
        if not seen.build.id or seen.build.again:
            run.notes.append("the layers are compared after the next build")
        if not seen.build.id:
            return found  # no build has put unsound rows into quarantine
        found += [sound_check(tables, table, parts) for table in (ATTEMPTS, EVENTS)]
        found += key_checks(tables, {table: n for table, n in rows.items() if table.query})
        if seen.build.again:
            return found
        since = micros_of(first) if first else ALWAYS
        return [
            *found,
            *layer_checks(tables, parts, rows, since),
            *histogram_checks(tables, parts=parts, since=since),
        ]


def require(checks: Sequence[Check]) -> None:
    """Raise CheckFailed with the name of every check that failed."""
    failed = [str(check) for check in checks if not check.holds]
    if failed:
        raise CheckFailed("; ".join(failed))


def file_check(table: Table, at: TableAt) -> Check:
    """Check that each file of a table is whole, and that they have as many rows as their list
    says. Raise BrokenLake for a missing or damaged file."""
    found = sum(rows_in(table, at.io, file) for file in at.files)
    return Check(f"{table.name}: files are whole", sum(file.rows for file in at.files), found)


def sound_check(tables: Tables, table: Table, parts: PartsOf) -> Check:
    """Check that each row of bronze.attempts or bronze.events is valid or in quarantine."""
    is_sound = IS_SOUND_EVENT if table is EVENTS else IS_SOUND
    found = _one(tables, _SOUND, parts, table=table.name, is_sound=is_sound)
    name = f"{table.name}: rows are sound or in quarantine"
    return Check(name, found["n"], found["sound"] + found["refused"])


def key_checks(
    tables: Tables, rows: Mapping[Table, int], parts: PartsOf = all_parts
) -> list[Check]:
    """Check that each row of a table is there, with a key of its own.

    rows: number of rows that are listed, by table.
    """
    found = []
    for table, listed in rows.items():
        key = ", ".join(table.key)
        keys = _passes(tables, _KEYS, listed, parts, key=key, table=table.name)["keys"]
        if keys != listed:
            keys = _distinct(tables, key, f"{{{table.name}}}", listed, parts)
        found.append(Check(f"{table.name}: keys are unique", listed, keys))
    return found


def histogram_checks(
    tables: Tables,
    dates: Collection[str] | None = None,
    *,
    parts: PartsOf = all_parts,
    since: int = ALWAYS,
) -> list[Check]:
    """Check that the histogram counts each run of these dates once.

    parts, since: without dates, the partitions to read, and the start of the first hour of the
    histogram that is compared, in microseconds since the epoch.
    """
    within = f"unix_micros(finished_at) >= {since}"
    if dates is not None:
        parts = {ATTEMPTS: hours_of(dates), LATENCY_HIST: dates}.__getitem__
        within = "true" if dates else "false"
    found = _one(tables, _HISTOGRAM, parts, within=within, since=since)
    return [Check("gold.latency_hist: runs in the histogram", found["runs"], found["counted"])]


def service_checks(
    tables: Tables, hours: Collection[str] | None, ran: Collection[str] | None
) -> list[Check]:
    """Check that the worker time in silver.service equals the time that the runs spend inside these
    hours, to 1 us.

    ran: partitions of bronze that have all these runs; None for all.
    """
    begin, end = "unix_micros(started_at)", "unix_micros(finished_at)"
    inside = f"{end} - {begin}"
    if hours is not None:
        spans = [(to_micros(since), to_micros(until)) for since, until in runs_of(hours)]
        inside = " + ".join(
            f"greatest(0, least({end}, {high}) - greatest({begin}, {low}))" for low, high in spans
        )
    parts = {ATTEMPTS: ran, SERVICE: hours}.__getitem__
    found = _one(tables, _SERVED, parts, inside=inside or "0")
    return [
        Check("silver.service: worker time in microseconds", found["spent"], found["served"]),
    ]


def layer_checks(
    tables: Tables, parts: PartsOf, rows: Mapping[Table, int], since: int = ALWAYS
) -> list[Check]:
    """Check the totals of the layers against each other.

    parts: partitions of bronze that have all their rows, all by default; since: their first
    instant, in microseconds since the epoch, from which tasks are compared by their submit, because
    builds leave older ones as they are. rows: number of rows by table.
    """
    attempts, tasks = rows.get(ATTEMPTS, 0), rows.get(TASKS, 0)
    bronze = _passes(tables, _BRONZE, attempts, parts, since=since)
    silver = _passes(tables, _TASKS, tasks, since=since)
    if bronze["tasks"] != silver["tasks"]:
        kept = (
            "(SELECT * FROM {bronze.attempts} WHERE $sound AND unix_micros(submitted_at) >= $since)"
        )
        bronze["tasks"] = _distinct(tables, "store_id, task_id", kept, attempts, parts, since=since)
    served = _one(tables, _SERVICE, since=since)
    found = tables.totals("SELECT window_s, sum(busy_us) AS us FROM {gold.tenant_share} GROUP BY 1")
    shares = {share["window_s"]: int(share["us"] or 0) for share in found}
    costs = _one(tables, "SELECT sum(busy_us) AS us FROM {gold.cost}")
    open_tasks = _one(tables, "SELECT count(*) AS n FROM {silver.open_tasks}")
    return [
        Check("silver.tasks: tasks with an attempt", bronze["tasks"], silver["tasks"]),
        Check("silver.tasks: worker time in microseconds", bronze["task_us"], silver["us"]),
        Check("silver.open_tasks: tasks without an attempt", silver["open"], open_tasks["n"]),
        Check("silver.service: worker time in microseconds", bronze["us"], served["kept_us"]),
        *(
            Check(
                f"gold.tenant_share: worker time by {length} s",
                served["us"],
                shares.get(length, 0),
            )
            for length in sorted({*WINDOWS, *shares})
        ),
        Check("gold.cost: worker time in microseconds", served["us"], costs["us"]),
    ]


def _distinct(
    tables: Tables,
    key: str,
    source: str,
    rows: int,
    parts: PartsOf = all_parts,
    **given: object,
) -> int:
    """Return the number of distinct keys."""
    text = "SELECT count(*) AS n FROM (SELECT DISTINCT $key FROM $source WHERE $pass)"
    # A key takes ten times the memory of a hash.
    text = text.replace("$source", source)
    return _passes(tables, text, 10 * rows, parts, key=key, **given)["n"]


def _passes(
    tables: Tables,
    text: str,
    rows: int,
    parts: PartsOf = all_parts,
    key: str = "store_id, task_id",
    **given: object,
) -> Counter[str]:
    """Return the sums of an aggregation over all keys, of which each pass reads a part that fits
    into memory."""
    passes = rows // tables.keys_at_once + 1
    found: Counter[str] = Counter()
    for number in range(passes):
        part = f"abs(xxhash64({key}) % {passes}) = {number}" if passes > 1 else "true"
        found.update(_one(tables, text, parts, key=key, **given, **{"pass": part}))
    return found


def _one(tables: Tables, text: str, parts: PartsOf = all_parts, **given: object) -> dict[str, int]:
    """Return the only row of an aggregation with the given parts of its text; a sum over no rows is
    0."""
    [row] = tables.totals(Template(text).substitute(given, sound=IS_SOUND), parts)
    return {name: int(value or 0) for name, value in row.items()}
