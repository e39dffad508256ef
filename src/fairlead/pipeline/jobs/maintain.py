"""`maintain`: the nightly work on a lake, step by step. A step that fails does not keep the others
from running."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Literal, NamedTuple, get_args

import msgspec

from fairlead.clock import Clock, to_datetime
from fairlead.errors import FairleadError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.capacity import CAPACITY
from fairlead.pipeline.definitions.incidents import INCIDENTS
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs.check import check
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.retention import drop_before, first_day
from fairlead.pipeline.runs import NOTHING_TO_DO, RUNS, Check, JobRun, OnRows, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import BUILDS, Builds
from fairlead.pipeline.warehouse.compaction import compact, to_compact
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import HistoryStore

StepName = Literal["compact", "expire", "reconcile", "retain", "check"]
STEPS: tuple[StepName, ...] = get_args(StepName)
"""All steps, in their order."""

SMALL_FILES = (ATTEMPTS, EVENTS, RUNS, BUILDS, LEDGER)
"""Tables that grow by a small file in each commit."""

BY_AGE = (RUNS, BUILDS, CAPACITY, INCIDENTS)
"""Tables whose old rows may be removed, because no other table and no check depends on them."""

State = Literal["done", "nothing to do", "failed", "skipped", "planned"]

logger = logging.getLogger(__name__)


class Step(msgspec.Struct, frozen=True):
    """Result of one step."""

    name: StepName
    state: State
    what: str = ""
    """Work that was done, or that would be done."""
    error: str | None = None
    seconds: float = 0.0
    notes: list[str] = []


class Maintained(msgspec.Struct, frozen=True):
    """Results of all steps, in their order."""

    steps: list[Step]

    @property
    def failed(self) -> list[Step]:
        """Steps that failed."""
        return [step for step in self.steps if step.state == "failed"]


class Sources(NamedTuple):
    """Parts of a maintenance. The step that needs the history opens it, and fails if it cannot be
    opened."""

    lake: Warehouse
    clock: Clock
    history: Callable[[], HistoryStore]
    """Returns the history of the store."""


def maintain(
    sources: Sources,
    keep: timedelta | None = None,
    keep_days: int | None = None,
    skip: Collection[StepName] = (),
    dry_run: bool = False,
    on_rows: Callable[[StepName, str, int], None] = lambda step, table, rows: None,
) -> Maintained:
    """Compact small files, remove snapshots and files that nobody needs, compare the lake with the
    store, and check all tables.

    keep: age at which rows of BY_AGE are removed; None keeps all. keep_days: number of whole days
    of bronze to keep, None for all; older ones leave their daily summary in ops.forgotten. skip:
    steps to leave out.
    dry_run: only report what would be done; nothing is compared, checked or changed.
    """
    work: dict[StepName, Callable[[OnRows], Step]] = {
        "compact": partial(_compact, sources),
        "expire": partial(_expire, sources, keep),
        "reconcile": partial(_reconcile, sources),
        "retain": partial(_retain, sources, keep_days, dry_run=False),
        "check": partial(_check, sources),
    }
    steps = []
    for name in STEPS:
        if name in skip or (name == "retain" and keep_days is None):
            steps.append(Step(name, "skipped"))
        elif dry_run:
            steps.append(_tried(name, partial(_planned, sources, keep, keep_days, name)))
        elif name == "retain" and any(s.name == "reconcile" and s.state == "failed" for s in steps):
            steps.append(Step(name, "skipped", "the lake differs from the store"))
        else:
            steps.append(_tried(name, partial(work[name], partial(on_rows, name))))
    return Maintained(steps)


def _compact(sources: Sources, on_rows: OnRows) -> Step:
    with recorded(sources.lake, sources.clock, "compact", {}) as run:
        for table in SMALL_FILES:
            done = compact(
                sources.lake.table(table), sources.clock.now(), partial(on_rows, table.name)
            )
            run.rows_in += done.rows
            run.rows_out += done.rows
            run.tables[table.name] = done.rows
            if done.skipped:
                run.notes.append(
                    f"{table.name}: new rows arrived during the compaction of these partitions, so"
                    f" the next one compacts them: {', '.join(done.skipped)}"
                )
    return _ran("compact", run)


def _expire(sources: Sources, keep: timedelta | None, on_rows: OnRows) -> Step:
    """Remove old rows, the branches of dead builds, old snapshots, and files without a snapshot."""
    lake, now = sources.lake, sources.clock.now()
    files = snapshots = 0
    notes = []
    with recorded(lake, sources.clock, "expire", {"keep_days": keep and keep.days}) as run:
        # Branches of a build that died after its publication hold what readers see.
        builds = Builds(lake)
        builds.finish(builds.newest()[0])
        for table, days in _aged(lake, now, keep).items():
            _remove(lake, table, days)
            notes.append(f"{table.name}: {len(days):,} days, {days[0]} to {days[-1]}, removed")
        for table in (*TABLES, BUILDS, LEDGER):
            here = lake.table(table)
            here.drop_branches(now - DAY_US)
            snapshots += here.expire_unneeded(now)
            removed = here.sweep(now - DAY_US)
            files += removed
            on_rows(table.name, removed)
        run.rows_out = files
    return Step("expire", "done", f"{snapshots:,} snapshots, {files:,} files removed", notes=notes)


def _aged(lake: Warehouse, now: int, keep: timedelta | None) -> dict[Table, list[str]]:
    """Return the days that are older than `keep`, by table of BY_AGE."""
    if keep is None:
        return {}
    oldest = f"{to_datetime(now) - keep:%Y-%m-%d}"
    found = {
        table: sorted({file.part for file in lake.table(table).files() if file.part < oldest})
        for table in BY_AGE
    }
    return {table: days for table, days in found.items() if days}


def _remove(lake: Warehouse, table: Table, days: list[str]) -> None:
    here = lake.table(table)
    while not here.replace(days, [], here.state()):
        pass


def _reconcile(sources: Sources, on_rows: OnRows) -> Step:
    lake, clock, history = sources.lake, sources.clock, sources.history()
    with recorded(lake, clock, "reconcile", {}) as run:
        found = reconcile(history, lake, clock, on_rows=partial(on_rows, "attempts"))
        run.rows_in = found.rows
        run.checks = [
            Check("attempts in the lake and in the store", found.rows, found.rows),
            Check("worker time of the attempts in microseconds", found.busy_us, found.busy_us),
        ]
    return _ran("reconcile", run)


def _retain(sources: Sources, keep_days: int | None, on_rows: OnRows, *, dry_run: bool) -> Step:
    """Remove the rows of bronze before the last `keep_days` days that were compared with the
    store."""
    assert keep_days is not None
    history = sources.history()
    reader = history.database.read_now(history.reader(sources.lake.reader))
    compared = 0 if reader is None else reader.checked_at or 0
    done = drop_before(
        sources.lake, first_day(sources.clock.now(), keep_days), compared, dry_run=dry_run
    )
    for table, rows in done.rows.items():
        on_rows(table, rows)
    state: State = "planned" if dry_run else "done" if done.rows else "nothing to do"
    verb = "would be removed" if dry_run else "removed"
    return Step(
        "retain", state, f"{sum(done.rows.values()):,} rows of {len(done.days):,} days {verb}"
    )


def _check(sources: Sources, on_rows: OnRows) -> Step:
    return _ran("check", check(sources.lake, sources.clock, on_rows))


def _planned(
    sources: Sources, keep: timedelta | None, keep_days: int | None, name: StepName
) -> Step:
    """Return what a step would do, as far as the lake alone shows it."""
    lake, now = sources.lake, sources.clock.now()
    if name == "compact":
        parts = sum(
            len(to_compact(lake.table(table).files(), now, table.by == "hour"))
            for table in SMALL_FILES
        )
        return Step(name, "planned", f"{parts:,} partitions would be compacted")
    if name == "expire":
        days = [
            f"{table.name}: {len(days):,} days, {days[0]} to {days[-1]}, would be removed"
            for table, days in _aged(lake, now, keep).items()
        ]
        return Step(name, "planned", "old snapshots and files would be removed", notes=days)
    if name == "retain":
        return _retain(sources, keep_days, lambda table, rows: None, dry_run=True)
    if name == "reconcile":
        sources.history()
        return Step(name, "planned", "the lake would be compared with the store")
    return Step(name, "planned", "all tables would be checked")


def _tried(name: StepName, work: Callable[[], Step]) -> Step:
    """Return the result of a step, which is `failed` when the step raises any error."""
    started = time.monotonic()
    try:
        done = work()
    except FairleadError as error:
        done = Step(name, "failed", error=str(error))
    except Exception as error:
        logger.exception("step %s of the maintenance failed", name)
        done = Step(name, "failed", error=f"{type(error).__name__}: {error}")
    return msgspec.structs.replace(done, seconds=round(time.monotonic() - started, 3))


def _ran(name: StepName, run: JobRun) -> Step:
    state: State = "nothing to do" if run.state == NOTHING_TO_DO else "done"
    held = f", {len(run.checks):,} checks hold" if run.checks else ""
    return Step(name, state, f"{run.rows_in:,} rows{held}", notes=run.notes)
