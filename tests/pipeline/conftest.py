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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Yield the URL of an S3 endpoint on loopback."""
    moto = pytest.importorskip("moto.server", reason="pip install 'moto[s3,server]'")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_lake(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a lake in a new bucket; the variables of AWS lead to its endpoint."""
    import boto3

    for name, value in {
        "AWS_ENDPOINT_URL_S3": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"lake-{next(_numbers)}"
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/tables"


@pytest.fixture
def catalog(spark: SparkSession, iceberg_jar: Path | Exception) -> str:
    """Name of a new namespace of the Iceberg catalog."""
    if not isinstance(iceberg_jar, Path):
        pytest.skip(str(iceberg_jar).splitlines()[0])
    return f"lake.test_{next(_numbers)}"
