"""The data pipeline: history of attempts into a lake, tables, reports and better policies, on Spark
through PySpark.

This package needs the extra `pipeline`, and no other package of Fairlead imports it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `FairleadSource` at its first use, because only it needs PySpark."""
    if name != "FairleadSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlead.pipeline.extra import need

    need("pyspark", "pyarrow")
    from fairlead.pipeline.source import FairleadSource

    return FairleadSource
