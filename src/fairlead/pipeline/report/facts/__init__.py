"""Facts of the report, aggregated by Spark: small pandas frames with a stated bound of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from fairlead.pipeline.errors import CheckFailed

if TYPE_CHECKING:
    import pandas as pd


def collect(rows: DataFrame, at_most: int) -> pd.DataFrame:
    """Return the rows, which by construction are at most `at_most`. Instants are naive and UTC.
    Raise CheckFailed for more rows, which would be left out of the report."""
    found = rows.limit(at_most + 1).toPandas()
    if len(found) > at_most:
        raise CheckFailed(f"{len(found)} rows or more, at most {at_most} expected: {rows.columns}")
    return found
