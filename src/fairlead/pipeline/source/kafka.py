"""The stream of attempts from a topic of Kafka, sent by `fairlead pipeline relay`: each message
once, in the order of its partition. An attempt that a relay sent twice comes twice; `ingest
--stream` detects it by its position in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.errors import ConfigurationError
from fairlead.pipeline.source.kafka_tables import TOPIC_TABLES, TopicTable
from fairlead.pipeline.source.options import (
    MOST_ROWS_PER_BATCH,
    ColumnOptions,
    choice_of,
    columns_of,
    count_of,
    known_of,
    url_of,
)
from fairlead.pipeline.source.stream_offsets import StreamReader, most_rows, read_limit
from fairlead.pipeline.stream.topic import Topic

_KNOWN = {
    "url": "kafka://host:9092/?prefix=fairlead.",
    "table": "attempts (default), heartbeats, or messages (undecoded)",
    "columns": "names separated by commas; default: all",
    "startingoffsets": (
        'earliest (default), or the first offset to read by partition, such as {"0": 12, "1": 9};'
        " -2 is the earliest"
    ),
    "max_rows_per_batch": f"maximum rows in a micro-batch; default: {MOST_ROWS_PER_BATCH}",
}
_EARLIEST = -2


@dataclass(frozen=True, kw_only=True)
class KafkaOptions(ColumnOptions):
    """Options for reading a topic."""

    url: str = field(repr=False)
    read_as: TopicTable
    starts: Mapping[int, int]
    """Start offsets by partition; others start at the first message."""
    max_rows_per_batch: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Parse the options of a Spark read, whose names may be in upper or lower case. Raise
        ConfigurationError; for an unknown option, the error lists the known ones."""
        given = known_of(options, _KNOWN, " of a topic")
        read_as = TOPIC_TABLES[
            choice_of("table", given.get("table", "attempts"), list(TOPIC_TABLES))
        ]
        url = url_of(given.get("url"))
        KafkaEndpoint.of(url)  # report a wrong URL before anything is read
        return cls(
            url=url,
            read_as=read_as,
            table=read_as.table,
            columns=columns_of(read_as.table, given.get("columns")),
            starts=_starts(given.get("startingoffsets", "earliest")),
            max_rows_per_batch=count_of("max_rows_per_batch", given.get("max_rows_per_batch"))
            or MOST_ROWS_PER_BATCH,
        )

    def topic(self) -> Topic:
        """Return the topic to read."""
        return self.read_as.topic(KafkaEndpoint.of(self.url))


@dataclass(frozen=True)
class OffsetWindow(InputPartition):
    """Offsets [start, end) of one partition, the input of one Spark task."""

    partition: int
    start: int
    end: int


class KafkaStreamReader(StreamReader):
    """Stream reader of a topic. An offset is the next message of each partition: {"0": 12, "1": 9}.

    A batch is the same at each read, as long as Kafka has its messages. Missing messages raise
    CheckFailed, except heartbeats, which are skipped. A partition added later is refused, because
    the attempts of a task would change their partition.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._planned: dict[str, int] | None = None
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the start of a new checkpoint. Raises ConfigurationError for a start in a
        partition that the topic lacks."""
        starts = self._options.starts
        extents = self._options.topic().extents()
        if strange := sorted(starts.keys() - extents.keys()):
            raise ConfigurationError(
                f"option startingOffsets: {self._options.topic().location} has no partition"
                f" {strange[0]}"
            )
        return {
            str(n): first if starts.get(n, _EARLIEST) == _EARLIEST else starts[n]
            for n, (first, _) in extents.items()
        }

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the end of the next batch. About `max_rows_per_batch` messages are divided between
        the partitions in proportion to their messages; rounding may add one for each partition."""
        # Before 4.2 Spark does not pass the start. With an existing checkpoint, Spark has first
        # planned an empty batch at the end of the checkpoint, which set `_planned`.
        after = start or self._planned or self.initialOffset()
        ends = self._options.topic().ends()
        self._same_partitions(after, ends)
        if self._target is not None:
            ends = {n: min(end, self._target[n]) for n, end in ends.items()}
        there = {n: max(0, end - after[str(n)]) for n, end in ends.items()}
        every = sum(there.values())
        most = most_rows(limit, self._options.max_rows_per_batch)
        if most is not None and every > most:
            # Round up, so that every partition with messages moves on.
            there = {n: -(-count * most // every) for n, count in there.items()}
        return {str(n): after[str(n)] + count for n, count in there.items()}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the maximum size of a batch, from `max_rows_per_batch`."""
        return read_limit(self._options.max_rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set the present end as the end of the stream."""
        self._target = self._options.topic().ends()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[OffsetWindow]:
        """Return the partitions of the batch from `start` up to `end`. Raise CheckFailed when Kafka
        has dropped messages of the batch, unless the table may skip them."""
        self._planned = end
        windows = [
            OffsetWindow(int(n), start[n], end[n])
            for n in sorted(end, key=int)
            if start[n] < end[n]
        ]
        if not windows:
            return []
        topic = self._options.topic()
        extents = topic.extents()
        self._same_partitions(end, extents)
        if self._options.read_as.may_be_gone:
            return [
                replace(one, start=max(one.start, min(one.end, extents[one.partition][0])))
                for one in windows
            ]
        for window in windows:
            first, last = extents[window.partition]
            if window.start < first or window.end > last:
                raise topic.lost(
                    window.partition, last if first <= window.start < last else window.start
                )
        return windows

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from fairlead.pipeline.source.columns import arrow_schema, from_arrays

        assert isinstance(partition, OffsetWindow)
        topic = self._options.topic()
        schema = arrow_schema(self._options.table, self._options.columns)
        whence = f"{topic.location}, partition {partition.partition}"
        for page in topic.read(partition.partition, partition.start, partition.end):
            offsets, columns = self._options.read_as.rows(page, whence)
            if offsets:
                named = {
                    **columns,
                    "kafka_partition": [partition.partition] * len(offsets),
                    "kafka_offset": offsets,
                }
                yield from_arrays([named[name] for name in schema.names], schema)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the reader has no consumer group."""

    def _same_partitions(self, offset: Mapping[str, int], found: Mapping[int, Any]) -> None:
        if set(map(int, offset)) != found.keys():
            raise ConfigurationError(
                f"{self._options.topic().location} has {len(found)} partitions, and the checkpoint"
                f" {len(offset)}: the attempts of one task would no longer be in one partition."
                " Relay to another prefix, with a new checkpoint"
            )


def _starts(text: str) -> dict[int, int]:
    if text == "earliest":
        return {}
    try:
        return {int(n): int(offset) for n, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        # Refuse "latest": after a crash in its first batch, a checkpoint has not stored its start.
        raise ConfigurationError(
            f'option startingOffsets: {text!r} is unknown; use earliest, or {{"0": 12, "1": 9}}: an'
            " offset for each partition"
        ) from None
