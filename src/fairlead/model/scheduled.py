"""Tasks of ordered queues: in the schedule, at the end of a run, and the record of a partition."""

from __future__ import annotations

import msgspec

from fairlead.model.keys import BEFORE_ALL, TaskKey
from fairlead.model.states import State, TriggerPath
from fairlead.model.task import NewTask, TaskRecord

TASK_BYTES = 1000
"""Bytes of a scheduled task in memory with all that refers to it, without its texts."""

NEVER = 1 << 62
"""Instant after the time of every task, in microseconds since the epoch."""

_SUBMITTED = {*NewTask.__struct_fields__} & {*TaskRecord.__struct_fields__} - {"run_at"}
"""Fields that the record of a task has as they were submitted."""


class ScheduledTask(msgspec.Struct, frozen=True, gc=False):
    """A task of an ordered queue, with the counts of its runs."""

    key: TaskKey
    task: NewTask
    attempt: int = 0
    """Number of runs so far."""
    tries: int = 0
    """Number of runs that count against the retry policy."""
    retry_at: int | None = None
    """Earliest start of the next run after a failed one."""
    unreadable: str | None = None
    """Why the stored row cannot be read; None for a task that can run. Such a task never runs and
    blocks its ordering key. Its `task` has only the id and the key."""
    dropped: int = 0
    """Bytes of the task that are only in the store; 0 for a task that is whole in memory."""

    @classmethod
    def of(cls, task: NewTask) -> ScheduledTask:
        """Schedule a task that has not run; it must have an ordering key and a unique key."""
        return cls(TaskKey(task.run_at, task.ordering_key or "", task.unique_key or ""), task)

    @property
    def ready_at(self) -> int:
        """Earliest start of the next run, if the task is the first of its ordering key."""
        if self.unreadable is not None:
            return NEVER
        return self.key.run_at if self.retry_at is None else self.retry_at

    @property
    def size(self) -> int:
        """Bytes of the task in memory, about."""
        task, key = self.task, self.key
        texts = len(key.ordering_key) + len(key.unique_key) + len(task.context or "")
        return TASK_BYTES + len(task.payload) + texts

    @property
    def without_payload(self) -> ScheduledTask:
        """The task without its payload and context, which can be read from the store again."""
        task = msgspec.structs.replace(self.task, payload=b"", context=None)
        small = msgspec.structs.replace(self, task=task)
        return msgspec.structs.replace(small, dropped=self.dropped + self.size - small.size)

    @property
    def record(self) -> TaskRecord:
        """The task for people. The schedule does not know whether a run of it is under way."""
        return TaskRecord(
            **{name: getattr(self.task, name) for name in _SUBMITTED},
            state=State.WAITING,
            version=self.attempt + 1,
            attempt=self.attempt,
            tries=self.tries,
            run_at=self.key.run_at if self.retry_at is None else self.retry_at,
            ready_at=None,
            claimed_at=None,
            node=None,
            error_type=None,
            error_text=self.unreadable,
            payload_bytes=len(self.task.payload),
        )


class RunEnd(msgspec.Struct, frozen=True, weakref=True):
    """End of a run of a task in an ordered queue, or of the task without a run, with its next
    state."""

    scheduled: ScheduledTask
    """The task before the run."""
    attempt: int
    """Number of this run."""
    tries: int
    """Runs spent against the retry policy, including this one if it counts."""
    outcome: str
    next_state: str
    """WAITING; or DONE, FAILED or CANCELLED, which complete the task's key."""
    finished_at: int
    retry_at: int | None = None
    """Earliest start of the next run if the next state is WAITING."""
    triggered_at: int | None = None
    started_at: int | None = None
    error_type: str | None = None
    error_text: str | None = None
    node: str | None = None
    trigger_path: str = TriggerPath.HOOK

    @property
    def completes(self) -> bool:
        """Whether the run completes the task's key."""
        return self.next_state != State.WAITING

    @property
    def again(self) -> ScheduledTask:
        """The task for its next run; only if the next state is WAITING."""
        scheduled = self.scheduled
        return ScheduledTask(scheduled.key, scheduled.task, self.attempt, self.tries, self.retry_at)

    @property
    def version(self) -> int:
        """Version of the task during the run."""
        return max(self.attempt, 1)

    @property
    def payload_bytes(self) -> int:
        """Stored size of the arguments."""
        return len(self.scheduled.task.payload)


class ScheduleRecord(msgspec.Struct, frozen=True):
    """State of a partition of an ordered queue beside its rows, for the next owner and for
    people."""

    low_water_mark: TaskKey = BEFORE_ALL
    """Key at or below which every task is completed; no earlier hour has an unfinished task."""
    read_through: TaskKey = BEFORE_ALL
    """Key up to which the owner has read everything; only for people, like the fields below up to
    `unreadable`."""
    loaded: int = 0
    in_flight: int = 0
    node: str = ""
    reloads: int = 0
    """Number of reloads in a row after failures."""
    trouble: str | None = None
    """Reason of the last reload."""
    updated_at: int = 0
    unreadable: int = 0
    """Number of tasks in memory whose rows cannot be read."""
    partitions: int = 0
    """Number of the queue's partitions by which tasks come to this one; 0 in a new record."""
    is_moving: bool = False
    """Whether tasks are being moved to this number of partitions; no worker may own the partition
    until they all are."""
    is_paused: bool = False
    """Whether the queue is paused, as far as the owner knows; the next owner keeps to it until it
    can read the settings of the queue."""
