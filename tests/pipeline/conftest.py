"""One Spark session for all tests of the pipeline, with two cores and two shuffle partitions; and
empty lakes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install 'fairlead[pipeline]'")

from pyspark.sql import SparkSession

from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.jobs.build import JobContext
from fairlead.pipeline.session import session
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from services import MissingProgram, iceberg
from tests.pipeline.filling import migrated
from tests.pipeline.warehouses import lake_in
from tests.servers import QUICK_JAVA

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the Spark session. Tests that start their own Spark have the mark in
    their file."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark_jars() -> list[Path] | Exception:
    """Return the jars of Iceberg and of its catalogs, or the error about their absence. With
    FAIRLEAD_REQUIRE_ICEBERG=1, raise the error."""
    try:
        return [iceberg.jar(), *iceberg.catalog_jars()]
    except (MissingProgram, RuntimeError) as missing:
        if os.environ.get("FAIRLEAD_REQUIRE_ICEBERG", "0") != "0":
            raise
        return missing


@pytest.fixture(scope="session")
def spark(spark_jars: list[Path] | Exception) -> Iterator[SparkSession]:
    """Spark session of all tests. No jar can be added after its start, so either all tests have
    Iceberg or none has."""
    settings = {"spark.sql.shuffle.partitions": "2"}
    if not isinstance(spark_jars, Exception):
        settings["spark.jars"] = ",".join(map(str, spark_jars))
        settings["spark.sql.extensions"] = iceberg.EXTENSIONS
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", " ".join(QUICK_JAVA))
        spark = session("local[2]", "fairlead tests", settings)
    yield spark
    spark.stop()


@pytest.fixture(autouse=True)
def _active(request: pytest.FixtureRequest) -> None:
    """Make the shared session the active one, in which Spark looks for data sources. Sessions that
    know a lake became active in earlier tests."""
    if "spark" in request.fixturenames:
        spark = request.getfixturevalue("spark")
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Yield the URL of an S3 endpoint on loopback."""
    moto = pytest.importorskip("moto.server", reason="pip install -e .[dev]")
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
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty Iceberg catalog: a file of SQLite, or with the parameter "postgres" a new
    database of PostgreSQL."""
    if getattr(request, "param", "sqlite") == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/lake/catalog.db"


@pytest.fixture
def warehouse(tmp_path: Path, catalog_url: str) -> Warehouse:
    """An empty lake in Iceberg, in a folder."""
    return Warehouse(Location.of(tmp_path / "lake", catalog_url))


@pytest.fixture
def store(store_url: str) -> Iterator[Any]:
    """Yield a migrated task store of each kind in turn."""
    store = migrated(store_url)
    yield store
    store.database.close()


@pytest.fixture
def history(store: Any) -> SqlHistory:
    """Return the history of a fresh store of each kind in turn."""
    return SqlHistory(store.database)


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    """An empty lake in the folder `lake`, with its catalog there."""
    return lake_in(tmp_path / "lake")


SparkOn = Callable[[Warehouse], SparkSession]
"""Function that returns a session with the catalog of a lake."""


@pytest.fixture(scope="session")
def spark_on(spark: SparkSession, spark_jars: list[Path] | Exception) -> SparkOn:
    """Function that returns a session of Spark with the catalog of a lake."""
    if isinstance(spark_jars, Exception):
        pytest.skip(str(spark_jars).splitlines()[0])

    def session_on(warehouse: Warehouse) -> SparkSession:
        own = spark.newSession()
        for name, value in warehouse.location.spark().items():
            if name.startswith("spark.sql.catalog."):
                own.conf.set(name, value)
        return own

    return session_on


@pytest.fixture
def on_warehouse(spark_on: SparkOn, warehouse: Warehouse) -> SparkSession:
    """Spark session of this test that knows the catalog of the lake."""
    return spark_on(warehouse)


@pytest.fixture
def job(on_warehouse: SparkSession, warehouse: Warehouse) -> JobContext:
    """Job of this test on the lake."""
    return JobContext(on_warehouse, warehouse, SYSTEM_CLOCK)
