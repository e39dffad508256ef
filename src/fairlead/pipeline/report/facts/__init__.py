"""Facts of the report, aggregated by Spark: small pandas frames with a stated bound of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    import pandas as pd


def collect(rows: DataFrame, at_most: int) -> pd.DataFrame:
    """Return the rows, which by construction are at most `at_most`. Instants are naive and UTC."""
    found = rows.limit(at_most + 1).toPandas()
    assert len(found) <= at_most, (
        f"{len(found)} rows or more, at most {at_most} expected: {rows.columns}"
    )
    return found
