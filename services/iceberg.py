"""The jar with which Spark reads and writes Iceberg; `python -m services.iceberg` fetches it and
says where it is."""

from __future__ import annotations

import sys
from pathlib import Path

from services import MissingProgram
from services.jars import Jars

VERSION = "1.12.0"

_JARS = Jars("iceberg", VERSION, "Iceberg for Spark")


def jar() -> Path:
    """The jar (48 MB), fetched if it is not there. Raises MissingProgram, RuntimeError."""
    [found] = _JARS.fetched().glob("iceberg-spark-runtime-*.jar")
    return found


def settings(jar: Path, catalog: str, warehouse: Path) -> dict[str, str]:
    """What a Spark session needs for a catalog that is a folder, for one machine."""
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
