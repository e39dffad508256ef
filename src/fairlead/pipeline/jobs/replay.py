"""`replay`: runs recorded arrivals under many policies, and saves the results in the lake."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlead.clock import Clock
from fairlead.lab.policies.arrivals import Arrivals
from fairlead.lab.policies.runner import InProcess, Runner
from fairlead.lab.policies.study import Study, StudyPlan, study
from fairlead.pipeline.definitions.replays import REPLAY_WAITS, REPLAYS
from fairlead.pipeline.in_memory import SmallTables
from fairlead.pipeline.parts import part_of
from fairlead.pipeline.replay.tables import replay_rows, wait_rows
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
        if spark is None:
            found = study(arrivals, plan, InProcess(arrivals), on_rows)
        else:
            found = _on_spark(spark, arrivals, plan, on_rows)
            run.spark_version = spark.version
        run.tables = {
            REPLAYS.name: _save(
                lake, REPLAYS, replay_id, replay_rows(replay_id, arrivals.origin, found)
            ),
            REPLAY_WAITS.name: _save(
                lake, REPLAY_WAITS, replay_id, wait_rows(replay_id, arrivals.origin, found)
            ),
        }
        run.rows_out = sum(run.tables.values())
        run.notes = found.notes
    return Replayed(run, found, replay_id)


def identity(arrivals: Arrivals, plan: StudyPlan) -> str:
    """Return the id of a study: equal for equal arrivals and an equal plan, which give equal
    results."""
    inputs = (
        plan.grid.policies,
        plan.grid.recorded,
        *(getattr(plan, name) for name in _OPTIONS),
        arrivals.digest(),
    )
    return hashlib.sha256(msgspec.json.encode(inputs, order="sorted")).hexdigest()[:16]


_OPTIONS = tuple(name for name in StudyPlan.__dataclass_fields__ if name != "grid")


def _on_spark(spark: SparkSession, arrivals: Arrivals, plan: StudyPlan, on_rows: OnRows) -> Study:
    from fairlead.pipeline.replay.on_spark import OnSpark

    with OnSpark(spark, arrivals) as runner:
        made: Runner = runner
        return study(arrivals, plan, made, on_rows)


def _save(lake: Warehouse, table: Table, replay_id: str, rows: Iterable[dict[str, Any]]) -> int:
    """Replace the rows of this study; return their number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    made = pa.Table.from_pylist(list(rows), schema=table.arrow())
    parts = {part_of(table, at) for at in made[table.instant].to_pylist()}
    SmallTables(lake).merge(
        table, made, parts, lambda old: pc.not_equal(old["replay_id"], replay_id)
    )
    return int(made.num_rows)
