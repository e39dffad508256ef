"""An attempt: how one run of a task ended."""

from __future__ import annotations

import msgspec


class Finish(msgspec.Struct, frozen=True, gc=False):
    """How one attempt of a claimed task ended, and where the task goes next."""

    id: str
    version: int
    """The version this node holds since the claim; a mismatch means the task was given to
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
    """As in the claimed task."""
    spends_try: bool = True
    """False for a snooze and for a task handed back unrun at shutdown."""
    resets_tries: bool = False
    leaves_order: bool = False
    """The tasks of its ordering key need no longer wait for it."""


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
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: str
    next_state: str
    error_type: str | None
    error_text: str | None
    node: str | None
    trigger_path: str
    payload_bytes: int
