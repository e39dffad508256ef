"""The runs of a node: start claimed tasks on their executors, and complete them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairlead.clock import MICROS
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.declare.handler import ExecutorKind
from fairlead.engine.claimers import Claimers
from fairlead.engine.cluster_limits import ClusterLimits
from fairlead.engine.context import NodeContext
from fairlead.engine.execution import CancelReason, Execution, Superseded
from fairlead.engine.executors.invocation import Committed, Invocation
from fairlead.engine.executors.loop import Executor, LoopExecutor
from fairlead.engine.executors.process import ProcessExecutor
from fairlead.engine.executors.thread import ThreadExecutor
from fairlead.engine.lanes import Lanes
from fairlead.engine.outcome import failed, stopped, succeeded
from fairlead.errors import Snooze
from fairlead.model import Finish, State
from fairlead.pauses import event_or_pause

log = logging.getLogger("fairlead.node")

CLEAN_UP_SECONDS = 1.0
"""Seconds for interrupted runs to clean up."""

run_log = logging.getLogger("fairlead.runs")

_SNOOZE = f"{Snooze.__module__}.{Snooze.__qualname__}"


class Runs:
    """Runs of claimed tasks; call `open` before the first `start`."""

    def __init__(
        self,
        context: NodeContext,
        claimers: Claimers,
        lanes: Lanes,
        limits: ClusterLimits,
    ) -> None:
        self._context = context
        self._claimers = claimers
        self._lanes = lanes
        self._limits = limits
        self._ended = asyncio.Event()

    # executors ------------------------------------------------------------------------------------

    def open(self, group: asyncio.TaskGroup) -> None:
        """Make the executors; `group` owns the asyncio tasks that keep child processes."""
        clock, settings = self._context.clock, self._context.settings
        invocation = Invocation(self._context)
        self._loop = LoopExecutor(clock, invocation.on_loop, self._finished)
        self._threads = ThreadExecutor(
            clock, settings.threads, invocation.in_thread, self._finished
        )
        self._processes = ProcessExecutor(
            clock,
            settings.processes,
            settings.application,
            invocation.intercepted,
            self._finished,
            self._limits.guard,
            group,
        )
        self._executors: Mapping[ExecutorKind, Executor] = {
            ExecutorKind.LOOP: self._loop,
            ExecutorKind.THREAD: self._threads,
            ExecutorKind.PROCESS: self._processes,
        }

    async def run(self) -> None:
        """Raise an exception that breaks the event-loop executor."""
        await self._loop.run()

    async def stop(self) -> None:
        """Hand back tasks that have not started, wait for the others, then stop what still runs."""
        for claimer, executions in self._claimers.split(self._take_back()):
            if executions:
                await claimer.hand_back(executions)
        clock, in_flight = self._context.clock, self._context.in_flight
        await self._until_ended(clock.monotonic() + self._context.settings.drain)
        if late := [id for id, execution in in_flight.items() if not execution.is_refused]:
            log.warning("stopping tasks that did not end in time", extra={"tasks": sorted(late)})
            self._stop_all()
            # Give stopped runs time to clean up.
            await self._until_ended(clock.monotonic() + CLEAN_UP_SECONDS)

    async def close(self) -> int:
        """Close the executors; return how many asynchronous handlers ignored their cancellation."""
        await self._processes.stop()
        self._threads.stop()
        return await self._loop.stop()

    def children(self) -> Collection[int]:
        """Return the ids of the child processes."""
        return self._processes.children

    def start(self, executions: Sequence[Execution]) -> None:
        """Start runs of claimed tasks that hold their slots."""
        ledger, now = self._context.ledger, self._context.clock.monotonic()
        for execution in executions:
            ledger.started(execution.trigger, now)
        batches: dict[ExecutorKind, list[Execution]] = {}
        for execution in executions:
            handler = execution.handler
            kind = ExecutorKind.LOOP if handler is None else handler.executor
            batches.setdefault(kind, []).append(execution)
        for kind, batch in batches.items():
            self._executors[kind].start(batch)

    def _take_back(self) -> list[Execution]:
        """Return the runs that have not started, and do not start them."""
        return [each for executor in self._executors.values() for each in executor.take_back()]

    # stopping -------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        for execution in list(self._context.in_flight.values()):
            if execution.is_running:
                self._stop(execution, CancelReason.SHUTDOWN)

    def stop_on(self, policy: ConcurrencyPolicy) -> None:
        """Stop the runs of a limit whose permits expired. A run in a thread continues and keeps its
        permits until it returns or the process ends."""
        for execution in list(self._context.in_flight.values()):
            if execution.is_running and self._context.ledger.uses(execution.trigger, policy):
                execution.cancel(CancelReason.PERMITS)

    def overdue(self, execution: Execution) -> None:
        """Stop a run that exceeded its timeout; called again, end its attempt without waiting for
        the handler."""
        if execution.cancel_reason is None:
            self._stop(execution, CancelReason.TIMEOUT)
        else:
            self._abandon(execution)

    def taken_away(self, executions: Sequence[Execution]) -> None:
        """Stop the runs whose tasks the store gave to other nodes, or ended."""
        for execution in executions:
            # A run that has ended only waits for its completion, which the store may refuse.
            if execution.is_running or execution.started_at is None:
                execution.cancel(CancelReason.CANCELLED)

    def _stop(self, execution: Execution, reason: CancelReason) -> None:
        """Stop a run. A thread cannot be interrupted: write the end of its run now, before the
        thread returns."""
        is_interruptible = execution.interrupt is not None
        execution.cancel(reason)
        if not is_interruptible:
            self._abandon(execution)

    def _abandon(self, execution: Execution) -> None:
        """Write the end of a stopped run before its handler returns. The run keeps its slot until
        then."""
        if (finish := stopped(execution, self._context.clock.now())) is not None:
            execution.is_abandoned = True
            self._end(execution, finish)

    def stop_ordered(self, task_id: str, keeps_end: bool) -> None:
        """Stop the run of a task of an ordered queue, without waiting for its thread. `keeps_end`:
        whether the end of the run is still recorded."""
        execution = self._context.in_flight.get(task_id)
        if execution is None or (execution.started_at is not None and not execution.is_running):
            return
        if not execution.is_running:  # its executor will not begin it
            execution.cancel(CancelReason.SHUTDOWN if keeps_end else CancelReason.CANCELLED)
            return
        if keeps_end:
            self._stop(execution, CancelReason.SHUTDOWN)
            return
        is_interruptible = execution.interrupt is not None
        execution.cancel(CancelReason.CANCELLED)
        if not is_interruptible:
            log.warning(
                "a handler in a thread cannot be stopped; it may continue while others run",
                extra={"task_id": task_id},
            )
            execution.is_abandoned = True
            self.settled([execution])

    # ends -----------------------------------------------------------------------------------------

    def _finished(
        self, execution: Execution, result: Any, error: BaseException | None, now: int
    ) -> None:
        """Release the slot of a run that ended. This node keeps the task until its completion is
        written."""
        trigger = execution.trigger
        if freed := self._context.ledger.release(trigger, self._context.clock.monotonic()):
            self._context.events.on_freed(freed)
        execution.is_running = False
        if self._lanes.sharing.run_times:
            self._lanes.ended(trigger, execution.started_at, now)
        if execution.is_abandoned:
            log.warning(
                "a stopped run has returned; its result is dropped",
                extra={"task_id": trigger.id},
            )
        elif type(result) is Committed:
            execution.is_done = result.finish.next_state == State.DONE
            log_end(execution, result.finish, self._context.settings.log_runs)
            self._context.observer.finished([(trigger, execution.claimed, result.finish)])
            self.settled([execution])
        else:
            if execution.cancel_reason is not None:
                finish = stopped(execution, now)
            elif type(error) is Superseded:
                finish = None
            elif error is not None:
                finish = failed(execution, error, now)
            else:
                finish = succeeded(execution, result, now)
            if finish is not None:
                execution.is_done = finish.next_state == State.DONE
                self._end(execution, finish)
            else:
                self.settled([execution])
        if execution.started_at is None and execution.cancel_reason is None:
            self._context.events.on_not_held(trigger)
        self._context.events.on_ready()

    def policy_failed(self, execution: Execution, error: BaseException) -> None:
        """Fail the attempt of a task whose concurrency policy raised."""
        execution.started_at = self._context.clock.now()
        self._lanes.ended(execution.trigger, None, execution.started_at)
        self._end(execution, failed(execution, error, execution.started_at))

    def _end(self, execution: Execution, finish: Finish) -> None:
        """Log the end of a run, and queue it for its completion."""
        log_end(execution, finish, self._context.settings.log_runs)
        self._claimers.of(execution.trigger.queue).end(execution, finish)

    def settled(self, executions: Sequence[Execution]) -> None:
        """Drop runs whose ends the store has recorded or refused."""
        was_behind = self._context.is_behind
        for claimer, batch in self._claimers.split(executions):
            claimer.settle(batch)
        self._ended.set()
        # The slots of these runs are free already; only a key, or room for completions, is new.
        if was_behind or any(each.trigger.ordering_key is not None for each in executions):
            self._context.events.on_ready()

    def end_refused(self, execution: Execution) -> None:
        """Stop waiting for a run whose end the store refuses."""
        execution.is_refused = True
        self._ended.set()

    def ordered_settled(self, ids: Collection[str]) -> None:
        """Drop tasks of an ordered queue whose ends are written."""
        for task_id in ids:
            self._context.in_flight.pop(task_id, None)
        self._ended.set()
        self._context.events.on_ready()

    def ordered_end_refused(self, task_id: str) -> None:
        """Stop waiting for a run of an ordered queue whose end the store refuses."""
        if (execution := self._context.in_flight.get(task_id)) is not None:
            self.end_refused(execution)

    async def _until_ended(self, deadline: float) -> None:
        """Wait until nothing is in flight but ends that the store refuses, or until the deadline
        (monotonic seconds)."""
        in_flight, clock = self._context.in_flight, self._context.clock
        while (
            any(not execution.is_refused for execution in in_flight.values())
            and (left := deadline - clock.monotonic()) > 0
        ):
            self._ended.clear()
            await event_or_pause(self._ended, left)


def log_end(execution: Execution, finish: Finish, log_runs: bool) -> None:
    """Log how a run ended: at ERROR with its traceback if the task needs a person, at INFO if it
    failed and the task runs again, else at DEBUG, or with `log_runs` at INFO."""
    has_failed = finish.error_type not in (None, _SNOOZE)
    level, event = logging.DEBUG, "run ended"
    if finish.next_state == State.ERROR:
        level, event = logging.ERROR, "task needs a person"
    elif has_failed:
        level, event = logging.INFO, "run failed; the task runs again"
    elif log_runs:
        level = logging.INFO
    if not run_log.isEnabledFor(level):
        return
    trigger, ended_at = execution.trigger, finish.finished_at
    fields: dict[str, object] = {
        "task_id": finish.id,
        "task_name": trigger.name,
        "queue": trigger.queue,
        "attempt": execution.claimed.attempt,
        "outcome": str(finish.outcome),
        "seconds": (ended_at - (finish.started_at or ended_at)) / MICROS,
    }
    if finish.run_at is not None:
        fields["retry_in"] = max(0, finish.run_at - ended_at) / MICROS
    text = finish.error_text or ""
    if has_failed:
        fields |= {"error_type": finish.error_type, "error": text.partition("\n")[0]}
    record = run_log.makeRecord(run_log.name, level, __file__, 0, event, (), None, extra=fields)
    if level == logging.ERROR:
        # On further lines, which formatters print that know nothing of our fields.
        record.exc_text = f"{finish.error_type}: {text}".rstrip()
    run_log.handle(record)
