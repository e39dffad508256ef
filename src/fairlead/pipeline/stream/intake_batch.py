"""One batch of the stream: the driver adds each attempt to the lake once, even if a relay repeats
the attempt or another process exports it.

One commit lists the files and moves the cursors of the partitions and of the store. If another
process has changed the table since the batch was planned, the batch is planned and read again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from fairlead.clock import Clock
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.hashing import hashing_of
from fairlead.pipeline.stream.cursors import (
    Cursor,
    cursor_name,
    cursors_of,
    store_cursor,
    store_position,
    topics_by_store,
)
from fairlead.pipeline.stream.intake import PartitionResult, Plan
from fairlead.pipeline.stream.topic import AttemptsTopic
from fairlead.pipeline.warehouse.table import TableState
from fairlead.pipeline.warehouse.warehouse import Warehouse
from fairlead.ports.history import START, Position

log = logging.getLogger("fairlead.stream")

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
        hashing_of(self._lake)
        partitions = self._topic.partitions()
        while True:
            before = self._table.state()
            plan = self._plan(before, partitions)
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
            {
                store: str(store_position(after, store))
                for outcome in outcomes
                for store in outcome.stores
            },
            round(time.monotonic() - started, 3),
        )

    def starts(self) -> dict[int, int]:
        """Return the start of a new checkpoint by partition: the position of the lake, or -2 for
        the first message."""
        known = cursors_of(self._table.state(), self._topic.name)
        return {n: known[n].next if n in known else -2 for n in range(self._topic.partitions())}

    def _plan(self, seen: TableState, partitions: int) -> Plan:
        low_water = {
            name.removesuffix("/attempts"): position
            for name, position in seen.cursors.items()
            if name.endswith("/attempts") and not name.startswith("kafka/")
        }
        elsewhere = {
            store: other
            for store, topics in topics_by_store(seen).items()
            for other in topics
            if other != self._topic.name
        }
        return Plan(
            self._lake.location,
            self._topic.name,
            self._topic.location,
            partitions,
            cursors_of(seen, self._topic.name),
            low_water,
            elsewhere,
            tuple(seen.erased),
        )

    def _count_in(
        self, before: TableState, plan: Plan, outcomes: Sequence[PartitionResult]
    ) -> bool:
        """List the files and move the cursors, in one commit. Return False when another process has
        changed the lake so that the outcomes are out of date."""
        cursors = dict(plan.cursors)
        moves: dict[str, str | None] = {}
        for outcome in outcomes:
            if not outcome.messages:
                continue
            n = outcome.partition
            cursors[n] = Cursor(outcome.next, plan.partitions, outcome.stores)
            moves[cursor_name(plan.topic, n)] = str(cursors[n])
        if not moves:
            return True
        stores = {store for outcome in outcomes for store in outcome.stores}
        for store in stores:
            known = plan.low_water.get(store)
            least = min(
                cursors[n].position_of(store) if n in cursors else START
                for n in range(plan.partitions)
            )
            if least > (START if known is None else Position.of(known)):
                moves[store_cursor(store)] = str(least)

        landed = [file for outcome in outcomes for file in outcome.landed]
        return self._table.append(landed, moves, before)
