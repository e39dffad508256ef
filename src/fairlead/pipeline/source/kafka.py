"""Streams of a topic of Kafka: attempts sent by `fairlead pipeline relay`, raw messages, or
heartbeats of queues.

Each message comes once, in the order of its partition. An attempt that a relay sent twice comes
twice; `ingest --stream` detects it by its position in the store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.history_rows import RECORDED_FIELDS, by_column
from fairlead.pipeline.incidents.heartbeat import decode
from fairlead.pipeline.schema import Column, Table, columns_in
from fairlead.pipeline.source.options import (
    MOST_ROWS_PER_BATCH,
    ColumnOptions,
    choice_of,
    columns_of,
    count_of,
    known_of,
    url_of,
)
from fairlead.pipeline.stream.messages import Attempt, read, recorded_of
from fairlead.pipeline.stream.topic import Topic

log = logging.getLogger("fairlead.source")

Page = Sequence[tuple[int, bytes]]
"""Messages with their offsets."""

Columns = dict[str, Sequence[Any]]
"""Values by column name, without kafka_partition."""


def _attempts(page: Page, whence: str) -> Columns:
    found = [(offset, read(value, f"{whence}, offset {offset}")) for offset, value in page]
    sent = [(offset, message) for offset, message in found if isinstance(message, Attempt)]
    attempts = [attempt for _, attempt in sent]
    store_ids = [attempt.store_id for attempt in attempts]
    own: Columns = {"store_id": store_ids, "kafka_offset": [offset for offset, _ in sent]}
    return {**recorded_of(attempts), **own}


def _messages(page: Page, whence: str) -> Columns:
    return by_column(("kafka_offset", "value"), page)


def heartbeat_rows(page: Page, whence: str) -> Columns:
    """Return the columns of the heartbeats of a page; skip unreadable messages."""
    found = []
    for offset, value in page:
        try:
            heartbeat = decode(value)
        except msgspec.DecodeError as error:
            # The next heartbeat comes within seconds, and an error would end all alerts.
            where = f"{whence}, offset {offset}"
            log.warning("no heartbeat", extra={"location": where, "error": str(error)})
        else:
            found.append((offset, heartbeat.store_id, heartbeat.queue, value))
    return by_column(("kafka_offset", "store_id", "queue", "heartbeat"), found)


def _table(name: str, meaning: str, *columns: str | Column, instant: str = "") -> Table:
    position = """
    kafka_partition int    partition of the topic
    kafka_offset    bigint offset of the message in the partition
    """
    key = ("kafka_partition", "kafka_offset")
    return Table(name, meaning, key, instant, columns_in(position, *columns))


_BRONZE = {column.name: column for column in ATTEMPTS.columns}

_TABLES = {
    table.name: table
    for table in (
        _table(
            "attempts",
            "one attempt as sent by a relay; an attempt sent twice has two rows",
            _BRONZE["store_id"],
            *(_BRONZE[name] for name in RECORDED_FIELDS),
            instant="finished_at",
        ),
        _table(
            "messages",
            "one unchanged message of the topic, attempt or mark",
            "value string JSON; see fairlead.pipeline.stream.messages",
        ),
        _table(
            "heartbeats",
            "heartbeat of a queue at an instant, sent by a relay for alerts",
            """
            store_id  string identity of the store
            queue     string queue of that store
            heartbeat string JSON; see fairlead.pipeline.incidents.heartbeat
            """,
        ),
    )
}
_ROWS = {"attempts": _attempts, "messages": _messages, "heartbeats": heartbeat_rows}
"""Function by table that takes a page and its location (for errors), and returns the columns of its
rows."""

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

    starts: Mapping[int, int]
    """Start offsets by partition; others start at the first message."""
    max_rows_per_batch: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Parse the options of a Spark read, whose names may be in upper or lower case. Raise
        ConfigurationError; for an unknown option, the error lists the known ones."""
        given = known_of(options, _KNOWN, " of a topic")
        table = _TABLES[choice_of("table", given.get("table", "attempts"), list(_TABLES))]
        url = url_of(given)
        KafkaEndpoint.of(url)  # report a wrong URL before anything is read
        return cls(
            url=url,
            table=table,
            columns=columns_of(table, given.get("columns")),
            starts=_starts(given.get("startingoffsets", "earliest")),
            max_rows_per_batch=count_of("max_rows_per_batch", given) or MOST_ROWS_PER_BATCH,
        )

    @property
    def has_heartbeats(self) -> bool:
        """Whether the messages are heartbeats, of which dropped ones are useless."""
        return self.table.name == "heartbeats"

    def topic(self) -> Topic:
        """Return the topic to read."""
        endpoint = KafkaEndpoint.of(self.url)
        return Topic(endpoint, endpoint.heartbeats if self.has_heartbeats else endpoint.attempts)


@dataclass(frozen=True)
class OffsetWindow(InputPartition):
    """Offsets [start, end) of one partition, the input of one Spark task."""

    partition: int
    start: int
    end: int


class KafkaStreamReader(DataSourceStreamReader):
    """Stream reader of a topic. An offset is the next message of each partition: {"0": 12, "1": 9}.

    A batch is the same at each read, as long as Kafka has its messages. Missing messages raise
    CheckFailed, except heartbeats, which are skipped. A partition added later is refused, because
    the attempts of a task would change their partition.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._planned: dict[str, int] | None = None

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

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the end of the next batch. About `max_rows_per_batch` messages are divided between
        the partitions in proportion to their messages; rounding may add one for each partition."""
        # With an existing checkpoint, Spark has first planned an empty batch at its end.
        after = self._planned or self.initialOffset()
        ends = self._options.topic().ends()
        self._same_partitions(after, ends)
        there = {n: max(0, end - after[str(n)]) for n, end in ends.items()}
        every, most = sum(there.values()), self._options.max_rows_per_batch
        if every > most:
            # Round up, so that every partition with messages moves on.
            there = {n: -(-count * most // every) for n, count in there.items()}
        return {str(n): after[str(n)] + count for n, count in there.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[OffsetWindow]:
        """Return the partitions of the batch from `start` up to `end`. Raise CheckFailed when Kafka
        has dropped messages of the batch, except heartbeats."""
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
        if self._options.has_heartbeats:
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
        assert isinstance(partition, OffsetWindow)
        topic = self._options.topic()
        schema, number = self._options.chosen().arrow(), partition.partition
        whence = f"{topic.location}, partition {number}"
        for page in topic.read(number, partition.start, partition.end):
            columns = _ROWS[self._options.table.name](page, whence)
            if count := len(columns["kafka_offset"]):
                columns["kafka_partition"] = [number] * count
                yield pa.RecordBatch.from_pydict(columns, schema=schema)

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
