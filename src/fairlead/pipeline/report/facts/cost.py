"""What each key cost: its worker time, its part of what stood idle, its part of the bill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.gold.cost import COST
from fairlead.pipeline.report.facts import collect
from fairlead.pipeline.report.period import Period
from fairlead.pipeline.tables import Tables

if TYPE_CHECKING:
    import pandas as pd


def by_key(tables: Tables, period: Period, top: int) -> pd.DataFrame:
    """The dearest keys of all days of the period (whole days, also where the period has only a part
    of one), and the rest as one row, by rank; the key '*' stands for what was paid for while nobody
    ran anything.

    Columns: rank (from 1; null: the rest), fairness_key (null: the rest), keys (how many the row
    stands for), busy_us, wasted_us, idle_allocated_us, amount (Decimal). By amount, then by worker
    time, as without a bill all amounts are 0. At most top + 1 rows.
    """
    is_shown = F.col("place") <= top
    rows = (
        tables.read(COST, period.parts(tables, COST))
        .groupBy("fairness_key")
        .agg(*_sums())
        .transform(_ranked)
        .groupBy(
            F.when(is_shown, F.col("place")).alias("rank"),
            F.when(is_shown, F.col("fairness_key")).alias("fairness_key"),
        )
        .agg(F.count(F.lit(1)).alias("keys"), *_sums())
        .orderBy(F.asc_nulls_last("rank"))
    )
    return collect(rows, top + 1)


def is_billed(cost: pd.DataFrame) -> bool:
    """Whether there was a bill, or a price, to divide."""
    return bool(cost["amount"].sum() > 0)


def parts_of_whole(cost: pd.DataFrame) -> pd.Series:
    """The part of each row, 0 to 1: of the bill, or without one of the worker time."""
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
    return keys.withColumn("place", F.row_number().over(dearest_first))
