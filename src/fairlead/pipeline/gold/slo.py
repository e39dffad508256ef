"""Burn rates of error budgets: good and bad runs in windows of five minutes, and rates over longer
spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.errors import ConfigurationError
from fairlead.pipeline.gold import window_start
from fairlead.pipeline.gold.measures import has_failed, is_run, measures
from fairlead.pipeline.models import SLO, SLO_COUNTS
from fairlead.pipeline.windows import ALL, SLO_WINDOW

SPANS = {
    "burn_5m": SLO_WINDOW,
    "burn_30m": 1800,
    "burn_1h": 3600,
    "burn_6h": 21_600,
    "burn_3d": 259_200,
}
"""Length of each span in seconds, including the window itself."""


class Objective(NamedTuple):
    """A promise that the fraction `objective` (0 to 1, exclusive) of the runs of `name` in `queue`
    succeed within the threshold."""

    slo_id: str
    queue: str
    name: str
    """Name of a task, or '*' for all."""
    measure: str
    """pickup, run or e2e. For e2e, only runs that end the task (DONE or ERROR) count."""
    threshold_us: int
    objective: float


def slo_counts(attempts: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """Return SLO_COUNTS from sound rows of bronze.attempts. Raise ConfigurationError for an unknown
    measure or an objective outside (0, 1)."""
    us = measures()
    measured = attempts.filter(is_run()).select(
        window_start(F.col("finished_at"), SLO_WINDOW).alias("window_start"),
        "queue",
        "name",
        "next_state",
        has_failed().alias("failed"),
        *(us[measure].alias(measure) for measure in _MEASURES),
    )
    return (
        measured.join(F.broadcast(_frame(attempts, objectives)), on="queue", how="inner")
        .filter(F.col("of_name").isin(ALL) | (F.col("of_name") == F.col("name")))
        .withColumn("bad", _is_bad())
        .groupBy("window_start", "slo_id")
        .agg(F.count_if(~F.col("bad")).alias("good"), F.count_if("bad").alias("bad"))
        .filter(F.col("good") + F.col("bad") > 0)
        .select(*SLO_COUNTS.column_names)
    )


def slo(counts: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    """Return SLO from SLO_COUNTS. `counts` must begin three days (the longest span) before the
    first row that is wanted."""
    return (
        counts.join(F.broadcast(_frame(counts, objectives)), on="slo_id", how="inner")
        .withColumns({name: _burn(span_s) for name, span_s in SPANS.items()})
        .withColumn("budget_left", 1 - F.col("burn_3d"))
        .withColumn("state", _state())
        .select(*SLO.column_names)
    )


_MEASURES = ("pickup", "run", "e2e")


def _frame(other: DataFrame, objectives: Sequence[Objective]) -> DataFrame:
    for each in objectives:
        if each.measure not in _MEASURES:
            raise ConfigurationError(
                f"slo {each.slo_id}: measure {each.measure!r} is not one of {', '.join(_MEASURES)}"
            )
        if not 0 < each.objective < 1:
            raise ConfigurationError(
                f"slo {each.slo_id}: objective {each.objective} must be above 0 and below 1"
            )
    columns = (
        "slo_id string, queue string, of_name string, measure string, threshold_us bigint,"
        " objective double"
    )
    return other.sparkSession.createDataFrame(list(objectives), columns)


def _is_bad() -> Expression:
    """Return whether a run was bad for the objective in its row; null when the run does not
    count."""
    took_us = F.lit(None).cast("bigint")
    for measure in _MEASURES:
        took_us = F.when(F.col("measure") == measure, F.col(measure)).otherwise(took_us)
    goes_on = (F.col("measure") == "e2e") & ~F.col("next_state").isin("DONE", "ERROR")
    return (
        F.when(goes_on, None).when(F.col("failed"), True).otherwise(took_us > F.col("threshold_us"))
    )


def _burn(span_s: int) -> Expression:
    span = (
        Window.partitionBy("slo_id")
        .orderBy(F.unix_seconds("window_start"))
        .rangeBetween(SLO_WINDOW - span_s, Window.currentRow)
    )
    bad = F.sum("bad").over(span)
    return bad / (F.sum("good").over(span) + bad) / (1 - F.col("objective"))


def _state() -> Expression:
    def burns(times: float, *spans: str) -> Expression:
        first, second = (F.col(f"burn_{span}") > times for span in spans)
        return first & second

    # Multi-window alerts of the SRE workbook: 2 % of a 30 d budget in 1 h, 5 % in 6 h, 10 % in 3 d.
    # The short span ends the alert.
    page = burns(14.4, "1h", "5m") | burns(6.0, "6h", "30m")
    return F.when(page, "page").when(burns(1.0, "3d", "6h"), "ticket").otherwise("ok")
