"""`maintain`: the nightly work on a lake, step by step. A step that fails does not keep the others
from running."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from fairlead.clock import Clock
from fairlead.errors import FairleadError
from fairlead.pipeline.jobs.compact import compact, what_to_compact
from fairlead.pipeline.jobs.gc import gc
from fairlead.pipeline.jobs.reconcile import reconcile
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.runs import NOTHING_TO_DO, JobRun, OnRows
from fairlead.ports.history import HistoryStore

if TYPE_CHECKING:
    from fairlead.pipeline.jobs.build import FolderJob

StepName = Literal["compact", "expire", "reconcile", "check"]
STEPS: tuple[StepName, ...] = get_args(StepName)
"""All steps, in their order."""

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
    """Parts of a maintenance that a step opens when its turn comes. An opener may raise
    FairleadError, which fails the step."""

    lake: Lake
    clock: Clock
    history: Callable[[], HistoryStore]
    """Returns the history of the store."""
    job: Callable[[], AbstractContextManager[FolderJob]]
    """Opens a Spark session, at most once for all steps."""
    has_catalog: bool = False


def maintain(
    sources: Sources,
    keep: timedelta | None = None,
    skip: Collection[StepName] = (),
    dry_run: bool = False,
    on_rows: Callable[[StepName, str, int], None] = lambda step, table, rows: None,
) -> Maintained:
    """Compact bronze, remove files that nobody needs, compare the lake with the store, and check
    all tables.

    keep: age at which rows of gc.BY_AGE are removed; None keeps all. skip: steps to leave out.
    dry_run: only report what would be done; nothing is compared, checked or changed.
    """
    steps = []
    with ExitStack() as opened:
        work = _work(sources, keep, opened)
        for name in STEPS:
            if name in skip:
                steps.append(Step(name, "skipped"))
            elif dry_run:
                steps.append(_tried(name, partial(_planned, sources, keep, name)))
            else:
                steps.append(_tried(name, partial(work[name], partial(on_rows, name))))
    return Maintained(steps)


def _work(
    sources: Sources, keep: timedelta | None, opened: ExitStack
) -> dict[StepName, Callable[[OnRows], Step]]:
    """Return the steps. The first one that needs Spark opens the session into `opened`, and later
    ones use it."""
    lake, clock = sources.lake, sources.clock
    jobs: list[FolderJob] = []

    def job() -> FolderJob:
        if not jobs:
            jobs.append(opened.enter_context(sources.job()))
        return jobs[0]

    def expire(on_rows: OnRows) -> Step:
        catalog = None
        if sources.has_catalog:
            reached = job()
            assert reached.catalog is not None
            catalog = reached.spark, reached.catalog
        done = gc(lake, clock, keep, True, catalog, on_rows, wait=True)
        notes = [f"{who} has a lease: replaced files stay" for who in done.leases]
        return _expired(done.files, done.bytes, done.parts, done.catalog, "done", notes)

    def checked(on_rows: OnRows) -> Step:
        from fairlead.pipeline.jobs.check import check

        return _ran("check", check(job(), on_rows))

    return {
        "compact": lambda on_rows: _ran("compact", compact(lake, clock, on_rows=on_rows)),
        "expire": expire,
        "reconcile": lambda on_rows: _ran(
            "reconcile", reconcile(sources.history(), lake, clock, on_rows)
        ),
        "check": checked,
    }


def _planned(sources: Sources, keep: timedelta | None, name: StepName) -> Step:
    """Return what a step would do, as far as the lake alone shows it."""
    if name == "compact":
        hours = sum(map(len, what_to_compact(sources.lake, sources.clock, False).values()))
        return Step(name, "planned", f"{hours:,} hours would be compacted")
    if name == "expire":
        found = gc(sources.lake, sources.clock, keep)
        return _expired(found.files, found.bytes, found.parts, {}, "planned", [])
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


def _expired(
    files: Collection[Any],
    size: int,
    parts: dict[str, list[str]],
    catalog: dict[str, int],
    state: State,
    notes: list[str],
) -> Step:
    verb = "would be removed" if state == "planned" else "removed"
    for table, days in parts.items():
        notes.append(f"{table}: {len(days):,} days, {days[0]} to {days[-1]}, {verb}")
    notes += [f"{table} in the catalog: {n:,} files removed" for table, n in catalog.items() if n]
    return Step("expire", state, f"{len(files):,} files, {size:,} bytes {verb}", notes=notes)
