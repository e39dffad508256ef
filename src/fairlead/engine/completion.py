"""Completion of ended runs, in batches: while one is written, the next one collects."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence

from fairlead.batch_writer import BatchWriter, Refusal, Write
from fairlead.engine.context import NodeContext
from fairlead.engine.run import Run
from fairlead.errors import BatchTooLarge, FairleadError, StoreUnavailable
from fairlead.pauses import outage_pause
from fairlead.ports.task_store import Completed
from fairlead.refused_writes import RefusedWrites, error_line

log = logging.getLogger("fairlead.completion")

MOST_AT_ONCE = 1000
"""Maximum number of finishes in one batch."""

REPEAT_SECONDS = 60.0
"""Seconds between two log lines about one outage of the store."""

STOP_SECONDS = 10.0
"""Longest time, in seconds, for the last completions when the node stops."""

_MOST_SHOWN = 20
"""Unwritten tasks that a stopping node names."""


class Completion:
    """Write each finish until the store accepts it, or has given its task to another node.

    A finish that the store refuses alone is tried again until the node ends. Its task stays
    PROCESSING on this node, without a slot, and later tasks of its ordering key wait. A node with
    MOST_WAITING unwritten finishes (`fairlead.engine.context`) claims no task.
    """

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._refused = RefusedWrites("completion", log, context.clock, context.events.on_incidents)
        self._writer = BatchWriter[Run, Completed](
            MOST_AT_ONCE, context.clock, self._on_written, self._on_refused
        )
        self._log_at: dict[str, float] = {}
        """Monotonic seconds from which an event is logged again."""
        self._is_away = False
        """Whether the last log line says that the store is unavailable."""

    @property
    def unwritten(self) -> int:
        """Number of finishes that the store does not have yet."""
        return len(self._writer)

    def add(self, run: Run) -> None:
        """Add the finish of a run that ended."""
        self._writer.add(run)

    async def run(self) -> None:
        """Write finishes until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._through_outages(self._writer.run))
                group.create_task(self._through_outages(self._writer.run_retries))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def stop(self) -> None:
        """Wait until `run` has written every finish that the store accepts, at most
        STOP_SECONDS."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._writer.finish()
        except TimeoutError:
            pass
        if not self.unwritten:
            return
        refused = self._writer.refused
        log.warning(
            "node stops with unwritten completions; their tasks run again",
            extra={
                "tasks": self.unwritten,
                "refused": [each.entry.claimed.id for each in refused[:_MOST_SHOWN]],
                "error": error_line(refused[0].error) if refused else None,
            },
        )

    # the store ------------------------------------------------------------------------------------

    async def _through_outages(
        self, write: Callable[[Write[Run, Completed]], Awaitable[None]]
    ) -> None:
        """Write until cancelled, also after outages of the store."""
        while True:
            try:
                await write(self._write)
            except StoreUnavailable as error:
                if self._warn("completions wait for the store", self.unwritten, error):
                    self._is_away = True
                await self._context.clock.sleep(outage_pause())

    async def _write(self, runs: Sequence[Run]) -> Completed:
        context, finishes = self._context, [run.finish for run in runs]
        try:
            completed = await context.claims.complete(context.name, finishes)
        except Exception as error:
            if isinstance(error, BatchTooLarge):
                event = "the store refuses a batch of completions; writing smaller ones"
                self._warn(event, len(runs), error)
            elif isinstance(error, FairleadError):
                for run in runs:
                    run.is_tried = True
            raise
        if self._is_away:
            self._is_away = False
            log.info("completions are written again")
        return completed

    def _warn(self, event: str, completions: int, error: FairleadError) -> bool:
        """Log an event at most every REPEAT_SECONDS. Return whether it was logged."""
        now = self._context.clock.monotonic()
        if now < self._log_at.get(event, -math.inf):
            return False
        self._log_at[event] = now + REPEAT_SECONDS
        log.warning(event, extra={"completions": completions, "error": str(error)})
        return True

    # results of a write ---------------------------------------------------------------------------

    def _on_refused(self, refusal: Refusal[Run]) -> None:
        run, refused = refusal.entry, [each.entry.claimed.id for each in self._writer.refused]
        trigger = run.trigger
        self._refused.on_refused(refusal.error, refused, trigger.id, trigger.queue, trigger.name)
        self._context.events.on_end_refused(run)

    def _on_written(self, runs: Sequence[Run], completed: Completed) -> None:
        context = self._context
        if completed.notification is not None:
            context.channel.announce(completed.notification)
        context.events.on_settled(runs)
        if completed.refused:
            lost = set(completed.refused)
            # After a lost response, our own write may have raised the version.
            taken = [run for run in runs if run.claimed.id in lost and not run.is_tried]
            if taken:
                context.observer.counted("refused_completions", len(taken))
            for run in taken:
                log.warning(
                    "a finished run was not counted: the task had been given to another node",
                    extra={
                        "task_id": run.claimed.id,
                        "version": run.claimed.version,
                        "queue": run.queue,
                    },
                )
            runs = [run for run in runs if run.claimed.id not in lost]
        context.observer.finished(runs)
