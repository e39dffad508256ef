"""Values of `SqlStore` for people who show tasks and change them: filters, statuses of tasks and
queues, loads of keys."""

from __future__ import annotations

import msgspec

from fairlead.model import ArgumentFilter, State


class TaskFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects tasks of the hot table for a listing or a bulk action; None selects any value. A
    stored filter of a later version may have further conditions: without them, it would select more
    tasks."""

    state: State | None = None
    queue: str | None = None
    name: str | None = None
    fairness_key: str | None = None
    older_than: int | None = None
    """Instant before which a task was submitted (microseconds since the epoch)."""
    error: str | None = None
    """Part of the type or text of the last error; upper and lower case of ASCII letters are
    alike."""
    after: str | None = None
    """Id of the task after which a listing goes on; of finished tasks, a position."""
    submitted_from: int | None = None
    """Instant at or after which a task was submitted (microseconds since the epoch)."""
    ordering_key: str | None = None
    unique_key: str | None = None
    tags: str | None = None
    id_prefix: str | None = None
    """Hexadecimal digits with which the id begins, without hyphens."""
    argument: ArgumentFilter | None = None
    tenants: tuple[str, ...] | None = None
    """Tenants of the fairness keys: see `tenant_of`. An empty tuple selects no task."""


class TaskStatus(msgspec.Struct, frozen=True, gc=False):
    """State of a task, with its last error and its kept result."""

    id: str
    name: str
    state: State
    error_type: str | None
    error_text: str | None
    result: bytes | None
    """JSON of the kept result of a task that is DONE."""


TaskVersion = tuple[str, int]
"""Id of a task, and the version that a change expects."""


class QueueStatus(msgspec.Struct, frozen=True):
    """Status of a queue: the number of tasks by state, and the time since which the oldest is
    ready."""

    queue: str
    partitions: int
    paused: bool
    waiting: int
    submitted: int
    processing: int
    error: int
    oldest_ready_at: int | None
    """Microseconds since the epoch; None if no task is ready."""


class KeyLoad(msgspec.Struct, frozen=True):
    """Load of a fairness key that has tasks that may run."""

    fairness_key: str
    tasks: int
    weight: float
    share: float
    """Fraction of the queue's dispatches while the same keys have tasks: the tenant's weight
    divided by the sum over tenants, times the key's weight divided by the sum over keys of the
    tenant."""
