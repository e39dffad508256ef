"""Spark SQL, DuckDB and PyIceberg read the same rows of every table of a generated lake."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.jobs.build import JobContext, build
from fairlead.pipeline.reading.query import open_views
from fairlead.pipeline.reading.snapshots import Snapshots
from fairlead.pipeline.schema import Table
from fairlead.pipeline.warehouse.location import CATALOG, NAMESPACE, flat_name
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.generate import write_lake
from tests.pipeline.conftest import SparkOn
from tests.pipeline.test_against_pandas import SETTINGS, TRUTH
from tests.pipeline.warehouses import lake_in


@pytest.fixture(scope="module")
def lake(spark_on: SparkOn, tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    lake = lake_in(tmp_path_factory.mktemp("lake"))
    spark = spark_on(lake)
    write_lake(spark, lake, replace(TRUTH, rows=4000))
    build(JobContext(spark, lake, SYSTEM_CLOCK), SETTINGS)
    return lake


@pytest.fixture(scope="module")
def plain(spark_on: SparkOn, lake: Warehouse) -> SparkSession:
    """Spark session that knows the catalog, and nothing of Fairlead."""
    return spark_on(lake)


def ordered(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows with the types of the dictionary, in the order of the key."""
    typed = pa.Table.from_arrays(
        [rows[field.name].cast(field.type) for field in table.arrow()],
        schema=pa.schema([field.with_nullable(True) for field in table.arrow()]),
    )
    return typed.sort_by([(name, "ascending") for name in table.key]).combine_chunks()


@pytest.mark.spark
def test_three_engines_read_the_same_rows(lake: Warehouse, plain: SparkSession) -> None:
    made = Snapshots(lake).look().tables
    counts = {}
    with open_views(lake) as views:
        for table in made:
            name = f"{NAMESPACE}.{flat_name(table)}"
            by_duckdb = ordered(table, views.sql(f"FROM {table.name}").to_arrow_table())
            by_pyiceberg = ordered(table, lake.catalog.load_table(name).scan().to_arrow())
            by_spark = ordered(table, plain.sql(f"SELECT * FROM {CATALOG}.{name}").toArrow())
            assert by_duckdb == by_pyiceberg, table.name
            assert by_spark == by_pyiceberg, table.name
            counts[table.name] = len(by_pyiceberg)
    assert {table.name for table in TABLES} >= counts.keys() >= {"gold.cost", "silver.service"}
    assert counts["bronze.attempts"] > 3000
    assert sum(count > 0 for count in counts.values()) >= 12, counts
    print(counts)
