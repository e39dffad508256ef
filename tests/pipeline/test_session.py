"""The jars of a session, which the user's caches may already have, and its secrets."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.pipeline.session import jar_of

PACKAGE = "org.xerial:sqlite-jdbc:3.54.1.0"


@pytest.mark.parametrize(
    "place",
    [
        ".ivy2.5.2/jars/org.xerial_sqlite-jdbc-3.54.1.0.jar",
        ".ivy2/jars/org.xerial_sqlite-jdbc-3.54.1.0.jar",
        ".m2/repository/org/xerial/sqlite-jdbc/3.54.1.0/sqlite-jdbc-3.54.1.0.jar",
    ],
)
def test_a_jar_in_a_cache_is_used_as_it_is(tmp_path: Path, place: str) -> None:
    assert jar_of(PACKAGE, tmp_path) is None
    jar = tmp_path / place
    jar.parent.mkdir(parents=True)
    jar.touch()
    assert jar_of(PACKAGE, tmp_path) == jar


START = """
import sys
from pyspark import java_gateway
from fairlead.pipeline.session import session
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse

def start(command, **_):
    print(*command, sep="\\n")
    sys.exit()

java_gateway.Popen = start
lake = Warehouse(Location.of(sys.argv[1], "postgresql://ada:p%40ss%25@127.0.0.1:1/lake"))
session("local[1]", settings={"spark.jars": "some.jar"}, warehouse=lake)
"""


def test_no_process_of_spark_has_the_password_of_the_catalog_in_its_arguments(
    tmp_path: Path,
) -> None:
    """All users of a machine can read the arguments of its processes."""
    ran = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "spark.sql.catalog.fairlead.jdbc.user=ada" in ran.stdout
    assert "p@ss%" not in ran.stdout and "p%40ss%25" not in ran.stdout
