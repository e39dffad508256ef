"""Completion of ended runs, in batches: while one is written, the next one collects."""

from __future__ import annotations

import asyncio
import logging

from fairlead.engine.context import NodeContext
from fairlead.engine.execution import Execution
from fairlead.engine.outages import outage_pause
from fairlead.engine.outcome import error_type
from fairlead.errors import BatchTooLarge, StoreUnavailable
from fairlead.model import Finish, State

log = logging.getLogger("fairlead.completion")

MOST_AT_ONCE = 1000
"""Maximum number of finishes in one batch."""

REPEAT_SECONDS = 60.0
"""Seconds between two log lines about one outage of the store."""

LONGEST_PAUSE = 30.0
"""Longest pause, in seconds, between two tries to write one end that the limits of the server
refuse."""

STOP_SECONDS = 10.0
"""Longest time, in seconds, for the last completions when the node stops."""


class Completion:
    """Write each finish until the store accepts or refuses it."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._waiting: list[tuple[Execution, Finish]] = []
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._writing = 0
        self._most = MOST_AT_ONCE
        """Maximum number of finishes in one batch that the limits of the server allow."""
        self._log_at: float | None = None
        """Monotonic seconds from which a failure of the store is logged again; None without an
        outage."""

    @property
    def unwritten(self) -> int:
        """Number of finishes that the store does not have yet."""
        return len(self._waiting) + self._writing

    def add(self, execution: Execution, finish: Finish) -> None:
        """Add the finish of a run that ended."""
        self._waiting.append((execution, finish))
        self._more.set()

    async def run(self) -> None:
        """Write finishes until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            await self.flush()

    async def stop(self) -> None:
        """Wait until `run` has written every finish, at most STOP_SECONDS."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self.unwritten:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning(
                "node stops with unwritten completions; their tasks run again",
                extra={"tasks": self.unwritten},
            )

    async def flush(self) -> None:
        """Write all waiting finishes."""
        while self._waiting:
            batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            self._writing = len(batch)
            try:
                await self._write(batch)
            except BatchTooLarge as error:
                self._waiting[:0] = batch
                self._halve(len(batch), error)
            except asyncio.CancelledError:
                self._waiting[:0] = batch
                raise
            finally:
                self._writing = 0
        self._idle.set()

    async def _write(
        self, batch: list[tuple[Execution, Finish]], tried_before: bool = False
    ) -> None:
        """Write the batch. `tried_before`: an earlier write of it may have succeeded."""
        context = self._context
        finishes = [finish for _, finish in batch]
        refusals = 0
        while True:
            try:
                refused, notification = await context.store.complete(context.name, finishes)
                break
            except BatchTooLarge as error:
                if len(batch) > 1:
                    raise
                refusals += 1
                self._log_failure(logging.ERROR, "the server refuses completions", error)
                await context.clock.sleep(
                    min(outage_pause() * 2.0 ** min(refusals, 10), LONGEST_PAUSE)
                )
            except StoreUnavailable as error:
                self._log_failure(logging.WARNING, "completions wait for the store", error)
                tried_before = True
                await context.clock.sleep(outage_pause())
            except Exception as error:
                # A finish that the store cannot take must not hold back the others.
                if len(batch) == 1:
                    batch, finishes = self._unwritable(batch[0], error)
                    continue
                log.error(
                    "a batch of completions was refused; writing them one by one", exc_info=error
                )
                for entry in batch:
                    await self._write([entry], tried_before)
                return
        if self._log_at is not None:
            self._log_at = None
            log.info("completions are written again")
        if notification is not None:
            context.channel.announce(notification)
        context.events.on_settled([execution for execution, _ in batch])
        if refused:
            lost = set(refused)
            if not tried_before:  # after a lost result, our own write may have raised the version
                context.observer.counted("refused_completions", len(lost))
                for execution, finish in batch:
                    if finish.id in lost:
                        log.warning(
                            "a finished run was not counted: the task had been given to another"
                            " node",
                            extra={
                                "task_id": finish.id,
                                "version": finish.version,
                                "queue": execution.trigger.queue,
                            },
                        )
            batch = [(execution, finish) for execution, finish in batch if finish.id not in lost]
        context.observer.finished(
            [(execution.trigger, execution.claimed, finish) for execution, finish in batch]
        )
        for execution, finish in batch:
            if finish.next_state == State.ERROR:
                log.error(
                    "task needs a person",
                    extra={
                        "task_id": finish.id,
                        "task_name": execution.trigger.name,
                        "queue": execution.trigger.queue,
                        "attempt": execution.claimed.attempt,
                        "error_type": finish.error_type,
                    },
                )

    def _halve(self, refused: int, error: BatchTooLarge) -> None:
        self._most = refused // 2
        log.warning(
            "the server refuses a batch of completions of this size; writing smaller ones",
            extra={"refused": refused, "tasks": self._most, "error": str(error)},
        )

    def _log_failure(self, level: int, text: str, error: StoreUnavailable) -> None:
        """Log that the store does not take completions: once, and every REPEAT_SECONDS."""
        now = self._context.clock.monotonic()
        if self._log_at is None or now >= self._log_at:
            self._log_at = now + REPEAT_SECONDS
            log.log(level, text, extra={"waiting": self.unwritten, "error": str(error)})

    def _unwritable(
        self, entry: tuple[Execution, Finish], error: Exception
    ) -> tuple[list[tuple[Execution, Finish]], list[Finish]]:
        execution, finish = entry
        log.error(
            "a completion cannot be written; its task goes to ERROR",
            exc_info=error,
            extra={"task_id": finish.id},
        )
        plain = Finish(
            finish.id,
            finish.version,
            "failed",
            State.ERROR,
            finish.started_at,
            finish.finished_at,
            error_type(error),
            "the end of this run could not be written; see the worker's log",
        )
        if finish == plain:
            raise error  # the plain finish cannot be written either: end the node
        return [(execution, plain)], [plain]
