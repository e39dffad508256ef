"""The jars with which Spark reads and writes Iceberg: Iceberg itself (48 MB), the JDBC drivers of
its catalogs (13 MB), and the client of object stores (69 MB).

`python -m services.iceberg` fetches Iceberg and prints its path; `catalogs` and `aws` after it add
the drivers and the client, with commas between the paths, as `spark.jars` takes them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services import MissingProgram
from services.jars import Jars

VERSION = "1.12.0"
_SQLITE, _POSTGRES = "3.54.1.0", "42.7.14"

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
"""Setting `spark.sql.extensions` of a session that uses Iceberg."""

_JARS = Jars("iceberg", VERSION, "Iceberg for Spark")
_CATALOGS = Jars("iceberg-catalogs", f"{_SQLITE}-{_POSTGRES}", "the drivers of Iceberg's catalogs")
_AWS = Jars("iceberg-aws", VERSION, "Iceberg's client of object stores")


def jar() -> Path:
    """Return the jar of Iceberg, fetched if it is missing. Raise MissingProgram or RuntimeError."""
    [found] = _JARS.fetch().glob("iceberg-spark-runtime-*.jar")
    return found


def catalog_jars() -> list[Path]:
    """Return the JDBC drivers of SQLite and PostgreSQL, fetched if they are missing. Raise
    MissingProgram or RuntimeError."""
    folder = _CATALOGS.fetch()
    return [folder / f"sqlite-jdbc-{_SQLITE}.jar", folder / f"postgresql-{_POSTGRES}.jar"]


def aws_jar() -> Path:
    """Return the client of object stores, fetched if it is missing. Raise MissingProgram or
    RuntimeError."""
    return _AWS.fetch() / f"iceberg-aws-bundle-{VERSION}.jar"


if __name__ == "__main__":
    try:
        found = [jar()]
        if "catalogs" in sys.argv[1:]:
            found += catalog_jars()
        if "aws" in sys.argv[1:]:
            found.append(aws_jar())
        print(*found, sep=",")
    except MissingProgram as missing:
        sys.exit(str(missing))
