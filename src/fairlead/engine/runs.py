"""The runs of a node: from a grabbed task that has its slot, through its executor, until its end is
written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any

from fairlead.clock import Clock
from fairlead.core.limits.limits import ConcurrencyPolicy
from fairlead.core.limits.slot_ledger import SlotLedger
from fairlead.declare.handler import ExecutorKind
from fairlead.engine.backlogs import Backlogs
from fairlead.engine.completion import Completion
from fairlead.engine.execution import CancelReason, Execution
from fairlead.engine.executors.loop import LoopExecutor
from fairlead.engine.executors.process import ProcessExecutor
from fairlead.engine.executors.thread import ThreadExecutor
from fairlead.engine.intake import Intake
from fairlead.engine.invocation import Committed, Invocation, Superseded
from fairlead.engine.ordering import Ordering
from fairlead.engine.outcome import failed, stopped, succeeded
from fairlead.model import Finish, State
from fairlead.ordered.queues import OrderedQueues
from fairlead.ports.observer import Observer

log = logging.getLogger("fairlead.node")


class Runs:
    """See the module. `open` before the first `start`; `tell` before either."""

    def __init__(
        self,
        booking: SlotLedger,
        freed: Callable[[Iterable[Hashable]], None],
        wake: Callable[[], None],
        observer: Observer,
        clock: Clock,
    ) -> None:
        """`freed`: is told which limits have room again. `wake`: that something may start."""
        self._booking = booking
        self._freed = freed
        self._wake = wake
        self._observer = observer
        self._clock = clock
        self.in_flight: dict[str, Execution] = {}
        """Grabbed and not yet completed, by task id."""
        self._ended = asyncio.Event()

    def tell(
        self,
        completion: Completion,
        ordering: Ordering,
        ordered: OrderedQueues,
        backlogs: Backlogs,
        intake: Intake,
    ) -> None:
        """Who is told of ends."""
        self._completion = completion
        self._ordering = ordering
        self._ordered = ordered
        self._backlogs = backlogs
        self._intake = intake

    # executors ------------------------------------------------------------------------------------

    def open(
        self,
        invocation: Invocation,
        threads: int,
        processes: int,
        application: str | None,
        guard: Callable[[], Any],
        group: asyncio.TaskGroup,
    ) -> Coroutine[Any, Any, None]:
        """Make the executors; the processes' keepers live in `group`. Answers what is to be run as
        long as the node lives."""
        self._loop = LoopExecutor(self._clock, invocation.on_loop, self._finished)
        self._threads = ThreadExecutor(self._clock, threads, invocation.in_thread, self._finished)
        self._processes = ProcessExecutor(
            self._clock, processes, application, invocation.around, self._finished, guard, group
        )
        return self._loop.run()

    async def close(self) -> int:
        """End the executors; answers how many handlers on the event loop went on though they were
        cancelled."""
        await self._processes.stop()
        self._threads.stop()
        return await self._loop.stop()

    def children(self) -> Collection[int]:
        """Process ids of the process executor."""
        return self._processes.children

    def start(self, executions: Sequence[Execution]) -> None:
        """They are booked and grabbed."""
        if len(executions) == 1 or all(
            _kind(execution) is ExecutorKind.LOOP for execution in executions
        ):
            kinds: Mapping[ExecutorKind, Sequence[Execution]] = {_kind(executions[0]): executions}
        else:
            found: dict[ExecutorKind, list[Execution]] = {}
            for execution in executions:
                found.setdefault(_kind(execution), []).append(execution)
            kinds = found
        for kind, those in kinds.items():
            if kind is ExecutorKind.LOOP:
                self._loop.start(those)
            elif kind is ExecutorKind.THREAD:
                self._threads.start(those)
            else:
                self._processes.start(those)

    def take_back(self) -> list[Execution]:
        """Those that have not begun; they will not begin here."""
        return [*self._loop.take_back(), *self._threads.take_back(), *self._processes.take_back()]

    # stopping -------------------------------------------------------------------------------------

    def stop_all(self) -> None:
        """The node ends."""
        for execution in list(self.in_flight.values()):
            if execution.is_running:
                self._stop(execution, CancelReason.SHUTDOWN)

    def stop_on(self, policy: ConcurrencyPolicy) -> None:
        """The permits of this limit are gone. A run in a thread goes on, and its permits stay
        booked, until it returns or the process ends."""
        for execution in list(self.in_flight.values()):
            if execution.is_running and self._booking.uses(execution.trigger, policy):
                execution.cancel(CancelReason.PERMITS)

    def overdue(self, execution: Execution) -> None:
        """It has run for longer than it may."""
        self._stop(execution, CancelReason.TIMEOUT)

    def taken_away(self, ids: Collection[str]) -> None:
        """The store has given these tasks to others, or ended them."""
        for task_id in ids:
            execution = self.in_flight.get(task_id)
            # One whose run has ended is only waiting for its completion; the store will say what
            # became of it.
            if execution is not None and execution.is_running:
                execution.cancel(CancelReason.CANCELLED)

    def _stop(self, execution: Execution, reason: CancelReason) -> None:
        """Stop a run. One in a thread cannot be interrupted: its end is written now, whenever the
        thread returns."""
        is_interruptible = execution.runner is not None
        execution.cancel(reason)
        if not is_interruptible and (finish := stopped(execution, self._clock.now())) is not None:
            execution.is_abandoned = True
            self._end(execution, finish)

    def stop_ordered(self, task_id: str, keeps_end: bool) -> None:
        """Stop the run of a task of an ordered queue; nobody waits for a thread that goes on."""
        execution = self.in_flight.get(task_id)
        if execution is None or (execution.started_at is not None and not execution.is_running):
            return
        if not execution.is_running:  # its executor will not begin it
            execution.cancel(CancelReason.SHUTDOWN if keeps_end else CancelReason.CANCELLED)
            return
        if keeps_end:
            self._stop(execution, CancelReason.SHUTDOWN)
            return
        is_interruptible = execution.runner is not None
        execution.cancel(CancelReason.CANCELLED)
        if not is_interruptible:
            log.warning(
                "a handler in a thread cannot be stopped; it may go on beside others",
                extra={"task_id": task_id},
            )
            execution.is_abandoned = True
            self.settled([execution])

    # ends -----------------------------------------------------------------------------------------

    def _finished(
        self, execution: Execution, result: Any, error: BaseException | None, now: int
    ) -> None:
        """A run has ended. Its slot is free from here on; its task is ours until the completion is
        written."""
        trigger = execution.trigger
        if freed := self._booking.free(trigger, self._clock.monotonic()):
            self._freed(freed)
        execution.is_running = False
        if self._backlogs.run_times:
            self._backlogs.ended(trigger, execution.started_at, now)
        if execution.is_abandoned:
            log.warning(
                "a stopped run has returned; what it returned is dropped",
                extra={"task_id": trigger.id},
            )
        elif isinstance(result, Committed):
            execution.is_done = result.finish.next_state == State.DONE
            self._observer.finished([(trigger, execution.grabbed, result.finish)])
            self.settled([execution])
        else:
            if execution.cancel_reason is not None:
                finish = stopped(execution, now)
            elif isinstance(error, Superseded):
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
        self._wake()

    def policy_failed(self, execution: Execution, error: BaseException) -> None:
        """It could not start: a policy has raised."""
        execution.started_at = self._clock.now()
        self._backlogs.ended(execution.trigger, None, execution.started_at)
        self._end(execution, failed(execution, error, execution.started_at))

    def _end(self, execution: Execution, finish: Finish) -> None:
        """Have the end of a run written."""
        if self._is_ordered(execution):
            self._observer.finished([(execution.trigger, execution.grabbed, finish)])
            self._ordered.ended(execution.trigger, finish)
        else:
            self._completion.add(execution, finish)

    def settled(self, executions: Sequence[Execution]) -> None:
        """Their ends are written, or nobody needs them: they are not this node's any more."""
        if self._ordered:
            ordered = [execution for execution in executions if self._is_ordered(execution)]
            known = [
                execution
                for execution in ordered
                if self.in_flight.get(execution.grabbed.id) is execution
            ]
            self._ordered.let_go([execution.trigger for execution in known])
            executions = [execution for execution in executions if not self._is_ordered(execution)]
            self.ordered_settled([execution.grabbed.id for execution in known])
        for execution in executions:
            self.in_flight.pop(execution.grabbed.id, None)
            if execution.trigger.ordering_key is not None and execution.is_booked:
                self._ordering.ended(execution.trigger, execution.is_done)
        self._intake.forget([execution.trigger for execution in executions])
        self._ended.set()
        self._wake()

    def ordered_settled(self, ids: Collection[str]) -> None:
        """The same, told by an ordered queue."""
        for task_id in ids:
            self.in_flight.pop(task_id, None)
        self._ended.set()
        self._wake()

    async def until_ended(self, deadline: float) -> None:
        """Wait until nothing is in flight, or until the deadline (monotonic seconds)."""
        while self.in_flight and self._clock.monotonic() < deadline:
            self._ended.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    await self._ended.wait()
            except TimeoutError:
                return

    # whose they are -------------------------------------------------------------------------------

    def __contains__(self, task_id: str) -> bool:
        return task_id in self.in_flight

    def held(self) -> Collection[str]:
        """Ids of the tasks that this node holds in the task store."""
        return [
            task_id
            for task_id, execution in self.in_flight.items()
            if not self._is_ordered(execution)
        ]

    def _is_ordered(self, execution: Execution) -> bool:
        return bool(self._ordered) and execution.trigger.queue in self._ordered


def _kind(execution: Execution) -> ExecutorKind:
    return ExecutorKind.LOOP if execution.handler is None else execution.handler.executor
