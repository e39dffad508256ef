"""`maintain`: the nightly work on a lake, step by step. A step that fails does not keep the others
from running."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple, get_args

import msgspec

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import Clock, to_datetime
from fairlead.errors import FairleadError
from fairlead.pipeline.jobs.checks import check
from fairlead.pipeline.ledger import LEDGER
from fairlead.pipeline.models import ATTEMPTS, EVENTS, INCIDENTS, RUNS, TABLES
from fairlead.pipeline.reconcile import reconcile
from fairlead.pipeline.retention import drop_before, first_day
from fairlead.pipeline.runs import NOTHING_TO_DO, Check, JobRun, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import BUILDS, Builds
from fairlead.pipeline.warehouse.compaction import compact
from fairlead.pipeline.warehouse.layout import DAY_US
from fairlead.pipeline.warehouse.lease import lease
from fairlead.pipeline.warehouse.warehouse import Warehouse

StepName = Literal["compact", "expire", "reconcile", "retain", "check"]
STEPS: tuple[StepName, ...] = get_args(StepName)
"""All steps, in their order."""

SMALL_FILES = (ATTEMPTS, EVENTS, RUNS, BUILDS, LEDGER)
"""Tables that grow by a small file in each commit."""

BY_AGE = (RUNS, BUILDS, INCIDENTS)
"""Tables whose old rows may be removed, because no other table and no check depends on them."""

State = Literal["done", "nothing to do", "failed", "skipped"]

logger = logging.getLogger(__name__)


class Step(msgspec.Struct, frozen=True):
    """Result of one step."""

    name: StepName
    state: State
    what: str = ""
    """Work that was done."""
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
    history: Callable[[], SqlHistory]
    """Returns the history of the store."""


def maintain(
    sources: Sources,
    keep: timedelta | None = None,
    keep_days: int | None = None,
    skip: Collection[StepName] = (),
) -> Maintained:
    """Compact small files, remove snapshots and files that nobody needs, compare the lake with the
    store, and check all tables. The steps that remove something wait until a build has ended.

    keep: age at which rows of BY_AGE are removed; None keeps all. keep_days: number of whole days
    of bronze to keep, None for all. skip: steps to leave out.
    """
    steps: list[Step] = []
    for name in STEPS:
        failed = {step.name for step in steps if step.state == "failed"}
        if name in skip or (name == "retain" and keep_days is None):
            steps.append(Step(name, "skipped"))
        elif name == "retain" and "reconcile" in failed:
            steps.append(Step(name, "skipped", "the lake differs from the store"))
        else:
            night = _Night(sources, keep, keep_days)
            steps.append(_tried(name, getattr(night, name)))
    return Maintained(steps)


@dataclass(frozen=True)
class _Night:
    """Steps of a maintenance; each returns what it has done."""

    sources: Sources
    keep: timedelta | None
    keep_days: int | None

    def compact(self) -> Step:
        lake, now = self.sources.lake, self.sources.clock.now()
        with recorded(lake, self.sources.clock, "compact", {}) as run:
            for table in SMALL_FILES:
                done = compact(lake.table(table), now)
                run.rows_in += done.rows
                run.rows_out += done.rows
                run.tables[table.name] = done.rows
                if done.skipped:
                    run.notes.append(
                        f"{table.name}: new rows arrived during the compaction of these partitions,"
                        f" so the next one compacts them: {', '.join(done.skipped)}"
                    )
        return _ran("compact", run)

    def expire(self) -> Step:
        """Remove old rows, the branches of dead builds, old snapshots, and files without a
        snapshot."""
        lake, now = self.sources.lake, self.sources.clock.now()
        snapshots = 0
        params = {"keep_days": self.keep and self.keep.days}
        with (
            lease(lake, self.sources.clock, "maintain", wait=True),
            recorded(lake, self.sources.clock, "expire", params) as run,
        ):
            # Branches of a build that died after its publication hold what readers see.
            builds = Builds(lake)
            builds.finish(builds.newest()[0])
            aged = _aged(lake, now, self.keep)
            for table, days in aged.items():
                here = lake.table(table)
                while not here.replace(days, [], here.state()):
                    pass
            for table in (*TABLES, BUILDS, LEDGER):
                here = lake.table(table)
                here.drop_branches(now - DAY_US)
                snapshots += here.expire_unneeded(now)
                run.rows_out += here.sweep(now - DAY_US)
        what = f"{snapshots:,} snapshots, {run.rows_out:,} files removed"
        notes = [
            f"{table.name}: {len(days):,} days, {days[0]} to {days[-1]}, removed"
            for table, days in aged.items()
        ]
        return Step("expire", "done", what, notes=notes)

    def reconcile(self) -> Step:
        lake, clock, history = self.sources.lake, self.sources.clock, self.sources.history()
        with recorded(lake, clock, "reconcile", {}) as run:
            found = reconcile(history, lake, clock)
            run.rows_in = found.rows
            run.checks = [
                Check("attempts in the lake and in the store", found.rows, found.rows),
                Check("worker time of the attempts in microseconds", found.busy_us, found.busy_us),
            ]
        return _ran("reconcile", run)

    def retain(self) -> Step:
        """Remove the rows of bronze before the last `keep_days` days that were compared with the
        store."""
        assert self.keep_days is not None
        lake, history = self.sources.lake, self.sources.history()
        reader = history.database.read_now(history.reader(lake.reader))
        compared = 0 if reader is None else reader.checked_at or 0
        first = first_day(self.sources.clock.now(), self.keep_days)
        with lease(lake, self.sources.clock, "maintain", wait=True):
            done = drop_before(lake, first, compared)
        state: State = "done" if done.rows else "nothing to do"
        rows = sum(done.rows.values())
        return Step("retain", state, f"{rows:,} rows of {len(done.days):,} days removed")

    def check(self) -> Step:
        return _ran("check", check(self.sources.lake, self.sources.clock))


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
