"""The jar with which Spark reads and writes Iceberg.

`python -m services.iceberg` fetches the jar and prints its path.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services import MissingProgram
from services.jars import Jars

VERSION = "1.12.0"

_JARS = Jars("iceberg", VERSION, "Iceberg for Spark")


def jar() -> Path:
    """Return the jar (48 MB), fetched if it is missing. Raise MissingProgram or RuntimeError."""
    [found] = _JARS.fetch().glob("iceberg-spark-runtime-*.jar")
    return found


def settings(jar: Path, catalog: str, warehouse: Path) -> dict[str, str]:
    """Return the settings of a Spark session for a catalog in a folder of this machine."""
    return {
        "spark.jars": str(jar),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        f"spark.sql.catalog.{catalog}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{catalog}.type": "hadoop",
        f"spark.sql.catalog.{catalog}.warehouse": str(warehouse),
    }


if __name__ == "__main__":
    try:
        print(jar())
    except MissingProgram as missing:
        sys.exit(str(missing))
