"""Facts of the report about error budgets, failed runs and storms of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from fairlead.pipeline.definitions.failures import FAILURES
from fairlead.pipeline.definitions.slo import SLO, STEP_S
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.steps import MOST_POINTS
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

MOST_OBJECTIVES = 50
"""Maximum number of objectives in the report; it lists those with the least budget left."""

MOST_ERROR_TYPES = 5
"""Maximum number of error types that the chart of failures draws in their own colour; all other
types share one colour."""

_STATES = ("ok", "ticket", "page")
_HOUR_S = 3600


def objectives(tables: Tables, period: Period) -> pd.DataFrame:
    """Return the state of each objective at the end of the period, ordered by the budget left,
    least first.

    Columns from the last window: slo_id, at (its start), objective, budget_left, burn_1h, burn_6h,
    burn_3d, state. Columns over the whole period: good and bad (numbers of runs), page_s and
    ticket_s (seconds in that state). At most 50 rows.
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
    """Return the budget and state of each objective over time, in steps of at least five minutes.

    Columns: at (start of the step), slo_id, budget_left (at the end of the step), state (the worst
    of the step). At most 202 rows for each objective.
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
    """Return the groups of similar errors that made the most runs fail.

    Columns: queue, name, error_type and error_text (both of the earliest error), n (number of
    failed runs), wasted_us, first_seen, last_seen, retry_amplification (its maximum over the
    hours), storm_hours (number of hours with a storm). At most `top` rows.
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
    """Return the number of failed runs over time, in steps of at least an hour.

    Columns: at (start of the step), error_type (null for all types except the five most frequent),
    n (number of failed runs). At most 6 x 202 rows.
    """
    failed = period.rows(tables, FAILURES)
    frequent = (
        failed.groupBy("error_type")
        .agg(F.sum("n").alias("total"))
        .orderBy(F.desc("total"), "error_type")
        .limit(MOST_ERROR_TYPES)
        .select("error_type", F.col("error_type").alias("kind"))
    )
    rows = (
        failed.join(F.broadcast(frequent), on="error_type", how="left")
        .groupBy(
            period.step(FAILURES.instant, _HOUR_S).alias("at"), F.col("kind").alias("error_type")
        )
        .agg(F.sum("n").alias("n"))
        .orderBy("at", "error_type")
    )
    return collect(rows, (MOST_ERROR_TYPES + 1) * (MOST_POINTS + 2))


def storms(tables: Tables, period: Period, top: int) -> pd.DataFrame:
    """Return the latest storms, one row for each hour of a storm. In a storm, one error makes at
    least 100 runs of a task name fail in an hour, and more than half of all its runs.

    Columns: hour, queue, name, error_type, n (number of failed runs), retry_amplification,
    wasted_us, last_seen, recovered_at (null if no run succeeded after the storm in that hour). At
    most `top` rows.
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
