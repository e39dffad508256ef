"""Incidents: conditions that need a person, as parts report them and as the store keeps them."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from fairlead.model.task import TaskRecord

_NAME = re.compile("[a-z_]{1,40}")


class IncidentKind(StrEnum):
    """The kinds of incidents. A text that names none of them is read as a kind of a later version,
    whose workers may share the store."""

    ERROR = "error"
    """A task went to ERROR. `subject` is its id."""
    STUCK = "stuck"
    """A task has been in PROCESSING for longer than allowed. `subject` is the id of the task."""
    TASK_UNREADABLE = "task_unreadable"
    """A stored task of an ordered queue cannot be read. `subject` is QUEUE/PARTITION/HOUR, then the
    key of the task: RUN_AT/ORDERING_KEY/UNIQUE_KEY."""
    CLOCK_STEP = "clock_step"
    """The clock of a node that serves ordered queues stepped. `subject` is the name of the node."""
    CLOCK_OFF = "clock_off"
    """The clock of a node differs from the one that the nodes of the store share. `subject` is the
    name of the node."""
    WRITE_REFUSED = "write_refused"
    """The store refuses the claim of a task, the end of a run, or a task of an ordered queue, and
    accepts others. `subject` is the id of the task."""
    UNSERVED_QUEUE = "unserved_queue"
    """No node serves a queue that has tasks. `subject` is the name of the queue."""
    BLOCKED_LOOP = "blocked_loop"
    """A handler blocks the event loop of its node. `subject` is the name of the node."""
    STALL = "stall"
    """Tasks wait, and no run begins or ends. `subject` is the name of the queue."""
    FLOOD = "flood"
    """A fairness key submits most tasks of a queue, and many more than usual. `subject` is
    QUEUE/KEY."""
    ERROR_BURST = "error_burst"
    """Most runs of a queue fail. `subject` is the name of the queue."""
    NODE_LOSS = "node_loss"
    """A node is silent, or runs of it were lost. `subject` is the name of the node."""

    @classmethod
    def _missing_(cls, value: object) -> IncidentKind | None:
        """Return a member for the name of a kind that this version does not have."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            return None
        kind = str.__new__(cls, value)
        kind._name_ = kind._value_ = value
        return kind


ABOUT_TASKS = frozenset({IncidentKind.ERROR, IncidentKind.STUCK, IncidentKind.WRITE_REFUSED})
"""Kinds whose subject is a task."""

WATCHED = (
    IncidentKind.STALL,
    IncidentKind.FLOOD,
    IncidentKind.ERROR_BURST,
    IncidentKind.NODE_LOSS,
)
"""Kinds that one elected worker detects by watching the queues."""

INCIDENT_REPORTED = 30.0
"""Seconds between two reports of a condition that lasts; a minute for an unserved queue."""

INCIDENT_ENDS = 100.0
"""Seconds after the last report from which an incident other than `error` is over. An `error` is
over when its task has left ERROR."""

INCIDENT_LINGERS = 3600.0
"""Seconds after the last report during which the store keeps a delivered incident that is over.
Reports of the same condition within this time deliver nothing new."""


class IncidentReport(msgspec.Struct, frozen=True):
    """A condition as a part of a node reports it. Kind, subject and version identify it."""

    kind: IncidentKind
    subject: str
    details: str
    """The cause and the cure, for a person."""
    since: int
    """Beginning of the condition (microseconds since the epoch)."""
    queue: str = ""
    """Name of the queue; empty if the condition concerns no single queue."""
    name: str = ""
    """Name of the task; empty without a task."""
    version: int = 0
    """Version of the task; 0 without a task."""


class Incident(msgspec.Struct, frozen=True):
    """An incident in the store. Instants are in microseconds since the epoch."""

    id: int
    """Number that the store never gives twice, for use as an idempotency key."""
    kind: IncidentKind
    subject: str
    details: str
    since: int
    queue: str
    name: str
    version: int
    deliveries: int
    """Calls of `on_incident` so far, including the one that gets this value."""
    delivered_at: int | None
    """Instant at which a call of `on_incident` returned; None until then."""
    task: TaskRecord | None = None
    """The task as it is now, for the kinds `error` and `stuck`; None if it has left the store."""
