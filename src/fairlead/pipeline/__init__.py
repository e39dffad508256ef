"""The data pipeline: history of attempts into a lake, tables, reports and better policies, on Spark
through PySpark; reading of the tables without Spark.

This package needs the extra `pipeline`, and no other package of Fairlead imports it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `FairleadSource` and `connect` at their first use: only the source needs PySpark, and
    only `connect` needs DuckDB."""
    if name == "connect":
        from fairlead.pipeline.reading.query import connect

        return connect
    if name != "FairleadSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlead.pipeline.extra import need

    need("pyspark", "pyarrow")
    from fairlead.pipeline.source import FairleadSource

    return FairleadSource
