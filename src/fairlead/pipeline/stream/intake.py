"""Intake of one partition's part of a batch in a Spark task: write the new attempts to files that
no snapshot lists yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from fairlead.clock import SYSTEM_CLOCK
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.hashing import hashing_of
from fairlead.pipeline.history_rows import recorded_table
from fairlead.pipeline.landing import land
from fairlead.pipeline.stream.cursors import Cursor
from fairlead.pipeline.stream.high_water import HighWater
from fairlead.pipeline.stream.messages import Attempt, Message, read, recorded_of
from fairlead.pipeline.warehouse.data_files import Written
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import START, Position

ROWS = 50_000
"""Maximum number of attempts in one file."""

Numbered = tuple[int, bytes]
"""A message with its offset."""


@dataclass(frozen=True)
class Plan:
    """Plan of a batch: the state of the lake when the batch was planned, pickled for executors."""

    location: Location
    """Location of the lake, which executors reach too."""
    topic: str
    shown: str
    """Topic, for errors."""
    partitions: int
    cursors: Mapping[int, Cursor]
    low_water: Mapping[str, str]
    """Low-water marks by store: positions up to which all attempts are in the lake."""
    elsewhere: Mapping[str, str]
    """Other topics with attempts, by store."""
    stones: Sequence[str]
    """Tombstones of erased keys, whose rows are refused."""


class PartitionResult(msgspec.Struct, frozen=True):
    """Result of one partition's part."""

    partition: int
    next: int
    """Next offset to read."""
    stores: dict[str, str]
    """Positions by store up to which the partition was read."""
    messages: int
    attempts: int
    """Number of new attempts."""
    doubles: int
    """Number of repeated attempts."""
    early: int
    """Number of attempts that came before an earlier one (see `HighWater`)."""
    landed: list[Written]


def take(plan: Plan, partition: int, messages: Iterable[Numbered]) -> PartitionResult:
    """Read messages of one partition in order; skip those below its cursor, which are in the lake.

    Raise CheckFailed when messages are missing, and ConfigurationError for a hashed lake without
    its secret, a changed number of partitions, and a store whose attempts come from another topic.
    """
    part = _Part(plan, partition)
    for offset, value in messages:
        part.add(offset, value)
    return part.outcome()


class _Part:
    """One partition's part of a batch in progress."""

    def __init__(self, plan: Plan, partition: int) -> None:
        self._plan = plan
        self._partition = partition
        self._lake = Warehouse(plan.location)
        # Read the state only now, but not its tombstones: the commit rests on the plan.
        self._seen = self._lake.table(ATTEMPTS).state()._replace(erased=list(plan.stones))
        self._hashing = hashing_of(self._lake)
        cursor = plan.cursors.get(partition)
        self._next = None if cursor is None else cursor.next
        """Expected next offset; None for any."""
        self._stores = set(() if cursor is None else cursor.stores)
        read = {store: Position.of(position) for store, position in plan.low_water.items()}
        for store in self._stores:
            assert cursor is not None
            read[store] = max(read.get(store, START), cursor.position_of(store))
        self._water = HighWater(read)
        self._new: defaultdict[str, list[Attempt]] = defaultdict(list)
        """Attempts by store that are not on disk yet."""
        self._landed: list[Written] = []
        self._messages = self._attempts = 0

    def add(self, offset: int, value: bytes) -> None:
        """Add the next message."""
        plan, expected = self._plan, self._next
        if expected is not None and offset < expected:
            return
        if expected is not None and offset > expected:
            raise CheckFailed(
                f"{plan.shown}: partition {self._partition} continues at offset {offset}, but"
                f" the lake is at {expected}, so the checkpoint is of another lake, or the lake"
                " was restored. Start with a new checkpoint, which continues at the"
                " position of the lake"
            )
        where = f"{plan.shown}, partition {self._partition}, offset {offset}"
        message = read(value, where)
        _check(plan, message, where)
        try:
            self._sort_in(message)
        except CheckFailed as missing:
            raise CheckFailed(
                f"{where}: {missing}: Kafka has lost them, or keeps them for too short a time"
                " (retention.ms). The store still has the attempts that are not in the lake. Export"
                " them with `fairlead pipeline ingest --take-over`"
            ) from None
        self._next = offset + 1
        self._messages += 1
        self._stores.add(message.store_id)

    def outcome(self) -> PartitionResult:
        """Return the result after all messages."""
        for store in list(self._new):
            self._put(store)
        return PartitionResult(
            self._partition,
            self._next or 0,
            {store: str(self._water.positions[store]) for store in self._stores},
            self._messages,
            self._attempts,
            self._water.doubles,
            self._water.early,
            self._landed,
        )

    def _sort_in(self, message: Message) -> None:
        store, after = message.store_id, Position.of(message.after)
        if not isinstance(message, Attempt):
            self._water.passes(store, message.position, after)
        elif self._water.takes(store, message.position, after):
            self._attempts += 1
            self._new[store].append(message)
            if len(self._new[store]) == ROWS:
                self._put(store)

    def _put(self, store: str) -> None:
        """Write the attempts to disk."""
        rows = self._new.pop(store)
        batch = recorded_table(store, recorded_of(rows), len(rows), SYSTEM_CLOCK.now())
        name = f"{store}-attempts-kafka-{self._partition}-{rows[0].position}-{rows[-1].position}"
        self._landed += land(self._lake, ATTEMPTS, batch, name, self._seen, self._hashing)


def take_arrow(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take one partition in a Spark task: read rows of `MESSAGES_SENT`, and yield one outcome as
    MessagePack; yield nothing without rows. Raise CheckFailed for rows of several partitions."""
    partitions: list[int] = []

    def messages() -> Iterator[Numbered]:
        for batch in batches:
            if batch.num_rows:
                partitions.append(batch["kafka_partition"][0].as_py())
                values = batch["value"].cast(pa.binary()).to_pylist()
                yield from zip(batch["kafka_offset"].to_pylist(), values, strict=True)

    numbered = messages()
    head = next(numbered, None)
    if head is None:
        return

    def all_of_them() -> Iterator[Numbered]:
        yield head
        yield from numbered

    outcome = take(plan, partitions[0], all_of_them())
    if len(set(partitions)) > 1:
        raise CheckFailed(f"one task of Spark read several partitions of Kafka: {set(partitions)}")
    yield pa.RecordBatch.from_pydict({"outcome": [msgspec.msgpack.encode(outcome)]})


def _check(plan: Plan, message: Message, where: str) -> None:
    if message.partitions != plan.partitions:
        raise ConfigurationError(
            f"{where}: the topic had {message.partitions} partitions and now has"
            f" {plan.partitions}, so the attempts of one task are no longer in one partition; relay"
            " to another prefix"
        )
    if (other := plan.elsewhere.get(message.store_id)) is not None:
        raise ConfigurationError(
            f"{where}: the attempts of store {message.store_id} come into this lake by topic"
            f" {other}: to change the topic, first run `fairlead pipeline ingest --take-over`"
        )
