"""Rows of models, each computed from frames that a test makes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from fairlead.clock import to_micros
from fairlead.pipeline.model_rows import rows_of
from fairlead.pipeline.models import (
    ATTEMPTS,
    BACKLOG,
    COST,
    EVENTS,
    FAILURES,
    FAIRNESS,
    LATENCY,
    LATENCY_HIST,
    OPEN_TASKS,
    SERVICE,
    SLO,
    SLO_COUNTS,
    TABLES,
    TASKS,
    TENANT_SHARE,
)
from fairlead.pipeline.warehouse.location import flat_name
from tests.pipeline.frames import frame

_MINUTE, _HOUR = 60_000_000, timedelta(hours=1)
_BILLS = "day date, queue string, worker_us bigint, amount decimal(18,6)"
_OBJECTIVES = (
    "slo_id string, queue string, name string, measure string, threshold_us bigint,"
    " objective double"
)


class Objective(NamedTuple):
    """A row of slo_objectives."""

    slo_id: str
    queue: str
    name: str
    measure: str
    threshold_us: int
    objective: float


def service(attempts: DataFrame) -> DataFrame:
    return rows_of(SERVICE, {"sound_attempts": attempts})


def tasks(attempts: DataFrame, events: DataFrame) -> DataFrame:
    known = frame(attempts.sparkSession, TASKS, [])
    return rows_of(
        TASKS, {"sound_attempts": attempts, "sound_events": events, "known_tasks": known}
    )


def open_tasks(made: DataFrame) -> DataFrame:
    return rows_of(OPEN_TASKS, {"silver_tasks": made})


def backlog(
    attempts: DataFrame,
    waiting: DataFrame,
    since: datetime,
    until: datetime,
    known: datetime | None = None,
    only: Collection[datetime] | None = None,
) -> DataFrame:
    """Return the backlog of the hours from `since` to `until`, or of these only; history is known up
    to `known`."""
    hours = [since + n * _HOUR for n in range((until - since) // _HOUR)]
    wanted = [(to_micros(hour),) for hour in (hours if only is None else only)]
    return rows_of(
        BACKLOG,
        {
            "sound_attempts": attempts,
            "silver_open_tasks": waiting,
            "build_hours": attempts.sparkSession.createDataFrame(wanted, "hour bigint"),
        },
        first=to_micros(hours[0]),
        last=to_micros(hours[-1]),
        known=min(to_micros(until), -(-to_micros(known or until) // _MINUTE) * _MINUTE),
    )


def tenant_share(served: DataFrame, waited: DataFrame, latencies: DataFrame) -> DataFrame:
    return rows_of(
        TENANT_SHARE,
        {"silver_service": served, "silver_backlog": waited, "gold_latency": latencies},
    )


def fairness(shares: DataFrame) -> DataFrame:
    return rows_of(FAIRNESS, {"gold_tenant_share": shares})


def cost(served: DataFrame, bills: DataFrame, method: str = "usage") -> DataFrame:
    return rows_of(COST, {"silver_service": served, "cost_bills": bills}, method=method)


def failures(attempts: DataFrame) -> DataFrame:
    return rows_of(FAILURES, {"sound_attempts": attempts})


def latency_hist(attempts: DataFrame) -> DataFrame:
    return rows_of(LATENCY_HIST, {"sound_attempts": attempts})


def latency(attempts: DataFrame, least: int = 1) -> DataFrame:
    frames = {"sound_attempts": attempts, "gold_latency_hist": latency_hist(attempts)}
    return rows_of(LATENCY, frames, least=least)


def slo_counts(attempts: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    return rows_of(
        SLO_COUNTS, {"sound_attempts": attempts, "slo_objectives": _promised(attempts, objectives)}
    )


def slo(counts: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    return rows_of(
        SLO, {"gold_slo_counts": counts, "slo_objectives": _promised(counts, objectives)}
    )


def _promised(other: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    return other.sparkSession.createDataFrame(list(objectives), _OBJECTIVES)


def empty_frames(spark: SparkSession) -> dict[str, DataFrame]:
    """Return a frame without rows for everything that a model may read."""
    tables = {flat_name(table): table for table in TABLES} | {
        "sound_attempts": ATTEMPTS,
        "sound_events": EVENTS,
        "known_tasks": TASKS,
    }
    return {name: frame(spark, table, []) for name, table in tables.items()} | {
        "build_hours": spark.createDataFrame([], "hour bigint"),
        "cost_bills": spark.createDataFrame([], _BILLS),
        "slo_objectives": spark.createDataFrame([], _OBJECTIVES),
    }
