"""Attempts: the ends of runs of a task."""

from __future__ import annotations

import msgspec

from fairlead.model.run_notes import RunNotes
from fairlead.model.states import State
from fairlead.model.task import TaskRecord


class Finish(msgspec.Struct, frozen=True, gc=False):
    """End of one attempt of a claimed task, and the next state of the task."""

    id: str
    version: int
    """Version that this node holds since the claim; a mismatch means that another node has the
    task."""
    outcome: str
    next_state: str
    started_at: int | None
    finished_at: int
    error_type: str | None = None
    error_text: str | None = None
    result: bytes | None = None
    """JSON of the return value, if the task keeps its result."""
    run_at: int | None = None
    """Next earliest start if next_state is WAITING. A task that goes to SUBMITTED may run at once,
    at the end of its queue."""
    row: int = 0
    """Same as `ClaimedTask.row`."""
    spends_try: bool = True
    """False for a snooze and for a task handed back unrun at shutdown."""
    resets_tries: bool = False
    leaves_order: bool = False
    """Whether the later tasks of its ordering key need no longer wait for it."""
    notes: RunNotes | None = None
    """Progress that is not stored yet, and log lines of the run; None without any."""


class AttemptRecord(msgspec.Struct, frozen=True):
    """One row of the append-only history: a run of a task, or its end without a run (cancelled, or
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
    unique_key: str | None
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
    tags: str = ""

    @property
    def ended_task(self) -> TaskRecord:
        """The task that this attempt has ended, without its context, which no attempt keeps."""
        return TaskRecord(
            **{name: getattr(self, name) for name in _OF_TASK},
            id=self.task_id,
            state=State(self.next_state),
            version=self.version + 1,
            context=None,
        )


_OF_TASK = ({*TaskRecord.__struct_fields__} & {*AttemptRecord.__struct_fields__}) - {"version"}
"""Fields that the record of a task shares with its last attempt."""
