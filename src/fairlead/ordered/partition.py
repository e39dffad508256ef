"""The supervisor of one partition of an ordered queue: it lives, fails, is torn down and loaded
clean, until it is given up.

A failure anywhere in it, a store that is away among them, ends this one life only. What runs goes
on; its ends are written by the next life. When it fails again and again it waits longer and longer,
and says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

import msgspec

from fairlead.clock import MICROS
from fairlead.core.schedule.throughput import Window
from fairlead.errors import StoreUnavailable
from fairlead.model import (
    Finish,
    GrabbedTask,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    Trigger,
    TriggerPath,
)
from fairlead.ordered.completion import Completion
from fairlead.ordered.context import Surroundings
from fairlead.ordered.ending import end_of_run
from fairlead.ordered.tenure import Life
from fairlead.ports.observer import OrderedGauges
from fairlead.ports.schedule_store import Fenced
from fairlead.ports.task_log import Batch
from fairlead.timed_event import TimedEvent

log = logging.getLogger("fairlead.ordered")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds between two lives: doubled each time, until a life has lasted as long as the longest."""

FENCED_PAUSE = 10.0
"""Seconds after another owner was met: by then this node has been told that its lease is gone, if
it is."""

STALE_SECONDS = 300.0
"""An unfinished task that was due longer ago than this is stale."""

FURTHEST_BEHIND = -1e9
"""Seconds of look-ahead shown for a partition that has not read anything yet."""

LAST_SECONDS = 10.0
"""How long a partition that is gone may take to write what had ended before."""

