"""What the report shows, aggregated by Spark: small pandas frames, each with a stated bound of
rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    import pandas as pd


def collect(rows: DataFrame, at_most: int) -> pd.DataFrame:
    """The rows, which cannot be more than `at_most` by the way they are made; instants are naive
    and UTC."""
    found = rows.limit(at_most + 1).toPandas()
    assert len(found) <= at_most, (
        f"{len(found)} rows or more where at most {at_most} were meant: {rows.columns}"
    )
    return found
