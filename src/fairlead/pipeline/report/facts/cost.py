"""Cost by key: worker time, its part of the idle time, its part of the bill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.definitions.cost import COST
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd


def by_key(tables: Tables, period: Period, top: int) -> pd.DataFrame:
    """Return the most expensive keys, by rank, and the rest as one row.

    The days are whole, even where the period has only a part of one. The key '*' stands for paid
    time in which no key ran anything. Columns: rank (from 1; null for the rest), fairness_key (null
    for the rest), keys (number of keys in the row), busy_us, wasted_us, idle_allocated_us, amount
    (Decimal). The order is by amount, then by worker time, because all amounts are 0 without a
    bill. At most top + 1 rows.
    """
    is_shown = F.col("position") <= top
    rows = (
        tables.read(COST, period.parts(tables, COST))
        .groupBy("fairness_key")
        .agg(*_sums())
        .transform(_ranked)
        .groupBy(
            F.when(is_shown, F.col("position")).alias("rank"),
            F.when(is_shown, F.col("fairness_key")).alias("fairness_key"),
        )
        .agg(F.count(F.lit(1)).alias("keys"), *_sums())
        .orderBy(F.asc_nulls_last("rank"))
    )
    return collect(rows, top + 1)


def is_billed(cost: pd.DataFrame) -> bool:
    """Return whether there was a bill or a price to divide."""
    return bool(cost["amount"].sum() > 0)


def parts_of_whole(cost: pd.DataFrame) -> pd.Series:
    """Return the part of each row, 0 to 1: of the bill, or of the worker time without a bill."""
    values = cost["amount" if is_billed(cost) else "busy_us"].astype(float)
    return values / max(values.sum(), 1e-9)


def _sums() -> list[Expression]:
    return [
        F.sum(name).alias(name) for name in ("busy_us", "wasted_us", "idle_allocated_us", "amount")
    ]


def _ranked(keys: DataFrame) -> DataFrame:
    dearest_first = Window.partitionBy().orderBy(
        F.desc("amount"), F.desc("busy_us"), "fairness_key"
    )
    return keys.withColumn("position", F.row_number().over(dearest_first))
