"""Rows of models, each computed by Spark from rows that a test makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from fairlead.pipeline.model_rows import names_in, rows_of
from fairlead.pipeline.models import ATTEMPTS, EVENTS, TABLES, TASKS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.location import flat_name
from tests.pipeline.frames import frame, records

_TABLES = {flat_name(table): table for table in TABLES} | {
    "sound_attempts": ATTEMPTS,
    "sound_events": EVENTS,
    "known_tasks": TASKS,
}
_OTHERS = {
    "build_hours": "hour bigint",
    "cost_bills": "day date, queue string, worker_us bigint, amount decimal(18,6)",
    "slo_objectives": "slo_id string, queue string, name string, measure string,"
    " threshold_us bigint, objective double",
}
GIVEN: Mapping[str, Any] = {"first": 0, "last": 0, "known": 0, "method": "usage", "least": 1}
"""Parameters of queries, where a test does not care."""


class Objective(NamedTuple):
    """A row of slo_objectives."""

    slo_id: str
    queue: str
    name: str
    measure: str
    threshold_us: int
    objective: float


class Bill(NamedTuple):
    """A row of cost_bills."""

    day: date
    queue: str
    worker_us: int
    amount: Decimal


def model(
    spark: SparkSession,
    table: Table,
    rows: Mapping[str, Iterable[Any] | DataFrame],
    few: bool = False,
    **given: Any,
) -> DataFrame:
    """Return the rows of a model from rows by the names in its query; a table that is not given has
    none."""
    frames = {}
    for name in (names_in(table.query) | {"sound_attempts"}) & (_TABLES.keys() | _OTHERS.keys()):
        found = rows.get(name, ())
        if isinstance(found, DataFrame):
            frames[name] = found
        elif name in _TABLES:
            frames[name] = frame(spark, _TABLES[name], found)
        else:
            frames[name] = spark.createDataFrame(list(found), _OTHERS[name])
    return rows_of(table, frames, few, **GIVEN | given)


def made(spark: SparkSession, table: Table, **rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows that a model makes of these, in the order of its key."""
    found = records(model(spark, table, rows))
    return sorted(found, key=lambda row: [row[name] for name in table.key])
