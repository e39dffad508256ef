"""The data dictionary is complete and true, and the same for Arrow and Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.model_rows import rows_of
from fairlead.pipeline.models import TABLES
from fairlead.pipeline.schema import Table
from tests.pipeline.model_frames import empty_frames


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_of_a_table_has_a_description(table: Table) -> None:
    assert set(table.key) | {table.instant} <= set(table.column_names)
    assert all(len(column.doc) > 8 for column in table.columns)


@pytest.mark.parametrize("table", [t for t in TABLES if t.query], ids=lambda table: table.name)
def test_a_query_computes_the_columns_that_its_header_declares(
    spark: SparkSession, table: Table
) -> None:
    made = rows_of(table, empty_frames(spark), first=0, last=0, known=0, method="usage", least=1)
    assert [(field.name, field.dataType.simpleString()) for field in made.schema] == [
        (column.name, column.type) for column in table.columns
    ]
