"""The words of Fairlead as data: what a task, a trigger, a grab and an attempt are.

Instants are integers: microseconds since 1970-01-01 UTC, in memory and in both stores, so that a
time is compared, stored and exported without ever being rounded. Only the public surface speaks in
aware datetimes. Ids are the canonical text of a UUIDv7: they sort by time of submission and read
the same in SQL, logs and JSON.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

DEFAULT_PRIORITY = 5
PRIORITIES = range(10)
DEFAULT_WEIGHT = 1.0
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


class State(StrEnum):
    """Where a task stands. Every change is a compare-and-set on its version."""

    WAITING = "WAITING"  # run_at ahead, or a retry due later
    SUBMITTED = "SUBMITTED"  # may run now
    PROCESSING = "PROCESSING"  # grabbed by one node
    DONE = "DONE"
    ERROR = "ERROR"  # retries used up, asks for a person
    FAILED = "FAILED"  # a person gave it up
    CANCELLED = "CANCELLED"


FINAL_STATES = frozenset({State.DONE, State.FAILED, State.CANCELLED})
"""A task in one of these has left the hot table; its attempts are what is left of it."""


class Outcome(StrEnum):
    """How one attempt ended (the column `outcome` of the attempts table)."""

    DONE = "done"
    FAILED = "failed"  # the last try: the task is now in ERROR, or a person marked it FAILED
    RETRIED = "retried"  # failed, another try is due
    SNOOZED = "snoozed"  # the handler asked to be run later; no try spent
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    LOST = "lost"  # its node died or stalled; the task was given to another


class TriggerPath(StrEnum):
    """What made the trigger of an attempt: the happy path is the hook."""

    HOOK = "hook"  # the submit's own commit
    POLLER = "poller"  # run_at or a retry came due
    HEAL = "heal"  # a lost trigger, found by a sweep, or a task resumed after its node died
    SPILL = "spill"


class PayloadFormat(StrEnum):
    """How the payload bytes of a row are to be read; kept per row so that the default may
    change."""

    JSON = "json"
    JSON_ZLIB = "json+zlib"


class PartitionKey(NamedTuple):
    """The unit of ownership: one node at a time reads and orders a partition of a queue."""

    queue: str
    partition: int


class LaneKey(NamedTuple):
    """One priority of one partition: the unit of order. A fair queue keeps one backlog for each."""

    queue: str
    partition: int
    priority: int


class Level(NamedTuple):
    """Where a task stands in a fair backlog; compared lexicographically."""

    turn: int
    """The pass: virtual time at which the task starts (dimensionless; a task of weight 1 takes
    1,000,000)."""
    id: int
    """Unique in the lane, ascending in the order in which levels were given."""


LOWEST = Level(0, 0)
"""Below every level that is given to a task."""


class RunTimesRecord(msgspec.Struct, frozen=True):
    """What a queue that charges run time has learnt, for the next owner and for people."""

    unit: int = 0
    """Microseconds: the run time for which a key of weight 1 is charged a whole stride; 0: not
    known yet."""
    means: list[tuple[str, str, int, int]] = []
    """(task name, fairness key, mean run time in microseconds, runs it rests on), those that ran
    last."""


class LaneRecord(msgspec.Struct, frozen=True):
    """What is kept of a lane's fair backlog beside its rows, for the next owner and for people."""

    ack_level: Level = LOWEST
    """A: everything at or below has been dispatched."""
    read_level: Level = LOWEST
    """R when this was written; only for people."""
    max_level: Level = LOWEST
    """M: no row is above."""
    virtual_time: int = 0
    """The furthest pass dispatched."""
    read_seq: int = 0
    """Every trigger of the channel up to this place that was there has been given a level."""
    buffered: int = 0
    """Triggers in the owner's memory when this was written; only for people."""
    next_passes: list[tuple[str, int]] = []
    """(fairness key, next pass) of the keys furthest ahead."""
    run_times: RunTimesRecord | None = None
    """None: the queue counts tasks."""


