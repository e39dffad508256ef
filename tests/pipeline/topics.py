"""The content of a topic of attempts, and the steps of the stream in this process, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.backends.kafka.endpoint import KafkaEndpoint
from fairlead.backends.sql.history import SqlHistory
from fairlead.clock import SYSTEM_CLOCK
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.export import Exporter
from fairlead.pipeline.history_rows import RECORDED_FIELDS, attempts_table
from fairlead.pipeline.stream.cursors import store_position
from fairlead.pipeline.stream.intake import Counted, IntakeBatch, PartitionResult, Plan, take
from fairlead.pipeline.stream.messages import Attempt, Message, read
from fairlead.pipeline.stream.relay import Relay
from fairlead.pipeline.stream.topic import AttemptsTopic
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import START, Position
from tests.pipeline.filling import add_attempts, connected, migrated
from tests.pipeline.warehouses import lake_in

ROWS = 7
"""Attempts in one batch of a relay."""


def topic_of(url: str) -> AttemptsTopic:
    return AttemptsTopic(KafkaEndpoint.of(url))


def relay(history: SqlHistory, url: str, **more: Any) -> Relay:
    return Relay(
        history, KafkaEndpoint.of(url), SYSTEM_CLOCK, **({"partitions": 2, "rows": ROWS} | more)
    )


def sent(url: str) -> dict[int, list[Message]]:
    """Return all messages of the topic, by partition."""
    topic = topic_of(url)
    return {
        n: [read(value, "here") for page in topic.read(n, first, end) for _, value in page]
        if first < end
        else []
        for n, (first, end) in topic.extents().items()
    }


def numbers(messages: dict[int, list[Message]]) -> list[int]:
    """Return the task numbers of the attempts among the messages, partition by partition."""
    return [
        int(message.task_id.replace("-", ""), 16)
        for _, each in sorted(messages.items())
        for message in each
        if isinstance(message, Attempt)
    ]


class Stream:
    """`ingest --stream` without Spark, with its own checkpoint and batches of at most `most` messages
    of a partition."""

    def __init__(self, lake: Warehouse, url: str, most: int = 1000) -> None:
        self.lake = lake
        self.topic = topic_of(url)
        self.intake = IntakeBatch(lake, self.topic, SYSTEM_CLOCK)
        self.most = most
        self.checkpoint: dict[int, int] | None = None

    def plan(self) -> dict[int, tuple[int, int]]:
        """Return the offsets of the next batch, by partition."""
        extents = self.topic.extents()
        if self.checkpoint is None:
            starts = self.intake.starts()
            self.checkpoint = {
                n: first if starts[n] == -2 else starts[n] for n, (first, _) in extents.items()
            }
        at = self.checkpoint
        return {
            n: (at[n], min(end, at[n] + self.most))
            for n, (_, end) in extents.items()
            if end > at[n]
        }

    def take(self, ranges: dict[int, tuple[int, int]]) -> Counted:
        """Write a batch to the lake without moving the checkpoint, as before a crash."""

        def run(plan: Plan) -> list[PartitionResult]:
            return [
                take(plan, n, (message for page in self.topic.read(n, *span) for message in page))
                for n, span in sorted(ranges.items())
            ]

        return self.intake.take(run)

    def batch(self) -> Counted | None:
        """Take the next batch; return None without new messages."""
        ranges = self.plan()
        if not ranges:
            return None
        counted = self.take(ranges)
        assert self.checkpoint is not None
        self.checkpoint |= {n: end for n, (_, end) in ranges.items()}
        return counted

    def drain(self) -> list[Counted]:
        """Take all remaining batches."""
        return list(iter(self.batch, None))


class Relayed:
    """A store, a relay to a topic of two partitions, and the lake for the attempts of the topic."""

    def __init__(self, url: str, lake: Warehouse, kafka_url: str, rows: int = ROWS) -> None:
        self.url = url
        self.lake = lake
        self.kafka_url = kafka_url
        self.history = SqlHistory(migrated(url).database)
        self.relay = relay(self.history, kafka_url, rows=rows)
        self.relay.round()  # creates the topic

    def close(self) -> None:
        self.relay.close()
        self.history.database.close()

    def add(self, numbers: range) -> None:
        """Add finished attempts to the store."""
        with connected(self.url) as connection:
            add_attempts(connection, numbers)

    def bring(self, numbers: range) -> None:
        """Add finished attempts to the store, and relay them."""
        self.add(numbers)
        self.relay.round()

    def trim(self, before: int, partitions: int = 2) -> None:
        """Let Kafka delete the messages before this offset in the first `partitions` partitions."""
        endpoint = KafkaEndpoint.of(self.kafka_url)
        endpoint.trim({(endpoint.attempts, n): before for n in range(partitions)})

    def stream(self, most: int = 1000) -> Stream:
        return Stream(self.lake, self.kafka_url, most)

    def poll(self, lake: Warehouse | None = None, **more: Any) -> Exporter:
        return Exporter(self.history, lake or self.lake, SYSTEM_CLOCK, **more)

    def register(self) -> None:
        """Register the lake, as `ingest --stream` does first, so that only compared rows are cleaned."""
        self.poll(attempts="never").round()

    @property
    def store_id(self) -> str:
        return str(self.history.database.read_now(self.history.store_id()))

    def cursor(self) -> Position:
        """Return the cursor of the store in the lake."""
        return store_position(self.lake.table(ATTEMPTS).state(), self.store_id)

    def differences(self) -> list[str]:
        return differences(self.history, self.lake)


@contextmanager
def relayed_at(url: str, folder: Path, kafka_url: str, rows: int = ROWS) -> Iterator[Relayed]:
    """Yield a relayed store with a lake in this folder."""
    one = Relayed(url, lake_in(folder / "lake"), kafka_url, rows)
    try:
        yield one
    finally:
        one.close()


def differences(history: SqlHistory, lake: Warehouse) -> list[str]:
    """Return the differences between bronze.attempts and the store, by row and column."""
    store_id = history.database.read_now(history.store_id())
    rows = history.database.read_now(history.attempts(START, Position(2**62, 2**62), 10**9))
    names = ["store_id", *RECORDED_FIELDS]
    table = lake.table(ATTEMPTS)
    here = table.load(columns=names)
    there = attempts_table(store_id, rows, 0).select(names)
    order = [("xid", "ascending"), ("seq", "ascending")]
    return list(_differences(there.sort_by(order).to_pylist(), here.sort_by(order).to_pylist()))


def _differences(there: list[Any], here: list[Any]) -> Iterator[str]:
    if len(there) != len(here):
        yield f"{len(there)} rows in the store, {len(here)} in the lake"
    for one, other in zip(there, here, strict=False):
        if one != other:
            yield f"{one} in the store, {other} in the lake"
            return
