"""Missed objectives and failed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from fairlead.pipeline.gold.failures import FAILURES
from fairlead.pipeline.gold.slo import SLO, STEP_S
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.period import MOST_POINTS, Period
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

MOST_OBJECTIVES = 50
"""Maximum number of objectives listed: those with the least budget left."""

KINDS_DRAWN = 5
"""Number of error classes with a colour of their own."""

_STATES = ("ok", "ticket", "page")
_HOUR_S = 3600


def objectives(tables: Tables, period: Period) -> pd.DataFrame:
    """Return each objective at its last window in the period, least budget left first.

    Columns: slo_id, at, objective, budget_left, burn_1h, burn_6h, burn_3d, state; over the whole
    period: good, bad, page_s and ticket_s (seconds in that state). At most 50 rows.
    """
    last = F.max_by(
        F.struct(
            F.col("window_start").alias("at"),
            "objective",
            "budget_left",
            "burn_1h",
            "burn_6h",
            "burn_3d",
            "state",
        ),
        "window_start",
    )
    rows = (
        period.rows(tables, SLO)
        .groupBy("slo_id")
        .agg(
            last.alias("last"),
            F.sum("good").alias("good"),
            F.sum("bad").alias("bad"),
            *(
                (F.count_if(F.col("state") == state) * STEP_S).alias(f"{state}_s")
                for state in ("page", "ticket")
            ),
        )
        .select("slo_id", "last.*", "good", "bad", "page_s", "ticket_s")
        .orderBy("budget_left", "slo_id")
        .limit(MOST_OBJECTIVES)
    )
    return collect(rows, MOST_OBJECTIVES)


def budgets_over_time(tables: Tables, period: Period, objectives: pd.DataFrame) -> pd.DataFrame:
    """Return the objectives in steps of at least five minutes.

    Columns: at, slo_id, budget_left (last of the step), state (worst of the step). At most 202 rows
    an objective.
    """
    severity = F.array_position(F.array(*map(F.lit, _STATES)), F.col("state"))
    rows = (
        period.rows(tables, SLO)
        .where(F.col("slo_id").isin(list(objectives["slo_id"])))
        .groupBy(period.step("window_start", STEP_S).alias("at"), "slo_id")
        .agg(
            F.max_by("budget_left", "window_start").alias("budget_left"),
            F.max_by("state", severity).alias("state"),
        )
        .orderBy("slo_id", "at")
    )
    return collect(rows, (MOST_POINTS + 2) * len(objectives))


def failures(tables: Tables, period: Period, top: int) -> pd.DataFrame:
    """Return the kinds of errors with most failed runs.

    Columns: queue, name, error_type, error_text (of the earliest error), n, wasted_us, first_seen,
    last_seen, retry_amplification (of the worst hour), storm_hours. At most `top` rows.
    """
    rows = (
        period.rows(tables, FAILURES)
        .groupBy("queue", "name", "error_fp")
        .agg(
            F.min_by("error_type", "first_seen").alias("error_type"),
            F.min_by("error_text", "first_seen").alias("error_text"),
            F.sum("n").alias("n"),
            F.sum("wasted_us").alias("wasted_us"),
            F.min("first_seen").alias("first_seen"),
            F.max("last_seen").alias("last_seen"),
            F.max("retry_amplification").alias("retry_amplification"),
            F.count_if("storm").alias("storm_hours"),
        )
        .orderBy(F.desc("n"), "queue", "name", "error_fp")
        .limit(top)
        .drop("error_fp")
    )
    return collect(rows, top)


def failures_over_time(tables: Tables, period: Period) -> pd.DataFrame:
    """Return failed runs in steps of at least an hour.

    Columns: at, error_type (null: all but the five most frequent), n. At most 6 x 202 rows.
    """
    found = period.rows(tables, FAILURES)
    frequent = (
        found.groupBy("error_type")
        .agg(F.sum("n").alias("total"))
        .orderBy(F.desc("total"), "error_type")
        .limit(KINDS_DRAWN)
        .select("error_type", F.col("error_type").alias("kind"))
    )
    rows = (
        found.join(F.broadcast(frequent), on="error_type", how="left")
        .groupBy(
            period.step(FAILURES.instant, _HOUR_S).alias("at"), F.col("kind").alias("error_type")
        )
        .agg(F.sum("n").alias("n"))
        .orderBy("at", "error_type")
    )
    return collect(rows, (KINDS_DRAWN + 1) * (MOST_POINTS + 2))


def storms(tables: Tables, period: Period, top: int) -> pd.DataFrame:
    """Return the latest storms, one row for each hour.

    Columns: hour, queue, name, error_type, n, retry_amplification, wasted_us, last_seen,
    recovered_at (null: not in that hour). At most `top` rows.
    """
    rows = (
        period.rows(tables, FAILURES)
        .where("storm")
        .select(
            F.col(FAILURES.instant).alias("hour"),
            "queue",
            "name",
            "error_type",
            "n",
            "retry_amplification",
            "wasted_us",
            "last_seen",
            "recovered_at",
        )
        .orderBy(F.desc("hour"), F.desc("n"), "queue", "name", "error_type")
        .limit(top)
    )
    return collect(rows, top)
