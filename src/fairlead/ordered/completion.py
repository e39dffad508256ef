"""Ends of a partition's runs, written in batches: the ends that come during a write form the next
batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from fairlead.batch_writer import BatchWriter, Refusal
from fairlead.clock import Clock
from fairlead.errors import StoreUnavailable
from fairlead.model import IncidentReport, RunEnd
from fairlead.ports.schedule_store import Fenced
from fairlead.refused_writes import RefusedWrites

log = logging.getLogger("fairlead.ordered")

MOST_AT_ONCE = 500
"""Maximum number of ends in one write."""

Write = Callable[[Sequence[RunEnd]], Awaitable[None]]


class OrderedCompletion:
    """Ends that the store does not have yet. If a partition fails, its next tenure writes the
    waiting ends.

    An end that the store refuses alone is tried again. Later tasks of its ordering key wait
    meanwhile, and the ends of other keys are written.
    """

    def __init__(
        self,
        clock: Clock,
        on_written: Callable[[Sequence[RunEnd]], None],
        on_end_refused: Callable[[RunEnd], None],
        on_incidents: Callable[[Sequence[IncidentReport]], None],
    ) -> None:
        self._on_end_refused = on_end_refused
        self._refused = RefusedWrites("end of a run", log, clock, on_incidents)
        self._writer = BatchWriter[RunEnd, None](
            MOST_AT_ONCE,
            clock,
            lambda ends, _: on_written(ends),
            self._on_refused,
            (Fenced,),
        )

    @property
    def refused(self) -> int:
        """Number of ends that the store refuses."""
        return len(self._writer.refused)

    def add(self, end: RunEnd) -> None:
        """Add the end of a run."""
        self._writer.add(end)

    def drop_refused(self, task_id: str) -> bool:
        """Drop the end of a task if the store refuses it; return whether it did."""
        return self._writer.drop_refused(lambda end: end.scheduled.task.id == task_id)

    def clear(self) -> list[RunEnd]:
        """Drop all ends, and return them."""
        return self._writer.clear()

    async def run(self, write: Write) -> None:
        """Write ends until cancelled. Raise Fenced, or StoreUnavailable unless the store refuses
        single ends."""
        await self._writer.run(write)

    async def run_retries(self, write: Write) -> None:
        """Try refused ends again until cancelled. Raise Fenced, or StoreUnavailable unless the
        store refuses single ends."""
        await self._writer.run_retries(write)

    def _on_refused(self, refusal: Refusal[RunEnd]) -> None:
        task = refusal.entry.scheduled.task
        self._refused.on_refused(refusal.error, self.refused, task.id, task.queue, task.name)
        self._on_end_refused(refusal.entry)


async def write_once(
    ends: Sequence[RunEnd], write: Write, clock: Clock, seconds: float
) -> tuple[int, Exception | None]:
    """Try once, for `seconds` at most, to write these ends. Return how many the store does not
    have, and the error of the last one."""
    last: Exception | None = None
    writer = BatchWriter[RunEnd, None](
        MOST_AT_ONCE, clock, lambda ends, _: None, lambda refusal: None, (Fenced,)
    )
    for end in ends:
        writer.add(end)
    try:
        async with asyncio.timeout(seconds):
            await writer.flush(write)
    except (StoreUnavailable, Fenced, TimeoutError) as error:
        last = error
    for refusal in writer.refused:
        last = last or refusal.error
    return len(writer), last