_MANY = 5
"""Failures in a row from which they are an error, no longer a warning."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    doubled: float = FIRST_PAUSE * 2 ** min(
        failures - 1, 16
    )  # not for ever: it would outgrow a float
    return min(LONGEST_PAUSE, doubled)


class Partition:
    """See the module. `run()` for as long as the node owns it; then either `drained` and `close`,
    or `drop`."""

    def __init__(self, key: PartitionKey, window: Window, around: Surroundings) -> None:
        self.key = key
        self._window = window
        self._around = around
        self._life: Life | None = None
        self._completion = Completion(self._written)
        self._handed_out: dict[str, ScheduledTask] = {}
        """In the table, not yet grabbed; by task id, as what follows."""
        self._running: dict[str, tuple[ScheduledTask, int]] = {}
        """Grabbed, and when; until its end is written, or its run is over and nobody waits for its
        end."""
        self._dropped: set[str] = set()
        """Of those: ended by a person; what their runs say is not written."""
        self._is_leaving = False
        self._left = TimedEvent(around.clock)
        self._began = 0.0
        self._range_id = 0
        """Of the last take-over."""
        self.reloads = 0
        """Failures in a row."""
        self.trouble: str | None = None

    # life -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live; after a failure, live again."""
        while True:
            self._began = self._around.clock.monotonic()
            try:
                await self._live()
            except Exception as error:
                pause = self._torn_down(error, self._around.clock.monotonic() - self._began)
                await self._around.clock.sleep(pause)

    async def _live(self) -> None:
        # First: an earlier owner may be writing what it has not committed, and is fenced only
        # below.
        await self._around.log.rewind(self.key)
        owned = await self._around.store.take_over(self.key)
        self._range_id = owned.range_id
        self._around.outages.over(self.key)
        running = [scheduled for scheduled, _ in self._running.values()]
        life = Life(
            self.key,
            owned,
            self._window,
            running,
            self._completion,
            self._hand_out,
            self._stop,
            self._describe,
            self._around,
        )
        if self._is_leaving:
            life.scheduler.stop()
        self._life = life
        self._around.log.look()
        # In a task of its own: a task group that fails while it is cancelled raises its failures,
        # and forgets the rest.
        living = asyncio.ensure_future(life.run())
        try:
            await asyncio.wait([living])
            living.result()
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
            self._withdraw()
            if not self._is_leaving:
                self._life = None

    def _torn_down(self, error: Exception, lasted: float) -> float:
        """Say so; answers the seconds to wait before the next life."""
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        cause = causes[0]
        self.reloads = 1 if lasted >= LONGEST_PAUSE else self.reloads + 1
        self.trouble = f"{type(cause).__qualname__}: {cause}"
        is_news = not isinstance(cause, Fenced) and self.reloads >= _MANY
        failing = (
            self._around.outages.failed(self.key) if isinstance(cause, StoreUnavailable) else 1
        )
        log.log(
            logging.DEBUG if not failing else logging.ERROR if is_news else logging.WARNING,
            "a partition of an ordered queue is loaded anew",
            extra={
                "partition": self.key,
                "failures": self.reloads,
                "error": self.trouble,
                "partitions": failing,
            },
            exc_info=None if isinstance(cause, StoreUnavailable | Fenced) else cause,
        )
        self._around.observer.counted("ordered_reloads")
        pause = pause_after(self.reloads)
        return max(pause, FENCED_PAUSE) if isinstance(cause, Fenced) else pause

    def resize(self, window: Window) -> None:
        """So much may be in memory from now on."""
        self._window = window
        if self._life is not None:
            self._life.schedule.resize(window)
            self._life.look()

    # the log --------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """It takes a batch of the log."""
        return self._life is not None and not self._is_leaving and self._life.persistence.has_room

    def accept(self, batch: Batch) -> None:
        """What comes next in the log. Between two lives it is forgotten: the next one rewinds the
        log."""
        if self.has_room:
            assert self._life is not None
            self._life.persistence.accept(batch)

    # runs -----------------------------------------------------------------------------------------

    def _hand_out(self, due: Sequence[ScheduledTask]) -> None:
        for scheduled in due:
            self._handed_out[scheduled.task.id] = scheduled
            self._around.table.push(_trigger(scheduled))
        self._around.dispatch()

    def grab(self, trigger: Trigger, now: int) -> GrabbedTask | None:
        """It is about to run; None when it must not any more."""
        scheduled = self._handed_out.pop(trigger.id, None)
        if scheduled is None or self._life is None:
            return None
        if (
            self._life.schedule.get(scheduled.key) is not scheduled
        ):  # overwritten: it comes again as it is now
            self._life.returned(scheduled)
            return None
        self._running[trigger.id] = (scheduled, now)
        task = scheduled.task
        return GrabbedTask(
            task.id,
            trigger.version,
            trigger.version,
            scheduled.tries + 1,
            task.payload,
            task.payload_format,
            scheduled.ready_at,
            False,
            task.context,
        )

    def ended(self, finish: Finish) -> None:
        """A run has ended like this. `settled` is called when that is written."""
        found = self._running.get(finish.id)
        if found is None or finish.id in self._dropped:
            self.let_go([finish.id])
            self._around.settled([finish.id])
        else:
            scheduled, grabbed_at = found
            self._completion.add(end_of_run(scheduled, finish, grabbed_at, self._around.node))

    def let_go(self, ids: Collection[str]) -> None:
        """The runs of these are over, and nothing is to be written of them; of those never begun,
        they may run again."""
        for task_id in ids:
            if (found := self._running.pop(task_id, None)) is None:
                continue
            scheduled, _ = found
            if self._life is not None:
                if task_id in self._dropped:
                    self._life.schedule.ended(scheduled.key, None)
                    self._life.look()
                else:
                    self._life.returned(scheduled)
            self._dropped.discard(task_id)
        self._left.ring()

    def _written(self, ends: Sequence[RunEnd]) -> None:
        assert self._life is not None
        ids = [end.scheduled.task.id for end in ends]
        self._life.over([end for end in ends if end.scheduled.task.id not in self._dropped])
        self.let_go([task_id for task_id in ids if task_id in self._dropped])
        for task_id in ids:
            self._running.pop(task_id, None)
        self._around.settled(ids)
        self._left.ring()

    def _stop(self, scheduled: ScheduledTask) -> bool:
        for task_id, waiting in self._handed_out.items():
            if waiting.key == scheduled.key:
                self._around.table.remove([_trigger(self._handed_out.pop(task_id))])
                return True
        running = next(
            (id for id, (task, _) in self._running.items() if task.key == scheduled.key), None
        )
        if running is None:
            return True
        self._dropped.add(running)
        self._around.stop_run(running, False)
        return False

    def _withdraw(self) -> None:
        """What was handed out and does not run yet goes back."""
        waiting = list(self._handed_out.values())
        self._handed_out.clear()
        if waiting:
            self._around.table.remove([_trigger(scheduled) for scheduled in waiting])
        for scheduled in waiting:
            if self._life is not None:
                self._life.returned(scheduled)

    # going ----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Start nothing more: the partition will be given up."""
        if not self._is_leaving:
            self._is_leaving = True
            if self._life is not None:
                self._life.scheduler.stop()
            self._withdraw()

    def stay(self) -> None:
        """It will not be given up after all."""
        if self._is_leaving:
            self._is_leaving = False
            if self._life is not None:
                self._life.scheduler.go_on()
            self._around.log.look()

    @property
    def is_drained(self) -> bool:
        """Nothing of it runs, and every end is written."""
        return self._is_leaving and not self._running

    @property
    def running(self) -> list[str]:
        """Ids of the tasks that run, or whose ends are not written yet."""
        return list(self._running)

    async def drained(self, seconds: float) -> bool:
        """Wait for that, at most so long."""
        clock = self._around.clock
        deadline = clock.now() + round(seconds * MICROS)
        while not self.is_drained and clock.now() < deadline:
            await self._left.wait(deadline)
        return self.is_drained

    async def close(self) -> None:
        """After `run` was cancelled."""
        if self._life is not None and not self._running:
            try:
                await self._life.last_words()
            except Exception as error:
                log.info(
                    "left without keeping its record",
                    extra={"partition": self.key, "error": str(error)},
                )
        if ends := self.drop():
            await self.write_last(ends)

    def drop(self) -> list[RunEnd]:
        """It is somebody else's: what runs is to end, and none of it will be written. Answers the
        ends of runs that were not written yet."""
        self._around.outages.forget(self.key)
        self._withdraw()
        self._life = None
        ends = [
            end for end in self._completion.waiting if end.scheduled.task.id not in self._dropped
        ]
        unwritten = [end.scheduled.task.id for end in self._completion.waiting]
        self._completion.waiting.clear()
        for task_id in self._running.keys() - set(unwritten):
            self._around.stop_run(task_id, False)
        self._running.clear()
        self._around.settled(unwritten)
        return ends

    async def write_last(self, ends: Sequence[RunEnd]) -> None:
        """Try once: it spares the next owner these runs. The store refuses it if that one has
        begun."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._around.store.finish(self.key, self._range_id, ends)
        except (StoreUnavailable, Fenced, TimeoutError) as error:
            log.warning(
                "runs that had ended run again at the next owner: their ends could not be written",
                extra={"partition": self.key, "runs": len(ends), "error": str(error)},
            )

    def gauges(self) -> OrderedGauges:
        """How it is now."""
        in_flight = len(self._running) + len(self._handed_out)
        if self._life is None:
            return OrderedGauges(0, in_flight, 0, 0.0, int(self.reloads > 0))
        schedule, now = self._life.schedule, self._around.clock.now()
        stale = schedule.due_before(now - round(STALE_SECONDS * MICROS))
        look_ahead = max((schedule.read_through.run_at - now) / MICROS, FURTHEST_BEHIND)
        return OrderedGauges(len(schedule), in_flight, stale, look_ahead, 0)

    def _describe(self, record: ScheduleRecord) -> ScheduleRecord:
        clock = self._around.clock
        if clock.monotonic() - self._began >= LONGEST_PAUSE:
            self.reloads, self.trouble = 0, None
        return msgspec.structs.replace(
            record,
            in_flight=len(self._running) + len(self._handed_out),
            node=self._around.node,
            reloads=self.reloads,
            trouble=self.trouble,
            updated_at=clock.now(),
        )


def _trigger(scheduled: ScheduledTask) -> Trigger:
    """Without its ordering key: that it is the first of it is certain already."""
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
