"""The PySpark data source `fairlead`: read tasks and attempts, stream attempts, submit tasks in
bulk.

    spark.dataSource.register(fairlead.pipeline.FairleadSource)
    spark.read.format("fairlead").option("url", "postgresql://app@db/shop").option("table",
    "attempts").load()

Options choose the rows (see `options`), not pushed-down filters: Spark reuses a reader that has
`pushFilters` for every use of the DataFrame, so `df.filter(a).union(df.filter(b))` would return b
twice.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from fairlead.pipeline.source.options import ONLY_BATCH, ONLY_STREAM, ReadOptions


class FairleadSource(DataSource):
    """Data source of the store that the option `url` names, by default $FAIRLEAD_URL as it was when
    Spark started. All methods raise ConfigurationError for unknown, missing or wrong options, and
    those of writers InvalidTask for wrong columns."""

    @classmethod
    def name(cls) -> str:
        return "fairlead"

    def schema(self) -> StructType:
        """Return the schema of the chosen columns."""
        return ReadOptions.parse(self.options).chosen().spark()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        from fairlead.pipeline.source.batch import FairleadReader

        return FairleadReader(ReadOptions.parse(self.options, ONLY_STREAM).with_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from fairlead.pipeline.source.stream import FairleadStreamReader

        options = ReadOptions.parse(self.options, ONLY_BATCH)
        return FairleadStreamReader(options.with_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Open the submission of a batch, and return its writer."""
        from fairlead.pipeline.source.sink import BulkWriter

        return BulkWriter(schema, self.options, overwrite)
