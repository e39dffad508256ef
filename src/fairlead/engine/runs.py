"""The runs of a node: start claimed tasks on their executors, and complete them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fairlead.clock import MICROS
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.usual import UsualTimes
from fairlead.declare.handler import ExecutorKind
from fairlead.engine.claimers import Claimers
from fairlead.engine.cluster_limits import ClusterLimits
from fairlead.engine.context import NodeContext
from fairlead.engine.executors.invocation import Invocation
from fairlead.engine.executors.loop import Executor, LoopExecutor
from fairlead.engine.executors.process import ProcessExecutor
from fairlead.engine.executors.thread import ThreadExecutor
from fairlead.engine.lanes import Lanes
from fairlead.engine.outcome import failed, stopped, succeeded
from fairlead.engine.run import CancelReason, Run, Superseded
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
        self.usual = UsualTimes()
        """Run times by name."""

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
        for claimer, runs in self._claimers.split(self._take_back()):
            if runs:
                await claimer.hand_back(runs)
        clock, in_flight = self._context.clock, self._context.in_flight
        await self._until_ended(clock.monotonic() + self._context.settings.drain)
        if late := [id for id, run in in_flight.items() if not run.is_refused]:
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

    def start(self, runs: Sequence[Run]) -> None:
        """Start runs of claimed tasks that hold their slots."""
        ledger, now = self._context.ledger, self._context.clock.monotonic()
        for run in runs:
            ledger.started(run.trigger, now)
        batches: dict[ExecutorKind, list[Run]] = {}
        for run in runs:
            handler = run.handler
            kind = ExecutorKind.LOOP if handler is None else handler.executor_kind
            batches.setdefault(kind, []).append(run)
        for kind, batch in batches.items():
            self._executors[kind].start(batch)

    def _take_back(self) -> list[Run]:
        """Return the runs that have not started, and do not start them."""
        return [each for executor in self._executors.values() for each in executor.take_back()]

    # stopping -------------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        for run in list(self._context.in_flight.values()):
            if run.is_running:
                self._stop(run, CancelReason.SHUTDOWN)

    def stop_on(self, policy: ConcurrencyPolicy) -> None:
        """Stop the runs of a limit whose permits expired. A run in a thread continues and keeps its
        permits until it returns or the process ends."""
        for run in list(self._context.in_flight.values()):
            if run.is_running and self._context.ledger.uses(run.trigger, policy):
                run.cancel(CancelReason.PERMITS)

    def overdue(self, run: Run) -> None:
        """Stop a run that exceeded its timeout; called again, end its attempt without waiting for
        the handler."""
        if run.cancel_reason is None:
            self._stop(run, CancelReason.TIMEOUT)
        else:
            self._abandon(run)

    def taken_away(self, runs: Sequence[Run]) -> None:
        """Stop the runs whose tasks the store gave to other nodes, or ended."""
        for run in runs:
            # A run that has ended only waits for its completion, which the store may refuse.
            if run.is_running or run.started_at is None:
                run.cancel(CancelReason.CANCELLED)

    def _stop(self, run: Run, reason: CancelReason) -> None:
        """Stop a run. A thread cannot be interrupted: write the end of its run now, before the
        thread returns."""
        is_interruptible = run.interrupt is not None
        run.cancel(reason)
        if not is_interruptible:
            self._abandon(run)

    def _abandon(self, run: Run) -> None:
        """Write the end of a stopped run before its handler returns. The run keeps its slot until
        then."""
        if (finish := stopped(run, self._context.clock.now())) is not None:
            run.is_abandoned = True
            self._complete(run, finish)

    def stop_ordered(self, task_id: str, keeps_end: bool) -> None:
        """Stop the run of a task of an ordered queue, without waiting for its thread. `keeps_end`:
        whether the end of the run is still recorded."""
        run = self._context.in_flight.get(task_id)
        if run is None or (run.started_at is not None and not run.is_running):
            return
        if not run.is_running:  # its executor will not begin it
            run.cancel(CancelReason.SHUTDOWN if keeps_end else CancelReason.CANCELLED)
            return
        if keeps_end:
            self._stop(run, CancelReason.SHUTDOWN)
            return
        is_interruptible = run.interrupt is not None
        run.cancel(CancelReason.CANCELLED)
        if not is_interruptible:
            log.warning(
                "a handler in a thread cannot be stopped; it may continue while others run",
                extra={"task_id": task_id},
            )
            run.is_abandoned = True
            self.settled([run])

    # ends -----------------------------------------------------------------------------------------

    def _finished(self, run: Run, result: Any, error: BaseException | None, now: int) -> None:
        """Release the slot of a run that ended. This node keeps the task until its completion is
        written."""
        trigger = run.trigger
        if freed := self._context.ledger.release(trigger, self._context.clock.monotonic()):
            self._context.events.on_freed(freed)
        run.is_running = False
        if run.started_at is not None:
            self.usual.ended(trigger.name, now - run.started_at)
        if self._lanes.sharing.run_times:
            self._lanes.ended(trigger, run.started_at, now)
        if run.is_abandoned:
            log.warning(
                "a stopped run has returned; its result is dropped",
                extra={"task_id": trigger.id},
            )
        elif type(result) is Finish:  # its transaction has completed the task
            self._end(run, result)
            self._context.observer.finished([run])
            self.settled([run])
        else:
            if run.cancel_reason is not None:
                finish = stopped(run, now)
            elif type(error) is Superseded:
                finish = None
            elif error is not None:
                finish = failed(run, error, now)
            else:
                finish = succeeded(run, result, now)
            if finish is not None:
                self._complete(run, finish)
            else:
                self.settled([run])
        if run.started_at is None and run.cancel_reason is None:
            self._context.events.on_not_held(trigger)
        self._context.events.on_ready()

    def policy_failed(self, run: Run, error: BaseException) -> None:
        """Fail the attempt of a task whose concurrency policy raised."""
        run.started_at = self._context.clock.now()
        self._lanes.ended(run.trigger, None, run.started_at)
        self._complete(run, failed(run, error, run.started_at))

    def _complete(self, run: Run, finish: Finish) -> None:
        """Record and log the end of a run, and queue it for its completion."""
        self._end(run, finish)
        self._claimers.of(run.queue).complete(run)

    def _end(self, run: Run, finish: Finish) -> None:
        run.end(finish)
        log_end(run, finish, self._context.settings.log_runs)

    def settled(self, runs: Sequence[Run]) -> None:
        """Drop runs whose ends the store has recorded or refused."""
        was_behind = self._context.is_behind
        for claimer, batch in self._claimers.split(runs):
            claimer.settle(batch)
        self._ended.set()
        # The slots of these runs are free already; only a key, or room for completions, is new.
        if was_behind or any(each.trigger.ordering_key is not None for each in runs):
            self._context.events.on_ready()

    def end_refused(self, run: Run) -> None:
        """Stop waiting for a run whose end the store refuses."""
        run.is_refused = True
        self._ended.set()

    def ordered_settled(self, ids: Collection[str]) -> None:
        """Drop tasks of an ordered queue whose ends are written."""
        for task_id in ids:
            self._context.in_flight.pop(task_id, None)
        self._ended.set()
        self._context.events.on_ready()

    def ordered_end_refused(self, task_id: str) -> None:
        """Stop waiting for a run of an ordered queue whose end the store refuses."""
        if (run := self._context.in_flight.get(task_id)) is not None:
            self.end_refused(run)

    async def _until_ended(self, deadline: float) -> None:
        """Wait until nothing is in flight but ends that the store refuses, or until the deadline
        (monotonic seconds)."""
        in_flight, clock = self._context.in_flight, self._context.clock
        while (
            any(not run.is_refused for run in in_flight.values())
            and (left := deadline - clock.monotonic()) > 0
        ):
            self._ended.clear()
            await event_or_pause(self._ended, left)


def log_end(run: Run, finish: Finish, log_runs: bool) -> None:
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
    trigger, ended_at = run.trigger, finish.finished_at
    fields: dict[str, object] = {
        "task_id": finish.id,
        "task_name": trigger.name,
        "queue": trigger.queue,
        "attempt": run.claimed.attempt,
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
