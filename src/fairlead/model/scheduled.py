"""A task of an ordered queue: in its schedule, at the end of a run, and the record of its
partition."""

from __future__ import annotations

import msgspec

from fairlead.model.keys import BEFORE_ALL, TaskKey
from fairlead.model.states import State, TriggerPath
from fairlead.model.task import NewTask


class ScheduledTask(msgspec.Struct, frozen=True, gc=False):
    """A task of an ordered queue with what its runs have left behind."""

    key: TaskKey
    task: NewTask
    attempt: int = 0
    """Runs so far."""
    tries: int = 0
    """Of them, those that count against the retry policy."""
    retry_at: int | None = None
    """After a run that failed: when the next one may start."""

    @classmethod
    def of(cls, task: NewTask) -> ScheduledTask:
        """One that has not run. It has an ordering key and a unique key."""
        return cls(TaskKey(task.run_at, task.ordering_key or "", task.unique_key or ""), task)

    @property
    def ready_at(self) -> int:
        """When its next run may start, if it is the first of its ordering key."""
        return self.key.run_at if self.retry_at is None else self.retry_at


class RunEnd(msgspec.Struct, frozen=True, gc=False):
    """How a run of a task of an ordered queue ended, or the task without a run, and what comes
    next."""

    scheduled: ScheduledTask
    """As it was before the run."""
    attempt: int
    """Number of this run."""
    tries: int
    """Spent against the retry policy, this one included if it counts."""
    outcome: str
    next_state: str
    """WAITING; or DONE, FAILED or CANCELLED: then its key is completed."""
    finished_at: int
    retry_at: int | None = None
    """When WAITING."""
    triggered_at: int | None = None
    started_at: int | None = None
    error_type: str | None = None
    error_text: str | None = None
    node: str | None = None
    trigger_path: str = TriggerPath.HOOK

    @property
    def completes(self) -> bool:
        return self.next_state != State.WAITING

    @property
    def again(self) -> ScheduledTask:
        """The task as it goes on, when it does."""
        scheduled = self.scheduled
        return ScheduledTask(scheduled.key, scheduled.task, self.attempt, self.tries, self.retry_at)


class ScheduleRecord(msgspec.Struct, frozen=True):
    """What is kept of a partition of an ordered queue beside its rows, for the next owner and for
    people."""

    floor: TaskKey = BEFORE_ALL
    """Every task with this key or a lower one is completed: its hour is the oldest unfinished one.
    There is no horizon."""
    read_through: TaskKey = BEFORE_ALL
    """Everything up to here was in the owner's memory, or is known to it; only for people, like the
    rest."""
    loaded: int = 0
    in_flight: int = 0
    node: str = ""
    reloads: int = 0
    """How often in a row it was torn down and loaded anew."""
    trouble: str | None = None
    """Why, the last time."""
    updated_at: int = 0
