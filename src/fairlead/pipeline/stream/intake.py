"""Intake of the stream: add each attempt to the lake once, even if a relay repeats the attempt or
another process exports it.

A Spark task takes one partition's part of a batch, and writes the new attempts to files that no
snapshot lists yet. Then one commit of the driver lists the files and moves the cursors of the
partitions and of the store. If another process has changed the table since the batch was planned,
the batch is planned and read again.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import pyarrow as pa

from fairlead.clock import SYSTEM_CLOCK, Clock
from fairlead.errors import ConfigurationError
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.errors import CheckFailed
from fairlead.pipeline.history_rows import recorded_table
from fairlead.pipeline.landing import land
from fairlead.pipeline.stream.cursors import (
    Cursor,
    cursor_name,
    cursors_of,
    store_cursor,
    store_position,
    topics_beside,
)
from fairlead.pipeline.stream.messages import Attempt, HighWater, read, recorded_of
from fairlead.pipeline.stream.topic import AttemptsTopic
from fairlead.pipeline.warehouse.data_files import Written
from fairlead.pipeline.warehouse.location import Location
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import START, Position

log = logging.getLogger("fairlead.stream")

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
    seen: TableState
    """State of bronze.attempts, without its table."""


class PartitionResult(msgspec.Struct):
    """Result of one partition's part."""

    partition: int
    next: int | None
    """Next offset to read; None for any."""
    stores: dict[str, str] = {}
    """Positions by store up to which the partition was read."""
    messages: int = 0
    attempts: int = 0
    """Number of new attempts."""
    doubles: int = 0
    """Number of repeated attempts."""
    early: int = 0
    """Number of attempts that came before an earlier one (see `HighWater`)."""
    landed: list[Written] = []


def take(plan: Plan, partition: int, messages: Iterable[Numbered]) -> PartitionResult:
    """Read messages of one partition in order; skip those below its cursor, which are in the lake.

    Raise CheckFailed when messages are missing, and ConfigurationError for a changed
    number of partitions, and a store whose attempts come from another topic.
    """
    lake, cursor = Warehouse(plan.location), cursors_of(plan.seen, plan.topic).get(partition)
    # Read the state only now, but not its tombstones: the commit rests on the plan.
    seen = lake.table(ATTEMPTS).state()._replace(erased=plan.seen.erased)
    other_topics = topics_beside(plan.seen, plan.topic)

    def position_of(store: str) -> Position:
        """Return the position up to which the lake has the store's attempts of this partition."""
        own = START if cursor is None else cursor.position_of(store)
        return max(own, store_position(plan.seen, store))

    water = HighWater({name: position_of(name) for name in (cursor.stores if cursor else ())})
    result = PartitionResult(partition, None if cursor is None else cursor.next)
    waiting: defaultdict[str, list[Attempt]] = defaultdict(list)
    """New attempts by store that are not on disk yet."""

    def write(store: str) -> None:
        rows = waiting.pop(store)
        batch = recorded_table(store, recorded_of(rows), SYSTEM_CLOCK.now())
        name = f"{store}-attempts-kafka-{partition}-{rows[0].position}-{rows[-1].position}"
        result.landed += land(lake, ATTEMPTS, batch, name, seen)

    for offset, value in messages:
        if result.next is not None and offset < result.next:
            continue
        if result.next is not None and offset > result.next:
            raise CheckFailed(
                f"{plan.shown}: partition {partition} continues at offset {offset}, but the lake is"
                f" at {result.next}, so the checkpoint is of another lake, or the lake was"
                " restored. Start with a new checkpoint, which continues at the position of the"
                " lake"
            )
        where = f"{plan.shown}, partition {partition}, offset {offset}"
        message = read(value, where, plan.partitions)
        store, after = message.store_id, Position.of(message.after)
        if (other := other_topics.get(store)) is not None:
            raise ConfigurationError(
                f"{where}: the attempts of store {store} come into this lake by topic {other}: to"
                " change the topic, first run `fairlead pipeline ingest --take-over`"
            )
        if store not in water.positions:
            water.positions[store] = position_of(store)
        if isinstance(message, Attempt):
            if water.takes(store, message.position, after):
                result.attempts += 1
                waiting[store].append(message)
                if len(waiting[store]) == ROWS:
                    write(store)
        else:
            try:
                water.passes(store, message.position, after)
            except CheckFailed as missing:
                raise CheckFailed(
                    f"{where}: {missing}: Kafka has lost them, or keeps them for too short a time"
                    " (retention.ms). The store still has the attempts that are not in the lake."
                    " Export them with `fairlead pipeline ingest --take-over`"
                ) from None
        result.next = offset + 1
        result.messages += 1
    for store in list(waiting):
        write(store)
    result.stores = {store: str(position) for store, position in water.positions.items()}
    result.doubles, result.early = water.doubles, water.early
    return result


