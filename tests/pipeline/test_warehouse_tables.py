"""Spark and PyIceberg on one catalog: both see the same rows, neither loses what the other wrote, and
jobs of Spark publish whole builds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
from pandas.testing import assert_frame_equal
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.errors import BrokenLake
from fairlead.pipeline.models import ATTEMPTS
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.builds import PUBLISHED, Build
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.pipeline.warehouse_tables import WarehouseTables
from tests.pipeline.frames import T0, attempt, frame
from tests.pipeline.test_builds import HOURLY
from tests.pipeline.warehouses import export

both_catalogs = pytest.mark.parametrize("catalog_url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def tables(on_warehouse: SparkSession, warehouse: Warehouse) -> WarehouseTables:
    return WarehouseTables(on_warehouse, warehouse, SYSTEM_CLOCK)


def another(spark: SparkSession, warehouse: Warehouse) -> WarehouseTables:
    """Open the lake again, as the next job does."""
    return WarehouseTables(spark, warehouse, SYSTEM_CLOCK)


def things(spark: SparkSession, hours: Sequence[float], prefix: str = "t") -> DataFrame:
    """Return one row for each of these hours after T0 (a Monday at 10)."""
    rows = [
        {"id": f"{prefix}{n}", "at": T0 + timedelta(hours=hour)} for n, hour in enumerate(hours)
    ]
    return frame(spark, HOURLY, rows)


def parts_of(tables: WarehouseTables, table: Table) -> list[str]:
    return sorted({file.part for file in tables.files(table) if file.rows})


def ids(rows: DataFrame, column: str = "id") -> list[str]:
    return sorted(row[column] for row in rows.collect())


def assert_same(table: Table, found: DataFrame, wanted: DataFrame) -> None:
    """Assert that both frames hold equal rows, in any order."""
    one, other = (
        rows.select(*table.column_names)
        .toArrow()
        .to_pandas()
        .sort_values([*table.key], ignore_index=True)
        for rows in (found, wanted)
    )
    assert_frame_equal(one, other, check_dtype=False, rtol=1e-9)


def compact(spark: SparkSession, name: str) -> int:
    """Rewrite the files of a table as Spark's procedure does; return the number of old files."""
    # The catalog has the name of the namespace, so that only the full name is unambiguous.
    [row] = spark.sql(
        f"CALL fairlead.system.rewrite_data_files(table => '{name}',"
        " options => map('min-input-files', '2'))"
    ).collect()
    return int(row["rewritten_data_files_count"])


# one catalog --------------------------------------------------------------------------------------


@both_catalogs
def test_spark_reads_what_pyiceberg_appended_and_pyiceberg_what_spark_wrote(
    on_warehouse: SparkSession, warehouse: Warehouse, tables: WarehouseTables
) -> None:
    rows = [attempt(finished_at=600.0 * n, priority=n % 10) for n in range(30)]
    export(warehouse, ATTEMPTS, rows[:20], "1")
    export(warehouse, ATTEMPTS, rows[20:], "2")
    found = tables.read(ATTEMPTS)
    assertSchemaEqual(found.schema, ATTEMPTS.spark())
    assert_same(ATTEMPTS, found, frame(on_warehouse, ATTEMPTS, rows))
    first_hour = tables.read(ATTEMPTS, ["2026-03-02/10"])
    assert first_hour.count() == 6 and len(parts_of(tables, ATTEMPTS)) == 5

    tables.replace(HOURLY, things(on_warehouse, [0, 1, 2]))
    tables.publish()
    by_pyiceberg = warehouse.table(HOURLY).load()
    assert sorted(by_pyiceberg["id"].to_pylist()) == ["t0", "t1", "t2"]
    assert by_pyiceberg.schema.types == HOURLY.arrow().types
    assert {file.part: file.rows for file in warehouse.table(HOURLY).files()} == {
        "2026-03-02/10": 1,
        "2026-03-02/11": 1,
        "2026-03-02/12": 1,
    }


