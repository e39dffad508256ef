"""Tasks of one partition that its schedule has handed out, until their ends are written.

A task waits in the node's table, is claimed, runs, and ends before its end is in the store. A run
outlives a failure of the partition: a later tenure writes its end. An end that the store refuses
alone is tried again; later tasks of its ordering key wait meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from fairlead.batch_writer import BatchWriter, Refusal
from fairlead.core.schedule.schedule import Schedule
from fairlead.model import ClaimedTask, Finish, RunEnd, ScheduledTask, Trigger, TriggerPath
from fairlead.ordered.context import OrderedContext
from fairlead.ordered.ending import end_of_run
from fairlead.pauses import TimedEvent
from fairlead.ports.schedule_store import Fenced
from fairlead.refused_writes import RefusedWrites

log = logging.getLogger("fairlead.ordered")

MOST_AT_ONCE = 500
"""Maximum number of ends in one write."""


class LoadedSchedule(Protocol):
    """The schedule of the partition's current tenure."""

    @property
    def schedule(self) -> Schedule:
        """The schedule itself."""

    @property
    def fence(self) -> int:
        """Range id of the tenure, the fencing token of its runs."""

    def poke(self) -> None:
        """Read the schedule again, because it changed."""


class InFlight:
    """Tasks in the table and runs of one partition, across tenures. `loaded` is the schedule of the
    current tenure."""

    def __init__(self, context: OrderedContext) -> None:
        self._context = context
        self.loaded: LoadedSchedule | None = None
        self._refused = RefusedWrites("end of a run", log, context.clock, context.on_incidents)
        self.ends = BatchWriter[RunEnd, None](
            MOST_AT_ONCE, context.clock, self._on_written, self._on_end_refused, (Fenced,)
        )
        """Ends that the store does not have yet."""
        self.emptied = TimedEvent(context.clock)
        """Event that a run ended and its end is written."""
        self._handed_out: dict[str, ScheduledTask] = {}
        """Tasks in the table, not yet claimed, by task id."""
        self._running: dict[str, tuple[ScheduledTask, int]] = {}
        """Claimed tasks with the instant of the claim, by task id, until their ends are written or
        need no writing."""
        self._dropped: set[str] = set()
        """Running tasks that a person ended; the ends of their runs are not written."""

    def __len__(self) -> int:
        """Return the number of tasks in the table and of runs."""
        return len(self._running) + len(self._handed_out)

    @property
    def ids(self) -> list[str]:
        """Return the ids of tasks that run, or whose ends are not written yet."""
        return list(self._running)

    @property
    def is_settled(self) -> bool:
        """Whether no task runs, and every end is written but those that the store refuses."""
        return len(self._running) <= len(self.ends.refused)

    @property
    def running(self) -> list[ScheduledTask]:
        """Tasks that run, or whose ends are not written yet."""
        return [scheduled for scheduled, _ in self._running.values()]

    # into the table, and out of it ----------------------------------------------------------------

    def hand_out(self, due: Sequence[ScheduledTask]) -> None:
        """Put due tasks into the node's table."""
        for scheduled in due:
            self._handed_out[scheduled.task.id] = scheduled
            self._context.table.push(_trigger(scheduled))
        self._context.dispatch()

    def claim(self, trigger: Trigger, now: int) -> ClaimedTask | None:
        """Return the task of a trigger that is about to run; None when the task must not run any
        more."""
        scheduled = self._handed_out.pop(trigger.id, None)
        if scheduled is None or self.loaded is None:
            return None
        if self.loaded.schedule.get(scheduled.key) is not scheduled:
            # overwritten: the task comes again in its current form
            self._return(scheduled)
            return None
        self._running[trigger.id] = (scheduled, now)
        task = scheduled.task
        return ClaimedTask(
            task.id,
            trigger.version,
            trigger.version,
            scheduled.tries + 1,
            task.payload,
            task.payload_format,
            scheduled.ready_at,
            False,
            task.context,
            fence=self.loaded.fence,
        )

    def withdraw(self) -> None:
        """Take back from the table the tasks that have not started."""
        waiting = list(self._handed_out.values())
        self._handed_out.clear()
        if waiting:
            self._context.table.remove([_trigger(scheduled) for scheduled in waiting])
        for scheduled in waiting:
            self._return(scheduled)

    def _return(self, scheduled: ScheduledTask) -> None:
        if self.loaded is not None:
            self.loaded.schedule.returned(scheduled.key)
            self.loaded.poke()

    # ends -----------------------------------------------------------------------------------------

    def ended(self, finish: Finish) -> None:
        """Queue the end of a run for writing. Call the context's `settled` when it is written."""
        found = self._running.get(finish.id)
        if found is None or finish.id in self._dropped:
            self.drop_ended([finish.id])
            self._context.settled([finish.id])
        else:
            scheduled, claimed_at = found
            finish = self._context.clock.corrected(finish)
            self.ends.add(end_of_run(scheduled, finish, claimed_at, self._context.node))

    def drop_ended(self, ids: Collection[str]) -> None:
        """Drop ended runs that have no end to write. Tasks that never started may run again."""
        for task_id in ids:
            if (found := self._running.pop(task_id, None)) is None:
                continue
            scheduled, _ = found
            if task_id not in self._dropped:
                self._return(scheduled)
            elif self.loaded is not None:
                self.loaded.schedule.ended(scheduled.key, None)
                self.loaded.poke()
            self._dropped.discard(task_id)
        self.emptied.notify()

    def _on_written(self, ends: Sequence[RunEnd], _: None) -> None:
        assert self.loaded is not None
        ids = [end.scheduled.task.id for end in ends]
        for end in ends:
            if end.scheduled.task.id not in self._dropped:
                again = None if end.completes else end.again
                self.loaded.schedule.ended(end.scheduled.key, again)
        self.loaded.poke()
        self.drop_ended([task_id for task_id in ids if task_id in self._dropped])
        for task_id in ids:
            self._running.pop(task_id, None)
        self._context.settled(ids)
        self.emptied.notify()

    def _on_end_refused(self, refusal: Refusal[RunEnd]) -> None:
        task = refusal.entry.scheduled.task
        refused = [each.entry.scheduled.task.id for each in self.ends.refused]
        self._refused.on_refused(refusal.error, refused, task.id, task.queue, task.name)
        task_id = task.id
        if task_id in self._dropped:
            self._drop_refused(task_id)
        else:
            self._context.end_refused(task_id)
            self.emptied.notify()

    def _drop_refused(self, task_id: str) -> bool:
        """Drop the end of a task that a person ended, if the store refuses that end."""
        if not self.ends.drop_refused(lambda end: end.scheduled.task.id == task_id):
            return False
        self.drop_ended([task_id])
        self._context.settled([task_id])
        return True

    # ended from outside ---------------------------------------------------------------------------

    def stop(self, scheduled: ScheduledTask) -> bool:
        """End a task that was handed out. Return True when its run had not started."""
        for task_id, waiting in self._handed_out.items():
            if waiting.key == scheduled.key:
                self._context.table.remove([_trigger(self._handed_out.pop(task_id))])
                return True
        running = next(
            (id for id, (task, _) in self._running.items() if task.key == scheduled.key), None
        )
        if running is None:
            return True
        self._dropped.add(running)
        if not self._drop_refused(running):
            self._context.stop_run(running, False)
        return False

    def drop(self) -> list[RunEnd]:
        """Stop all runs without writing their ends, because another node owns the partition. Return
        the ends that were not written yet."""
        waiting = self.ends.clear()
        ends = [end for end in waiting if end.scheduled.task.id not in self._dropped]
        unwritten = [end.scheduled.task.id for end in waiting]
        for task_id in self._running.keys() - set(unwritten):
            self._context.stop_run(task_id, False)
        self._running.clear()
        self._context.settled(unwritten)
        return ends


def _trigger(scheduled: ScheduledTask) -> Trigger:
    """Return the trigger of a task without its ordering key: the schedule already made sure that
    the task is the first of its key."""
    task = scheduled.task
    return Trigger(
        task.id,
        scheduled.attempt + 1,
        task.queue,
        task.partition,
        task.name,
        task.priority,
        task.fairness_key,
        task.weight,
        None,
        TriggerPath.HOOK,
        order_at=scheduled.key.run_at,
    )
