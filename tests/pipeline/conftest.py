"""One Spark session for all tests of the pipeline: two cores, two shuffle partitions, and Iceberg's
catalog `lake`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install 'fairlead[pipeline]'")

from pyspark.sql import SparkSession

from fairlead.pipeline.session import session
from services import MissingProgram, iceberg

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the Spark session, because together they take half an hour. Only
    `make test-all` runs them. Tests that start their own Spark have the mark in their file, except
    `test_small_run`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def iceberg_jar() -> Path | Exception:
    """Return the jar of Iceberg, or the error about its absence. With FAIRLEAD_REQUIRE_ICEBERG=1, raise
    the error."""
    try:
        return iceberg.jar()
    except (MissingProgram, RuntimeError) as missing:
        if os.environ.get("FAIRLEAD_REQUIRE_ICEBERG", "0") != "0":
            raise
        return missing


@pytest.fixture(scope="session")
def spark(
    iceberg_jar: Path | Exception, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """Spark session of all tests. No jar can be added after its start, so either all tests have the
    Iceberg catalog or none has."""
    settings = {"spark.sql.shuffle.partitions": "2"}
    if isinstance(iceberg_jar, Path):
        settings |= iceberg.settings(
            iceberg_jar, "lake", tmp_path_factory.mktemp("iceberg") / "warehouse"
        )
    spark = session("local[2]", "fairlead tests", settings)
    yield spark
    spark.stop()


@pytest.fixture
def catalog(spark: SparkSession, iceberg_jar: Path | Exception) -> str:
    """Name of a new namespace of the Iceberg catalog."""
    if not isinstance(iceberg_jar, Path):
        pytest.skip(str(iceberg_jar).splitlines()[0])
    return f"lake.test_{next(_numbers)}"