def take_arrow(plan: Plan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take one partition in a Spark task: read rows of the table `messages`, and yield one outcome
    as MessagePack; yield nothing without rows. Raise CheckFailed for rows of several partitions."""
    filled = (batch for batch in batches if batch.num_rows)
    head = next(filled, None)
    if head is None:
        return
    partition = head["kafka_partition"][0].as_py()

    def messages() -> Iterator[Numbered]:
        for batch in chain([head], filled):
            other = batch["kafka_partition"][0].as_py()
            if other != partition:
                raise CheckFailed(
                    f"one task of Spark read several partitions of Kafka: {partition}, {other}"
                )
            values = batch["value"].cast(pa.binary()).to_pylist()
            yield from zip(batch["kafka_offset"].to_pylist(), values, strict=True)

    outcome = take(plan, partition, messages())
    yield pa.RecordBatch.from_pydict({"outcome": [msgspec.msgpack.encode(outcome)]})


Run = Callable[[Plan], Sequence[PartitionResult]]
"""Function that reads the batch by a plan and returns one outcome for each partition; it is called
again when the lake has changed meanwhile."""


class Counted(msgspec.Struct, frozen=True):
    """Totals of a batch."""

    messages: int
    attempts: int
    """Number of new attempts, including those of erased keys, which are not kept."""
    doubles: int
    early: int
    files: int
    positions: dict[str, str]
    """Positions by store up to which all attempts are in the lake."""
    seconds: float


class IntakeBatch:
    """Intake from one topic into one lake; several may run at once."""

    def __init__(self, lake: Warehouse, topic: AttemptsTopic, clock: Clock) -> None:
        self._lake = lake
        self._topic = topic
        self._table = lake.table(ATTEMPTS)
        self._clock = clock

    def take(self, run: Run) -> Counted:
        """Publish the new attempts of a batch. Raise BrokenLake, and the errors of `run` (see
        `intake.take`)."""
        started = time.monotonic()
        partitions = self._topic.partitions()
        while True:
            before = self._table.state()
            plan = Plan(
                self._lake.location,
                self._topic.name,
                self._topic.location,
                partitions,
                before._replace(stored=None),
            )
            outcomes = run(plan)
            if self._count_in(before, plan, outcomes):
                break
            for outcome in outcomes:
                self._table.take_away(outcome.landed)
            log.info(
                "a batch is read again: the lake has changed meanwhile", extra={"topic": plan.topic}
            )
        self._table.tend(self._clock.now())
        after = self._table.state()
        return Counted(
            sum(outcome.messages for outcome in outcomes),
            sum(outcome.attempts for outcome in outcomes),
            sum(outcome.doubles for outcome in outcomes),
            sum(outcome.early for outcome in outcomes),
            sum(len(outcome.landed) for outcome in outcomes),
            {name: str(store_position(after, name)) for each in outcomes for name in each.stores},
            round(time.monotonic() - started, 3),
        )

    def starts(self) -> dict[int, int]:
        """Return the start of a new checkpoint by partition: the position of the lake, or -2 for
        the first message."""
        known = cursors_of(self._table.state(), self._topic.name)
        return {n: known[n].next if n in known else -2 for n in range(self._topic.partitions())}

    def _count_in(
        self, before: TableState, plan: Plan, outcomes: Sequence[PartitionResult]
    ) -> bool:
        """List the files and move the cursors, in one commit. Return False when another process has
        changed the lake so that the outcomes are out of date."""
        moved = {
            outcome.partition: Cursor(outcome.next or 0, plan.partitions, outcome.stores)
            for outcome in outcomes
            if outcome.messages
        }
        if not moved:
            return True
        cursors = {**cursors_of(before, plan.topic), **moved}
        moves = {cursor_name(plan.topic, n): str(cursor) for n, cursor in moved.items()}
        for store in {store for outcome in outcomes for store in outcome.stores}:
            least = min(
                cursors[n].position_of(store) if n in cursors else START
                for n in range(plan.partitions)
            )
            if least > store_position(before, store):
                moves[store_cursor(store)] = str(least)
        landed = [file for outcome in outcomes for file in outcome.landed]
        return self._table.append(landed, moves, before)
