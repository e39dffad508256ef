"""The data pipeline: history of attempts into a lake, tables, reports and better policies, on Spark
through PySpark.

Everything here needs the extra `pipeline`; nothing else of Fairlead imports it.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """`FairleadSource`, imported when it is asked for: the rest of this package needs no
    PySpark."""
    if name != "FairleadSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairlead.pipeline.extra import need

    need("pyspark", "pyarrow")
    from fairlead.pipeline.source import FairleadSource

    return FairleadSource
