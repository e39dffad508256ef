"""Completion of ended runs, in batches: while one is written, the next one collects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from fairlead.batch_writer import BatchWriter, StillFailing
from fairlead.core.batches import Refusal
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.engine.outages import outage_pause
from fairlead.engine.outcome import error_type
from fairlead.errors import BatchTooLarge, FairleadError, StoreUnavailable, WriteRefused
from fairlead.model import Finish, State
from fairlead.ports.task_store import Completed
from fairlead.refused_writes import RefusedWrites, error_line

log = logging.getLogger("fairlead.completion")

MOST_AT_ONCE = 1000
"""Maximum number of finishes in one batch."""

REPEAT_SECONDS = 60.0
"""Seconds between two log lines about one outage of the store."""

OUTAGES = 5
"""Tries of one batch at an unavailable store, before other finishes are tried: this batch may be
what makes the store unavailable."""

PLAIN_AFTER = 6
"""Refusals of a finish with a result or an error text, after which it is also tried without
them."""

STOP_SECONDS = 10.0
"""Longest time, in seconds, for the last completions when the node stops."""

_MOST_SHOWN = 20
"""Unwritten tasks that a stopping node names."""


class End:
    """The end of a run on its way to the store."""

    __slots__ = ("execution", "finish", "is_tried", "refusals")

    def __init__(self, execution: Execution, finish: Finish) -> None:
        self.execution = execution
        self.finish = finish
        self.is_tried = False
        """Whether an earlier write of the end may have succeeded."""
        self.refusals = 0


class Completion:
    """Write each finish until the store accepts it, or has given its task to another node.

    A finish that the store refuses alone is tried again, with growing pauses, until the node ends.
    Its task stays PROCESSING on this node, without a slot, and later tasks of its ordering key
    wait. A node with MOST_REFUSED of them in a queue (see `fairlead.engine.runs`) starts no other
    task of this queue; a node with MOST_WAITING others (`fairlead.engine.context`) claims no task.
    """

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._refused = RefusedWrites("completion", log, context.clock, context.events.on_incidents)
        self._writer = BatchWriter[End, Completed](
            MOST_AT_ONCE,
            context.clock,
            self._on_written,
            self._on_refused,
            on_too_large=self._refused.on_too_large,
        )
        self._tries = OUTAGES
        """Tries of the next write at an unavailable store."""
        self._log_at: float | None = None
        """Monotonic seconds from which a failure of the store is logged again; None without an
        outage."""

    @property
    def unwritten(self) -> int:
        """Number of finishes that the store does not have yet."""
        return len(self._writer)

    def add(self, execution: Execution, finish: Finish) -> None:
        """Add the finish of a run that ended."""
        self._writer.add(End(execution, finish))

    async def run(self) -> None:
        """Write finishes until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._writer.run(self._write))
                group.create_task(self._writer.run_retries(self._write))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def flush(self) -> None:
        """Write all waiting finishes, and defer those that the store refuses."""
        await self._writer.flush(self._write)

    async def stop(self) -> None:
        """Wait until `run` has written every finish, at most STOP_SECONDS; try refused ones a last
        time."""
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
                "refused": [each.entry.finish.id for each in refused[:_MOST_SHOWN]],
                "error": error_line(refused[0].error) if refused else None,
            },
        )

    # the store ------------------------------------------------------------------------------------

    async def _write(self, ends: Sequence[End]) -> Completed:
        """Write the ends. Raise StillFailing after OUTAGES tries at an unavailable store, or after
        one if an earlier write failed so; else the error of a store that refuses the ends."""
        if ends[0].refusals:  # a pause of its own comes before the next try
            try:
                return await self._complete(ends)
            except WriteRefused:
                raise
            except StoreUnavailable as error:
                raise StillFailing from error
        for _ in range(self._tries):
            try:
                completed = await self._complete(ends)
                break
            except WriteRefused:
                raise
            except StoreUnavailable as error:
                outage = error
                self._log_outage(error)
                await self._context.clock.sleep(outage_pause())
        else:
            self._tries = 1
            raise StillFailing from outage
        self._tries = OUTAGES
        if self._log_at is not None:
            self._log_at = None
            log.info("completions are written again")
        return completed

    async def _complete(self, ends: Sequence[End]) -> Completed:
        context = self._context
        try:
            return await context.store.complete(context.name, [end.finish for end in ends])
        except Exception as error:
            if isinstance(error, FairleadError) and not isinstance(error, BatchTooLarge):
                for end in ends:
                    end.is_tried = True
            if len(ends) > 1 or (plain := _plain_of(ends[0], error)) is None:
                raise
            completed = await context.store.complete(context.name, [plain])
            ends[0].finish = plain
            log.error(
                "a completion cannot be written; its task goes to ERROR",
                exc_info=error,
                extra={"task_id": plain.id},
            )
            return completed

    def _log_outage(self, error: StoreUnavailable) -> None:
        """Log that the store is unavailable: once, and every REPEAT_SECONDS."""
        now = self._context.clock.monotonic()
        if self._log_at is None or now >= self._log_at:
            self._log_at = now + REPEAT_SECONDS
            log.warning(
                "completions wait for the store",
                extra={"waiting": self.unwritten, "error": str(error)},
            )

    # results of a write ---------------------------------------------------------------------------

    def _on_refused(self, refusal: Refusal[End], is_alone: bool) -> None:
        end = refusal.entry
        end.refusals = refusal.times
        trigger, finish = end.execution.trigger, end.finish
        self._refused.on_refused(
            refusal, is_alone, len(self._writer.refused), finish.id, trigger.queue, trigger.name
        )
        self._context.events.on_end_refused(end.execution)

    def _on_written(self, ends: Sequence[End], completed: Completed) -> None:
        context = self._context
        if completed.notification is not None:
            context.channel.announce(completed.notification)
        context.events.on_settled([end.execution for end in ends])
        if completed.refused:
            lost = set(completed.refused)
            # After a lost response, our own write may have raised the version.
            taken = [end for end in ends if end.finish.id in lost and not end.is_tried]
            if taken:
                context.observer.counted("refused_completions", len(taken))
            for end in taken:
                log.warning(
                    "a finished run was not counted: the task had been given to another node",
                    extra={
                        "task_id": end.finish.id,
                        "version": end.finish.version,
                        "queue": end.execution.trigger.queue,
                    },
                )
            ends = [end for end in ends if end.finish.id not in lost]
        context.observer.finished(
            [(end.execution.trigger, end.execution.claimed, end.finish) for end in ends]
        )
        for end in ends:
            if end.finish.next_state == State.ERROR:
                log.error(
                    "task needs a person",
                    extra={
                        "task_id": end.finish.id,
                        "task_name": end.execution.trigger.name,
                        "queue": end.execution.trigger.queue,
                        "attempt": end.execution.claimed.attempt,
                        "error_type": end.finish.error_type,
                    },
                )


def _plain_of(end: End, error: Exception) -> Finish | None:
    """Return the finish to try in place of one that was refused often, and whose result or error
    text may be the reason; None if there is none."""
    finish = end.finish
    has_text = (
        finish.result is not None or finish.error_text is not None or finish.notes is not None
    )
    if isinstance(error, StoreUnavailable) or end.refusals < PLAIN_AFTER or not has_text:
        return None
    return Finish(
        finish.id,
        finish.version,
        "failed",
        State.ERROR,
        finish.started_at,
        finish.finished_at,
        error_type(error),
        "the end of this run could not be written; see the worker's log",
        row=finish.row,
    )
