"""The supervisor of one partition of an ordered queue: take it over, tear it down after a failure,
load it again, until it is released.

A failure in the partition, for example of a store, ends one tenure only. Runs continue, and the
next tenure writes their ends. The pauses between failing tenures grow, and the supervisor logs the
failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from fairlead.batch_writer import BatchWriter
from fairlead.clock import MICROS
from fairlead.core.schedule.schedule import Schedule
from fairlead.core.schedule.throughput import Window
from fairlead.errors import StoreUnavailable
from fairlead.model import PartitionKey, RunEnd, ScheduleRecord
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.fenced_schedule import FencedSchedule
from fairlead.ordered.in_flight import MOST_AT_ONCE, InFlight
from fairlead.ordered.layout import OtherLayout, require_layout
from fairlead.ordered.tenure import Tenure
from fairlead.ports.observer import OrderedGauges
from fairlead.ports.owner_record import OtherOwner
from fairlead.ports.schedule_store import Fenced
from fairlead.ports.task_log import Batch

log = logging.getLogger("fairlead.ordered")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds between two tenures: doubled after each failure, until a tenure lasts as long as the
longest pause."""

FENCED_PAUSE = 10.0
"""Seconds to wait after a write was fenced: by then this node knows whether it lost its lease."""

STALE_SECONDS = 300.0
"""Seconds after its due time from which an unfinished task is stale."""

FURTHEST_BEHIND = -1e9
"""Seconds of look-ahead shown for a partition that has not read anything yet."""

LAST_SECONDS = 10.0
"""Longest time, in seconds, for a lost partition to write the ends of earlier runs."""

_MANY = 5
"""Failures in a row from which the log level is error instead of warning."""


def pause_after(failures: int) -> float:
    """Return the pause in seconds after a number of failures in a row."""
    # bounded: two to the power of all failures would outgrow a float
    doubled: float = FIRST_PAUSE * 2 ** min(failures - 1, 16)
    return min(LONGEST_PAUSE, doubled)


