"""Tables in a real Iceberg catalog in a folder: the promises of Parquet tables, and those of Iceberg
alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS, EVENTS
from fairlead.pipeline.definitions.tasks import TASKS
from fairlead.pipeline.errors import BrokenLake, CheckFailed
from fairlead.pipeline.iceberg import IcebergTables
from fairlead.pipeline.jobs.build import FolderJob
from fairlead.pipeline.jobs.build import build_folder as build
from fairlead.pipeline.jobs.check import check as check_all
from fairlead.pipeline.lake.lake import Lake
from fairlead.pipeline.schema import WRITTEN_UNDER, Column, Table
from fairlead.pipeline.tables import lake_tables
from tests.pipeline.frames import T0, attempt, event, frame
from tests.pipeline.test_build import MADE, SETTINGS, batches

HOURLY = Table(
    "silver.things",
    "things, as they're counted here",
    key=("id",),
    instant="at",
    columns=(
        Column("id", "string", "which"),
        Column("at", "timestamp", "when"),
        Column("priority", "tinyint", "0 to 9; \\ is no escape"),
        Column("amount", "decimal(18,6)", "how much", nullable=True),
        WRITTEN_UNDER,
    ),
)
DAILY = HOURLY._replace(name="gold.things", by="date")
WIDER = HOURLY._replace(
    columns=(
        *HOURLY.columns[:-1],
        Column("node", "string", "where", nullable=True),
        WRITTEN_UNDER,
    )
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "landing")


@pytest.fixture
def tables(spark: SparkSession, catalog: str, lake: Lake) -> IcebergTables:
    found = lake_tables(spark, lake, catalog, SYSTEM_CLOCK)
    assert isinstance(found, IcebergTables)
    return found


def another(tables: IcebergTables, spark: SparkSession, lake: Lake) -> IcebergTables:
    """Open the catalog a second time, as the next job does."""
    return IcebergTables(spark, tables.name_of(HOURLY).rpartition(".")[0], lake, SYSTEM_CLOCK)


def things(
    spark: SparkSession, hours: Sequence[float], prefix: str = "t", **same: Any
) -> DataFrame:
    """Return one row for each of these hours after T0 (a Monday at 10)."""
    rows = [
        {
            "id": f"{prefix}{n}",
            "at": T0 + timedelta(hours=hour),
            "priority": 5,
            "schema_version": 1,
            **same,
        }
        for n, hour in enumerate(hours)
    ]
    return frame(spark, WIDER if "node" in same else HOURLY, rows)


def ids(rows: DataFrame) -> list[str]:
    return sorted(row["id"] for row in rows.collect())


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


def export(lake: Lake, table: Table, rows: list[dict[str, Any]], name: str) -> None:
    """Write rows to the lake, as the exporter does."""
    if not rows:
        return
    here = lake.table(table)
    written = here.write(pa.Table.from_pylist(rows, table.arrow()), "0", f"{name}.parquet")
    # The export is of the same day, so tasks that still wait do so for hours, not for years.
    assert here.append(written, {}, round((T0 + timedelta(hours=8)).timestamp() * 1e6)) is not None


# replace ------------------------------------------------------------------------------------------


def test_a_table_that_was_never_written_is_empty_and_has_its_columns(tables: IcebergTables) -> None:
    assertSchemaEqual(tables.read(HOURLY).schema, HOURLY.spark())
    assert tables.read(HOURLY).count() == 0 and tables.parts(HOURLY) == []


def test_written_rows_are_read_back_with_the_types_of_the_table(
    spark: SparkSession, tables: IcebergTables
) -> None:
    wanted = things(spark, [0, 1], amount=1)
    assert tables.replace(HOURLY, wanted) == 2
    tables.publish()
    assertSchemaEqual(tables.read(HOURLY).schema, HOURLY.spark())
    assert_same(HOURLY, tables.read(HOURLY), wanted)


def test_only_the_given_partitions_are_replaced_and_one_without_rows_becomes_empty(
    spark: SparkSession, tables: IcebergTables
) -> None:
    assert tables.replace(HOURLY, things(spark, [0, 0.5, 1, 2, 3])) == 5
    parts = ["2026-03-02/10", "2026-03-02/12", "2026-03-02/20"]
    assert tables.replace(HOURLY, things(spark, [0.9], "new"), parts) == 1
    tables.publish()
    assert ids(tables.read(HOURLY)) == ["new0", "t2", "t4"]
    assert tables.parts(HOURLY) == ["2026-03-02/10", "2026-03-02/11", "2026-03-02/13"]


def test_a_table_by_date_is_replaced_by_dates(spark: SparkSession, tables: IcebergTables) -> None:
    tables.replace(DAILY, things(spark, [0, 13.9, 14, 38]))
    assert tables.parts(DAILY) == ["2026-03-02", "2026-03-03", "2026-03-04"]
    tables.replace(DAILY, things(spark, [20], "new"), ["2026-03-03"])
    tables.publish()
    assert ids(tables.read(DAILY)) == ["new0", "t0", "t1", "t3"]
    assert ids(tables.read(DAILY, ["2026-03-02"])) == ["t0", "t1"]


def test_without_given_partitions_the_whole_table_is_replaced(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0, 1, 2]))
    assert tables.replace(HOURLY, things(spark, [5], "new")) == 1
    assert ids(tables.read(HOURLY)) == ["new0"]


def test_a_row_outside_the_given_partitions_is_refused_and_changes_nothing(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0, 1]))
    with pytest.raises(
        BrokenLake, match=r"silver.things: a row lies outside .* at is 2026-03-02 11:00:00"
    ):
        tables.replace(HOURLY, things(spark, [0, 1], "new"), ["2026-03-02/10"])
    with pytest.raises(BrokenLake, match="outside"):
        tables.replace(HOURLY, things(spark, [0], "new"), [])
    assert ids(tables.read(HOURLY)) == ["t0", "t1"]


def test_a_replacement_of_no_partitions_by_no_rows_changes_nothing(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0]))
    assert tables.replace(HOURLY, things(spark, []), []) == 0
    assert ids(tables.read(HOURLY)) == ["t0"]


def test_thousands_of_scattered_hours_are_replaced_at_once(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0, 1]))
    scattered = [(T0 + timedelta(hours=2 * n)).strftime("%Y-%m-%d/%H") for n in range(2000)]
    assert tables.replace(HOURLY, things(spark, [2, 4], "new"), scattered) == 2
    assert ids(tables.read(HOURLY, scattered)) == ["new0", "new1"]
    assert ids(tables.read(HOURLY)) == ["new0", "new1", "t1"]


def test_rows_are_sorted_by_partition_before_a_write_so_that_one_file_is_open_at_a_time(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0]))
    name = tables.name_of(HOURLY)
    plan = spark.sql(f"EXPLAIN INSERT INTO {name} SELECT * FROM {name}").collect()[0]["plan"]
    assert "Sort [" in plan and "HoursFunction" in plan.partition("Sort [")[2].partition("\n")[0]


def test_reading_some_partitions_opens_no_file_of_the_others(
    spark: SparkSession, tables: IcebergTables, catalog: str
) -> None:
    tables.replace(HOURLY, things(spark, [0, 1]))
    tables.publish()
    warehouse = Path(spark.conf.get("spark.sql.catalog.lake.warehouse"))  # type: ignore[arg-type]
    [other] = warehouse.glob(
        f"{catalog.partition('.')[2]}/silver_things/data/at_hour=2026-03-02-11/*.parquet"
    )
    other.unlink()
    assert ids(tables.read(HOURLY, ["2026-03-02/10"])) == ["t0"]
    with pytest.raises(Exception, match="(?i)not.?exist"):
        tables.read(HOURLY).collect()


# publish ------------------------------------------------------------------------------------------


def test_a_job_is_invisible_to_readers_before_it_publishes(
    spark: SparkSession, tables: IcebergTables, lake: Lake
) -> None:
    tables.replace(HOURLY, things(spark, [0]))
    tables.publish()
    tables.replace(HOURLY, things(spark, [1], "new"))
    assert ids(tables.read(HOURLY)) == ["new0"] and tables.parts(HOURLY) == ["2026-03-02/11"]
    other = another(tables, spark, lake)
    assert ids(other.read(HOURLY)) == ["t0"] and other.parts(HOURLY) == ["2026-03-02/10"]
    tables.publish()
    assert ids(other.read(HOURLY)) == ["new0"]
    branches = spark.table(f"{tables.name_of(HOURLY)}.refs").collect()
    assert [branch["name"] for branch in branches] == ["main"]


def test_a_job_whose_table_changed_meanwhile_is_refused_and_publishes_nothing(
    spark: SparkSession, tables: IcebergTables, lake: Lake
) -> None:
    tables.replace(HOURLY, things(spark, [0]))
    tables.publish()
    slow, quick = another(tables, spark, lake), another(tables, spark, lake)
    slow.replace(HOURLY, things(spark, [1], "slow"))
    quick.replace(HOURLY, things(spark, [2], "quick"))
    quick.publish()
    with pytest.raises(BrokenLake, match="silver_things was changed by another process"):
        slow.publish()
    assert ids(another(tables, spark, lake).read(HOURLY)) == ["quick0"]


def test_a_dead_job_blocks_no_other_job(
    spark: SparkSession, tables: IcebergTables, lake: Lake
) -> None:
    tables.replace(HOURLY, things(spark, [0]))  # never published
    other = another(tables, spark, lake)
    assert other.read(HOURLY).count() == 0
    other.replace(HOURLY, things(spark, [1], "new"))
    other.publish()
    assert ids(another(tables, spark, lake).read(HOURLY)) == ["new0"]


# columns ------------------------------------------------------------------------------------------


def test_a_column_added_later_is_null_in_old_rows(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0]))
    tables.publish()
    assert [row["node"] for row in tables.read(WIDER).collect()] == [None]
    tables.replace(WIDER, things(spark, [1], "new", node="n1"), ["2026-03-02/11"])
    tables.publish()
    found = {row["id"]: row["node"] for row in tables.read(WIDER).collect()}
    assert found == {"t0": None, "new0": "n1"}
    assertSchemaEqual(tables.read(WIDER).schema, WIDER.spark())


def test_the_error_about_a_column_of_another_type_names_it(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0]))
    tables.publish()
    changed = HOURLY._replace(
        columns=(
            *HOURLY.columns[:2],
            Column("priority", "string", "as text"),
            *HOURLY.columns[3:],
        )
    )
    with pytest.raises(BrokenLake, match="silver_things: column 'priority' is int, not string"):
        tables.replace(changed, things(spark, [0]))


def test_a_table_of_a_newer_fairlead_is_not_overwritten(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(WIDER, things(spark, [0], node="n1"))
    tables.publish()
    with pytest.raises(ConfigurationError, match="does not know: node; upgrade Fairlead"):
        tables.replace(HOURLY, things(spark, [1]), ["2026-03-02/11"])
    assert ids(tables.read(HOURLY)) == ["t0"]


def test_the_catalog_describes_tables_and_columns(
    spark: SparkSession, tables: IcebergTables
) -> None:
    for table, rows in ((HOURLY, things(spark, [0])), (WIDER, things(spark, [0], node="n1"))):
        tables.replace(table, rows)
        tables.publish()
    comments = {
        row["col_name"]: row["comment"]
        for row in spark.sql(f"DESCRIBE {tables.name_of(HOURLY)}").collect()
    }
    assert comments["priority"] == "0 to 9; \\ is no escape" and comments["node"] == "where"
    extended = spark.sql(f"DESCRIBE EXTENDED {tables.name_of(HOURLY)}").collect()
    assert "things, as they're counted here" in {row["data_type"] for row in extended}


# time travel --------------------------------------------------------------------------------------


def test_the_tables_before_the_last_build_can_still_be_read(
    spark: SparkSession, tables: IcebergTables
) -> None:
    tables.replace(HOURLY, things(spark, [0, 1]))
    tables.publish()
    name = tables.name_of(HOURLY)
    before = (
        spark.table(f"{name}.refs").where("name = 'main'").select("snapshot_id").collect()[0][0]
    )
    tables.replace(HOURLY, things(spark, [0], "new"), ["2026-03-02/10"])
    tables.publish()
    assert ids(spark.table(name)) == ["new0", "t1"]
    assert ids(spark.sql(f"SELECT * FROM {name} VERSION AS OF {before}")) == ["t0", "t1"]


# bronze -------------------------------------------------------------------------------------------


def test_bronze_is_read_from_the_files_of_the_exporter(tables: IcebergTables, lake: Lake) -> None:
    export(
        lake,
        ATTEMPTS,
        [attempt(task_id="a", finished_at=10), attempt(task_id="b", finished_at=3700)],
        "1",
    )
    assert tables.parts(ATTEMPTS) == ["2026-03-02/10", "2026-03-02/11"]
    assert [row["task_id"] for row in tables.read(ATTEMPTS, ["2026-03-02/11"]).collect()] == ["b"]


def test_landing_appends_new_rows_and_doubles_none(
    spark: SparkSession, tables: IcebergTables, lake: Lake
) -> None:
    first = [attempt(task_id="a", finished_at=10), attempt(task_id="b", finished_at=3700)]
    export(lake, ATTEMPTS, first, "1")
    export(lake, EVENTS, [event(task_id="a"), event(task_id="a", kind="cancelled", version=2)], "1")
    for table in (ATTEMPTS, EVENTS):
        tables.land(table)
        tables.land(table)
    late = [
        attempt(task_id="c", finished_at=20),
        attempt(task_id="c", version=9, attempt=2, finished_at=30),
    ]
    export(lake, ATTEMPTS, late, "2")
    export(
        lake, ATTEMPTS, [first[0] | {"exported_at": T0 + timedelta(hours=9)}], "3"
    )  # the same attempt a second time
    another(tables, spark, lake).land(ATTEMPTS, ["2026-03-02/10"])
    landed = spark.table(tables.name_of(ATTEMPTS))
    assert sorted((row["task_id"], row["version"]) for row in landed.collect()) == [
        ("a", 2),
        ("b", 2),
        ("c", 2),
        ("c", 9),
    ]
    assert landed.where("task_id = 'a'").collect()[0]["exported_at"] == first[0][
        "exported_at"
    ].replace(tzinfo=None)
    assert spark.table(tables.name_of(EVENTS)).count() == 2
    others = "task_id in ('b', 'c')"
    assert_same(
        ATTEMPTS, landed.where(others), another(tables, spark, lake).read(ATTEMPTS).where(others)
    )


def test_landing_copies_only_the_given_partitions(
    spark: SparkSession, tables: IcebergTables, lake: Lake
) -> None:
    another(tables, spark, lake).land(ATTEMPTS)  # the lake is still empty
    export(
        lake,
        ATTEMPTS,
        [attempt(task_id="a", finished_at=10), attempt(task_id="b", finished_at=3700)],
        "1",
    )
    tables.land(ATTEMPTS, ["2026-03-02/11", "2026-03-02/12"])
    assert [row["task_id"] for row in spark.table(tables.name_of(ATTEMPTS)).collect()] == ["b"]


def test_a_row_with_a_wrong_clock_lands_once(
    spark: SparkSession, tables: IcebergTables, lake: Lake
) -> None:
    export(
        lake, ATTEMPTS, [attempt(task_id="a", finished_at=datetime(1931, 1, 1, tzinfo=UTC))], "1"
    )
    for _ in range(2):
        tables.land(ATTEMPTS, ["1970-01-01/00"])
    assert spark.table(tables.name_of(ATTEMPTS)).count() == 1


# build --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_builds_after_each_export_make_the_same_tables_in_the_catalog_as_one_build_on_parquet(
    spark: SparkSession, catalog: str, lake: Lake, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = int(request.config.option.hypothesis_seed or 0) % 1000
    exports = batches(seed)
    on_parquet = FolderJob(spark, Lake(tmp_path / "parquet"), None, SYSTEM_CLOCK)
    in_catalog = FolderJob(spark, lake, catalog, SYSTEM_CLOCK)
    for number, (attempts, events) in enumerate(exports):
        for each in (on_parquet.lake, lake):
            export(each, ATTEMPTS, attempts, str(number))
            export(each, EVENTS, events, f"submitted-{number}")
        if number % 2:
            build(in_catalog, SETTINGS)
    build(on_parquet, SETTINGS)
    wanted, found = (
        lake_tables(spark, job.lake, job.catalog, SYSTEM_CLOCK) for job in (on_parquet, in_catalog)
    )
    assert isinstance(found, IcebergTables)
    for table in MADE:
        assert_same(table, found.read(table), wanted.read(table))
    for table in (ATTEMPTS, EVENTS):
        assert_same(table, spark.table(found.name_of(table)), wanted.read(table))
    assert all(check.holds for check in check_all(in_catalog).checks), seed
    assert build(in_catalog, SETTINGS).state == "nothing to do"


@pytest.mark.slow
def test_a_build_whose_checks_fail_publishes_nothing(
    spark: SparkSession, catalog: str, lake: Lake
) -> None:
    job = FolderJob(spark, lake, catalog, SYSTEM_CLOCK)
    export(lake, ATTEMPTS, [attempt(task_id="a")], "1")
    build(job, SETTINGS)
    export(lake, ATTEMPTS, [attempt(task_id="b"), attempt(task_id="a")], "2")
    with pytest.raises(CheckFailed, match="keys are unique"):
        build(job, SETTINGS)
    shown = lake_tables(spark, lake, catalog, SYSTEM_CLOCK)
    assert isinstance(shown, IcebergTables)
    assert [row["task_id"] for row in shown.read(TASKS).collect()] == ["a"]
    assert spark.table(shown.name_of(ATTEMPTS)).count() == 1


# settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catalog_name", "what"),
    [
        ("lake", "give a catalog and a namespace, as in lake.fairlead"),
        ("lake.a b", "give a catalog and a namespace"),
        (
            "elsewhere.fairlead",
            "Spark knows no catalog 'elsewhere': set spark.sql.catalog.elsewhere",
        ),
        ("nojar.fairlead", "catalog 'nojar' cannot be opened: .*no.such.Catalog"),
    ],
)
def test_the_error_about_an_unusable_catalog_names_the_missing_part(
    spark: SparkSession, lake: Lake, catalog: str, catalog_name: str, what: str
) -> None:
    spark.conf.set("spark.sql.catalog.nojar", "no.such.Catalog")
    with pytest.raises(ConfigurationError, match=what):
        IcebergTables(spark, catalog_name, lake, SYSTEM_CLOCK)