class NewTask(msgspec.Struct, frozen=True, gc=False):
    """A checked and encoded task, ready to be inserted."""

    id: str
    queue: str
    partition: int
    name: str
    payload: bytes
    payload_format: str
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    unique_key: str | None
    run_at: int
    """Earliest start; equal to submitted_at when the caller gave none."""
    submitted_at: int
    keep_result: bool
    context: str | None
    """JSON object of strings to strings, or None."""

    @property
    def is_due(self) -> bool:
        """True when it may run at once: it starts SUBMITTED, not WAITING."""
        return self.run_at <= self.submitted_at


class Submitted(NamedTuple):
    """What a submit answers for one task."""

    id: str
    is_new: bool
    """False when the unique key was taken: `id` is then the first task's."""
    seq: int | None = None
    """Its place in its lane, ready_seq, where the store knows it: not of a task that waits, nor of
    one that went in by COPY."""


class Trigger(msgspec.Struct, frozen=True, gc=False):
    """The small message "task X at version V may run"."""

    id: str
    version: int
    queue: str
    partition: int
    name: str
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    path: str = TriggerPath.HOOK
    seq: int = 0
    """Its place in the channel that carried it (ready_seq on the database channel)."""
    level: Level | None = None
    """Its place in a fair backlog; None in a fifo queue, and before it is given."""
    order_at: int = 0
    """With its id, its place among the tasks of its ordering key (microseconds), as far as is
    known."""


class GrabbedTask(msgspec.Struct, frozen=True, gc=False):
    """A task this node won: SUBMITTED -> PROCESSING by compare-and-set. `version` is the one after
    the grab."""

    id: str
    version: int
    attempt: int
    """Number of this run, from 1; every run counts, a snoozed one too."""
    tries: int
    """Runs spent against the retry policy, this one included."""
    payload: bytes
    payload_format: str
    ready_at: int
    keep_result: bool
    context: str | None
    row: int = 0
    """The store's own address of the task row; 0 when it has none."""
    batch: int = 0
    """Which grab this was; the node tells the store when all of a batch has ended."""


class Finish(msgspec.Struct, frozen=True, gc=False):
    """How one attempt of a grabbed task ended, and where the task goes next."""

    id: str
    version: int
    """The version this node holds since the grab; a mismatch means the task was given to
    another."""
    outcome: str
    next_state: str
    started_at: int | None
    finished_at: int
    error_type: str | None = None
    error_text: str | None = None
    result: bytes | None = None
    """JSON of the return value, when the task keeps its result."""
    run_at: int | None = None
    """When next_state is WAITING: the next earliest start. When SUBMITTED: at once, at the end of
    its queue."""
    row: int = 0
    """As in the grabbed task."""
    spends_try: bool = True
    """False for a snooze and for a task handed back unrun at shutdown."""
    resets_tries: bool = False
    leaves_order: bool = False
    """The tasks of its ordering key need no longer wait for it."""


class TaskKey(NamedTuple):
    """Which task of an ordered queue this is, and its place in the schedule. Keys are compared
    field by field, texts by code point, in memory as in every store."""

    run_at: int
    """Microseconds."""
    ordering_key: str
    unique_key: str


BEFORE_ALL = TaskKey(-(1 << 62), "", "")
"""Below the key of every task."""


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


class TaskRecord(msgspec.Struct, frozen=True):
    """A task as people see it: from the hot table, or pieced together from its last attempt when it
    has left."""

    id: str
    queue: str
    partition: int
    name: str
    state: State
    version: int
    attempt: int
    tries: int
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    unique_key: str | None
    submitted_at: int
    run_at: int
    ready_at: int | None
    grabbed_at: int | None
    node: str | None
    error_type: str | None
    error_text: str | None
    context: str | None
    payload_bytes: int


class AttemptRecord(msgspec.Struct, frozen=True):
    """One row of the append-only history: one run of a task, or its end without a run (cancelled,
    failed by hand)."""

    seq: int
    task_id: str
    attempt: int
    tries: int
    queue: str
    name: str
    partition: int
    priority: int
    fairness_key: str
    weight: float
    ordering_key: str | None
    version: int
    submitted_at: int
    run_at: int
    ready_at: int | None
    triggered_at: int | None
    grabbed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: str
    next_state: str
    error_type: str | None
    error_text: str | None
    node: str | None
    trigger_path: str
    payload_bytes: int