class OrderedPartition:
    """A partition: call `run` while the node owns it, then `drained` and `close`, or `drop`."""

    def __init__(
        self, key: PartitionKey, partitions: int, window: Window, context: OrderedContext
    ) -> None:
        """`partitions`: number of the queue's partitions, as this node declares it."""
        self.key = key
        self.partitions = partitions
        self.in_flight = InFlight(context)
        self.tenure: Tenure | None = None
        self._window = window
        self._context = context
        self._is_leaving = False
        self._began = 0.0
        self._range_id = 0
        """Range id of the last take-over."""
        self.reloads = 0
        """Number of failures in a row."""
        self.trouble: str | None = None
        """Text of the last failure; None after a tenure that lasted."""

    # one tenure after the other -------------------------------------------------------------------

    async def run(self) -> None:
        """Hold one tenure after the other, until cancelled. Raise OtherLayout if the tasks of the
        queue are in another number of partitions, OtherOwner if they are in the schedule of another
        application."""
        while True:
            self._began = self._context.clock.monotonic()
            try:
                await self._hold()
            except (OtherLayout, OtherOwner):
                raise
            except Exception as error:
                pause = self._on_failure(error, self._context.clock.monotonic() - self._began)
                await self._context.clock.sleep(pause)

    async def _hold(self) -> None:
        tenure = await self._take_over()
        if self._is_leaving:
            tenure.scheduler.stop()
        self._set_tenure(tenure)
        self._context.log.poke()
        # In a separate asyncio task: a task group that fails while it is cancelled raises only
        # its failures.
        running = asyncio.ensure_future(tenure.run())
        try:
            await asyncio.wait([running])
            running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self.in_flight.withdraw()
            if not self._is_leaving:
                self._set_tenure(None)

    async def _take_over(self) -> Tenure:
        context = self._context
        # Rewind first: until the take-over below fences it, an earlier owner may still write
        # uncommitted entries.
        await context.log.rewind(self.key)
        owned = await context.store.take_over(self.key)
        self._range_id = owned.range_id
        require_layout(self.key, owned.record, self.partitions)
        context.outages.over(self.key)
        if owned.record.is_paused:
            context.on_last_pause(self.key.queue)
        store = FencedSchedule(context.store, self.key, owned.range_id)
        schedule = Schedule(owned.record.low_water_mark, self._window, self.in_flight.running)
        return Tenure(store, schedule, self.in_flight, self._describe, context)

    def _set_tenure(self, tenure: Tenure | None) -> None:
        self.tenure = tenure
        self.in_flight.loaded = tenure

    def _on_failure(self, error: Exception, lasted: float) -> float:
        """Log a failure; return the seconds to wait before the next tenure."""
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        cause = causes[0]
        is_outage = isinstance(cause, StoreUnavailable)
        self.reloads = 1 if lasted >= LONGEST_PAUSE else self.reloads + 1
        self.trouble = f"{type(cause).__qualname__}: {cause}"
        is_serious = not isinstance(cause, Fenced) and self.reloads >= _MANY
        failing = self._context.outages.failed(self.key) if is_outage else 1
        log.log(
            logging.DEBUG if not failing else logging.ERROR if is_serious else logging.WARNING,
            "a partition of an ordered queue is reloaded",
            extra={
                "partition": self.key,
                "failures": self.reloads,
                "error": self.trouble,
                "partitions": failing,
            },
            exc_info=None if is_outage or isinstance(cause, Fenced) else cause,
        )
        self._context.observer.counted("ordered_reloads")
        pause = pause_after(self.reloads)
        return max(pause, FENCED_PAUSE) if isinstance(cause, Fenced) else pause

    def resize(self, window: Window) -> None:
        """Set how many tasks may be in memory."""
        self._window = window
        if self.tenure is not None:
            self.tenure.resize(window)

    # the log --------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether the partition accepts a batch of the log now."""
        tenure = self.tenure
        return tenure is not None and not self._is_leaving and tenure.persistence.has_room

    def accept(self, batch: Batch) -> None:
        """Accept the next batch of the log. Between two tenures, drop the batch: the next tenure
        rewinds the log."""
        if self.has_room:
            assert self.tenure is not None
            self.tenure.persistence.accept(batch)

    # release --------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Start no more tasks, because the partition will be released."""
        if not self._is_leaving:
            self._is_leaving = True
            if self.tenure is not None:
                self.tenure.scheduler.stop()
            self.in_flight.withdraw()

    def stay(self) -> None:
        """Start tasks again, because the partition will not be released."""
        if self._is_leaving:
            self._is_leaving = False
            if self.tenure is not None:
                self.tenure.scheduler.resume()
            self._context.log.poke()

    @property
    def is_drained(self) -> bool:
        """Whether the partition is leaving, runs no task, and has written every end that the store
        accepts."""
        return self._is_leaving and self.in_flight.is_settled

    async def drained(self, seconds: float) -> bool:
        """Wait until the partition is drained, at most `seconds`; return whether it is."""
        clock = self._context.clock
        deadline = clock.now() + round(seconds * MICROS)
        while not self.is_drained and clock.now() < deadline:
            await self.in_flight.emptied.wait(deadline)
        return self.is_drained

    async def close(self) -> None:
        """Save the record, after `run` was cancelled, then drop the partition."""
        if self.tenure is not None and not self.in_flight.ids:
            try:
                await self.tenure.save()
            except Exception as error:
                log.info(
                    "left without saving its record",
                    extra={"partition": self.key, "error": str(error)},
                )
        if ends := self.drop():
            await self.write_last(ends)

    def drop(self) -> list[RunEnd]:
        """Stop all runs without writing their ends, because another node owns the partition. Return
        the ends that were not written yet."""
        self._context.outages.drop(self.key)
        self.in_flight.withdraw()
        self._set_tenure(None)
        return self.in_flight.drop()

    async def write_last(self, ends: Sequence[RunEnd]) -> None:
        """Try once to write these ends, so that the next owner need not run their tasks again. The
        store refuses them if that owner has begun."""
        store = FencedSchedule(self._context.store, self.key, self._range_id)
        writer = BatchWriter[RunEnd, None](
            MOST_AT_ONCE, self._context.clock, lambda ends, _: None, lambda refusal: None, (Fenced,)
        )
        writer.waiting.extend(ends)
        error: Exception | None = None
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await writer.flush(store.finish)
        except (StoreUnavailable, Fenced, TimeoutError) as raised:
            error = raised
        if len(writer):
            error = error or writer.refused[0].error
            log.warning(
                "ends of runs could not be written; the next owner runs their tasks again",
                extra={"partition": self.key, "runs": len(writer), "error": str(error)},
            )

    # state ----------------------------------------------------------------------------------------

    def gauges(self) -> OrderedGauges:
        """Return the gauges of the partition."""
        in_flight = len(self.in_flight)
        if self.tenure is None:
            return OrderedGauges(0, in_flight, 0, 0.0, int(self.reloads > 0))
        schedule, now = self.tenure.schedule, self._context.clock.now()
        stale = schedule.due_before(now - round(STALE_SECONDS * MICROS))
        look_ahead = max((schedule.read_through.run_at - now) / MICROS, FURTHEST_BEHIND)
        return OrderedGauges(len(schedule), in_flight, stale, look_ahead, 0)

    def _describe(self, record: ScheduleRecord) -> ScheduleRecord:
        clock = self._context.clock
        if clock.monotonic() - self._began >= LONGEST_PAUSE:
            self.reloads, self.trouble = 0, None
        return msgspec.structs.replace(
            record,
            in_flight=len(self.in_flight),
            node=self._context.node,
            reloads=self.reloads,
            trouble=self.trouble,
            updated_at=clock.now(),
            partitions=self.partitions,
            is_paused=self._context.is_paused(self.key.queue),
        )
