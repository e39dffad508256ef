"""Runs of jobs: one row per run, in the lake beside the tables."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from fairlead.clock import Clock, to_datetime
from fairlead.errors import FairleadError
from fairlead.pipeline.models import RUNS
from fairlead.pipeline.warehouse.warehouse import Warehouse

NOTHING_TO_DO = "nothing to do"


class Check(msgspec.Struct, frozen=True):
    """Two numbers that must be equal."""

    name: str
    expected: int
    found: int

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected:,.0f}, found {self.found:,.0f}"

    @property
    def holds(self) -> bool:
        """Whether the two numbers are equal."""
        return self.expected == self.found


@dataclass
class JobRun:
    """Record of a run, which the job fills in while it runs."""

    job: str
    params: dict[str, Any]
    rows_in: int = 0
    rows_out: int = 0
    quarantined: int = 0
    checks: list[Check] = field(default_factory=list)
    state: str = "done"
    spark_version: str = ""
    tables: dict[str, int] = field(default_factory=dict)
    """Written rows by table."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """Remarks for the caller, not stored."""


@contextmanager
def recorded(
    lake: Warehouse, clock: Clock, job: str, params: dict[str, Any], keep_idle: bool = True
) -> Iterator[JobRun]:
    """Write a row about the run of the `with` block, also if the block fails. Without `keep_idle`,
    write no row about a run that had nothing to do."""
    run = JobRun(job, params)
    started_at, started, error = clock.now(), time.monotonic(), None
    try:
        yield run
    except BaseException as failure:
        run.state = "failed"
        error = str(failure) if isinstance(failure, FairleadError) else type(failure).__name__
        raise
    finally:
        run.seconds = round(time.monotonic() - started, 3)
        if keep_idle or run.state != NOTHING_TO_DO:
            _keep(lake, clock, run, started_at, error)


def last_runs(lake: Warehouse) -> dict[str, dict[str, Any]]:
    """Return the last run of each job."""
    rows = lake.table(RUNS).load().sort_by("started_at").to_pylist()
    return {row["job"]: row for row in rows}


def _keep(lake: Warehouse, clock: Clock, run: JobRun, started_at: int, error: str | None) -> None:
    names = ("job", "seconds", "state", "rows_in", "rows_out", "quarantined", "spark_version")
    row = {name: getattr(run, name) for name in names} | {
        "run_id": uuid.uuid4().hex,
        "started_at": to_datetime(started_at),
        "params": msgspec.json.encode(run.params).decode(),
        "checks": msgspec.json.encode(run.checks).decode(),
        "error": error,
    }
    table = lake.table(RUNS)
    table.add(pa.Table.from_pylist([row], schema=RUNS.arrow()), str(row["run_id"]))
    table.tend(clock.now())
