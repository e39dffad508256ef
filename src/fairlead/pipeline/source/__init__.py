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

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class FairleadSource(DataSource):
    """Data source of the store that the option `url` names, by default $FAIRLEAD_URL as it was when
    Spark started."""

    @classmethod
    def name(cls) -> str:
        return "fairlead"

    def schema(self) -> StructType:
        """Return the schema of the chosen columns. Raise ConfigurationError for unknown, missing or
        wrong options."""
        from fairlead.pipeline.source.options import ReadOptions, is_kafka

        if is_kafka(self.options):
            from fairlead.pipeline.source.kafka import KafkaOptions

            return KafkaOptions.parse(self.options).schema()
        return ReadOptions.parse(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch. Raises ConfigurationError for wrong options, and for a
        topic of Kafka, which is streamed only."""
        from fairlead.errors import ConfigurationError
        from fairlead.pipeline.source.options import ONLY_BATCH, ReadOptions, is_kafka
        from fairlead.pipeline.source.scan import FairleadReader

        if is_kafka(self.options):
            raise ConfigurationError("a topic of Kafka is streamed: use spark.readStream")
        return FairleadReader(ReadOptions.parse(self.options, ONLY_BATCH).with_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream. Raises ConfigurationError for wrong options."""
        from fairlead.pipeline.source.options import ONLY_STREAM, ReadOptions, is_kafka
        from fairlead.pipeline.source.stream import FairleadStreamReader

        if is_kafka(self.options):
            from fairlead.pipeline.source.kafka import KafkaOptions, KafkaStreamReader

            return KafkaStreamReader(KafkaOptions.parse(self.options).with_schema(schema))
        return FairleadStreamReader(
            ReadOptions.parse(self.options, ONLY_STREAM).with_schema(schema)
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch. Raises ConfigurationError and InvalidTask for wrong options
        and columns."""
        from fairlead.pipeline.source.sink import batch_writer

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream. Raises ConfigurationError and InvalidTask for wrong
        options and columns."""
        from fairlead.pipeline.source.sink import stream_writer

        return stream_writer(schema, self.options, overwrite)
