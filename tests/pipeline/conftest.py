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
    """Mark what needs the Spark session: it takes half an hour in all, in `make test-all`. Tests
    that start a Spark of their own say so themselves, but for `test_small_run`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def iceberg_jar() -> Path | Exception:
    """The jar, or why there is none; with FAIRLEAD_REQUIRE_ICEBERG=1 that is a failure."""
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
    """See `fairlead.pipeline.session`. A jar cannot be added later: the catalog is there for all
    tests, or for none."""
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
    """A namespace of an Iceberg catalog that does not exist yet."""
    if not isinstance(iceberg_jar, Path):
        pytest.skip(str(iceberg_jar).splitlines()[0])
    return f"lake.test_{next(_numbers)}"
