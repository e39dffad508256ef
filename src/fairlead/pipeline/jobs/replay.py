"""`replay`: runs recorded arrivals under many policies, and saves the results in the lake."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.clock import Clock, to_datetime
from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.runner import InProcess, Runner
from fairlead.lab.policies.study import Study, StudyPlan, study
from fairlead.pipeline.definitions.replays import REPLAY_WAITS, REPLAYS
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.parts import part_of
from fairlead.pipeline.replay.on_spark import OnSpark
from fairlead.pipeline.runs import JobRun, OnRows, recorded
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Replayed(NamedTuple):
    """Run of the job, and its results."""

    run: JobRun
    study: Study
    replay_id: str


def replay(
    arrivals: Arrivals,
    plan: StudyPlan,
    lake: Warehouse,
    clock: Clock,
    spark: SparkSession | None = None,
    on_rows: OnRows = lambda what, count: None,
) -> Replayed:
    """Run the study on Spark if given, else in this process, and save it in the lake. A repeated
    study replaces its rows.

    Raise ConfigurationError for a plan that does not fit the arrivals, BrokenLake.
    """
    replay_id = identity(arrivals, plan)
    params = {"replay_id": replay_id, "queue": arrivals.queue, "objective": str(plan.objective)}
    with recorded(lake, clock, "replay", params) as run:
        run.rows_in = len(arrivals)
        runner: AbstractContextManager[Runner] = nullcontext(InProcess(arrivals))
        if spark is not None:
            runner, run.spark_version = OnSpark(spark, arrivals), spark.version
        with runner as runs:
            found = study(arrivals, plan, runs, on_rows)
        for table, rows in _rows(replay_id, arrivals, found).items():
            made = pa.Table.from_pylist(rows, table.arrow())
            SmallTables(lake).merge(
                table,
                made,
                {part_of(table, at) for at in made[table.instant].to_pylist()},
                lambda old: pc.not_equal(old["replay_id"], replay_id),
            )
            run.tables[table.name] = len(rows)
        run.rows_out = sum(run.tables.values())
        run.notes = found.notes
    return Replayed(run, found, replay_id)


def identity(arrivals: Arrivals, plan: StudyPlan) -> str:
    """Return the id of a study: equal for equal arrivals and an equal plan, which give equal
    results."""
    inputs = (
        plan.grid.policies,
        plan.grid.recorded,
        *(getattr(plan, each.name) for each in fields(plan) if each.name != "grid"),
        arrivals.digest(),
    )
    return hashlib.sha256(msgspec.json.encode(inputs, order="sorted")).hexdigest()[:16]


def _rows(replay_id: str, arrivals: Arrivals, found: Study) -> dict[Table, list[dict[str, Any]]]:
    """Return the rows of each table: one for each run, and one for each key of a finalist. Columns
    that a table does not have are left out later."""
    runs, waits = [], []
    for each in found.found:
        number = each.candidate.policy_id
        common = {
            **msgspec.structs.asdict(each.candidate),
            "replay_id": replay_id,
            "recorded_from": to_datetime(arrivals.origin),
        }
        runs.append(
            {
                **common,
                **msgspec.structs.asdict(each.measures),
                "policy": msgspec.json.encode(each.candidate.policy).decode(),
                "is_best": number == found.best.policy_id,
                "is_baseline": number == found.baseline,
                "objective": found.objective,
                "seconds": each.seconds,
            }
        )
        waits += [
            {**common, **msgspec.structs.asdict(key), "fairness_key": key.key} for key in each.keys
        ]
    return {REPLAYS: runs, REPLAY_WAITS: waits}