@both_catalogs
def test_commits_of_spark_keep_the_cursors(
    on_warehouse: SparkSession, warehouse: Warehouse, tables: WarehouseTables
) -> None:
    for n in range(3):
        export(warehouse, ATTEMPTS, [attempt(finished_at=float(n))], str(n))
    name = tables.name_of(ATTEMPTS)
    assert compact(on_warehouse, name) == 3
    on_warehouse.sql(f"DELETE FROM {name} WHERE unix_micros(finished_at) % 1000000 = 1")
    state = warehouse.table(ATTEMPTS).state()
    assert state.cursors == {"store": "2"} and warehouse.table(ATTEMPTS).load().num_rows == 3
    assert state.properties["commit.retry.num-retries"] == "0"


@both_catalogs
def test_a_compaction_beside_an_exporter_loses_and_doubles_no_row(
    on_warehouse: SparkSession, warehouse: Warehouse, tables: WarehouseTables
) -> None:
    exports = 25
    export(warehouse, ATTEMPTS, [attempt(task_id="0")], "0")
    failed: list[BaseException] = []
    done = threading.Event()

    def export_on() -> None:
        own = Warehouse(warehouse.location)
        try:
            for n in range(1, exports):
                export(own, ATTEMPTS, [attempt(task_id=str(n), finished_at=n * 300.0)], str(n))
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    exporter = threading.Thread(target=export_on)
    exporter.start()
    compacted = 0
    while True:
        last = done.is_set()
        try:
            compacted += compact(on_warehouse, tables.name_of(ATTEMPTS)) > 0
        except Exception as error:  # the exporter was first, and nothing is repeated by itself
            if "Cannot commit" not in str(error) and "changed" not in str(error):
                raise
        if last:
            break
    exporter.join()
    assert not failed and compacted > 0
    wanted = sorted(map(str, range(exports)))
    assert ids(another(on_warehouse, warehouse).read(ATTEMPTS), "task_id") == wanted
    assert sorted(warehouse.table(ATTEMPTS).load()["task_id"].to_pylist()) == wanted
    assert warehouse.table(ATTEMPTS).state().cursors == {"store": str(exports - 1)}


# replace and publish ------------------------------------------------------------------------------


def test_only_the_given_partitions_are_replaced_and_one_without_rows_becomes_empty(
    on_warehouse: SparkSession, tables: WarehouseTables
) -> None:
    assert tables.replace(HOURLY, things(on_warehouse, [0, 0.5, 1, 2, 3])) == 5
    parts = ["2026-03-02/10", "2026-03-02/12", "2026-03-02/20"]
    assert tables.replace(HOURLY, things(on_warehouse, [0.9], "new"), parts) == 1
    tables.publish()
    assert ids(tables.read(HOURLY)) == ["new0", "t2", "t4"]
    assert parts_of(tables, HOURLY) == ["2026-03-02/10", "2026-03-02/11", "2026-03-02/13"]


def test_a_row_outside_the_given_partitions_is_refused_and_changes_nothing(
    on_warehouse: SparkSession, tables: WarehouseTables
) -> None:
    tables.replace(HOURLY, things(on_warehouse, [0, 1]))
    with pytest.raises(BrokenLake, match=r"silver.things: a row lies outside .* 11:00:00"):
        tables.replace(HOURLY, things(on_warehouse, [0, 1], "new"), ["2026-03-02/10"])
    assert ids(tables.read(HOURLY)) == ["t0", "t1"]


def test_a_job_keeps_the_bronze_that_it_reads_until_it_publishes(
    on_warehouse: SparkSession, warehouse: Warehouse
) -> None:
    export(warehouse, ATTEMPTS, [attempt(task_id="a")], "1")
    tables, bronze = another(on_warehouse, warehouse), warehouse.table(ATTEMPTS)
    tables.hold()
    export(warehouse, ATTEMPTS, [attempt(task_id="b")], "2")
    assert bronze.expire(SYSTEM_CLOCK.now() + 1_000_000) == 0
    assert ids(tables.read(ATTEMPTS), "task_id") == ["a"]
    read = tables.snapshot(ATTEMPTS)
    assert read is not None
    tables.publish(Build(sources={ATTEMPTS.name: read}))
    stored = bronze.state().stored
    assert stored is not None and stored.metadata.refs.keys() == {"main", PUBLISHED}
