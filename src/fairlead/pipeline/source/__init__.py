"""The PySpark data source `fairlead`: read tasks, attempts and backlogs, stream attempts, submit
tasks in bulk. From Kafka (`kafka://...`) it streams the attempts that `fairlead pipeline relay`
sends.

    spark.dataSource.register(fairlead.pipeline.FairleadSource)
    spark.read.format("fairlead").option("url", "postgresql://app@db/shop").option("table",
    "attempts").load()

Options choose the rows (see `options`), not pushed-down filters: Spark reuses a reader that has
`pushFilters` for every use of the DataFrame, so `df.filter(a).union(df.filter(b))` would return b
twice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from fairlead.pipeline.source.kafka import KafkaOptions


class FairleadSource(DataSource):
    """Data source of the store that the option `url` names, by default $FAIRLEAD_URL as it was when
    Spark started. All methods raise ConfigurationError for unknown, missing or wrong options."""

    @classmethod
    def name(cls) -> str:
        return "fairlead"

    def schema(self) -> StructType:
        """Return the schema of the chosen columns."""
        from fairlead.pipeline.source.options import ReadOptions

        return (self._of_kafka() or ReadOptions.parse(self.options)).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises ConfigurationError also for a topic of Kafka, which
        is streamed only."""
        from fairlead.errors import ConfigurationError
        from fairlead.pipeline.source.options import ONLY_BATCH, ReadOptions
        from fairlead.pipeline.source.scan import FairleadReader

        if self._of_kafka() is not None:
            raise ConfigurationError("a topic of Kafka is streamed: use spark.readStream")
        return FairleadReader(ReadOptions.parse(self.options, ONLY_BATCH).with_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from fairlead.pipeline.source.options import ONLY_STREAM, ReadOptions
        from fairlead.pipeline.source.stream import FairleadStreamReader

        if (of_kafka := self._of_kafka()) is not None:
            from fairlead.pipeline.source.kafka import KafkaStreamReader

            return KafkaStreamReader(of_kafka.with_schema(schema))
        options = ReadOptions.parse(self.options, ONLY_STREAM)
        return FairleadStreamReader(options.with_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Open the submission of a batch, and return its writer. Raises InvalidTask for wrong
        columns."""
        from fairlead.pipeline.source.sink import BulkWriter

        return BulkWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream, which opens a submission for each micro-batch. Raises
        InvalidTask for wrong columns."""
        from fairlead.pipeline.source.sink import BulkStreamWriter

        return BulkStreamWriter(schema, self.options, overwrite)

    def _of_kafka(self) -> KafkaOptions | None:
        """Return the options of a topic, if the URL names Kafka."""
        given = [value for name, value in self.options.items() if name.lower() == "url"]
        if not (given[0] if given else os.environ.get("FAIRLEAD_URL", "")).startswith("kafka:"):
            return None
        from fairlead.pipeline.source.kafka import KafkaOptions

        return KafkaOptions.parse(self.options)
