"""A task: as submitted, as claimed by a node, and as a record for people."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from fairlead.model.states import State

DEFAULT_PRIORITY = 5
DEFAULT_WEIGHT = 1.0


class PayloadFormat(StrEnum):
    """Encoding of the payload bytes, kept for each row so that the default may change."""

    JSON = "json"
    JSON_ZLIB = "json+zlib"


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
    """Earliest start; equal to submitted_at if the caller gave none."""
    submitted_at: int
    keep_result: bool
    context: str | None
    """JSON object of strings to strings, or None."""
    unique_until: int | None = None
    """Instant up to which the unique key stays taken although the task has ended; None: the key is
    free when the task ends."""
    tags: str = ""
    """Text by which people find the task."""

    @property
    def is_due(self) -> bool:
        """Whether the task may run at once: it starts SUBMITTED, not WAITING."""
        return self.run_at <= self.submitted_at


class Submitted(NamedTuple):
    """Result of a submit for one task."""

    id: str
    is_new: bool
    """Whether the task was inserted; if not, its unique key was taken and `id` is the earlier
    task's."""
    seq: int | None = None
    """Position of the task in its lane (ready_seq) if the store knows it: None for a WAITING task
    and for one inserted by COPY."""


class ClaimedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that this node claimed by compare-and-set. `version` is the version after the
    claim."""

    id: str
    version: int
    attempt: int
    """Number of this run, from 1; every run counts, snoozed ones too."""
    tries: int
    """Runs spent against the retry policy, including this one."""
    payload: bytes
    payload_format: str
    ready_at: int
    keep_result: bool
    context: str | None
    checkpoint: bytes | None = None
    """JSON that an earlier run stored; None without."""
    row: int = 0
    """Address of the task row inside the store; 0 if it has none."""
    batch: int = 0
    """Number of the claim call; the node tells the store when all tasks of a batch have ended."""
    fence: int = 0
    """Fencing token of the run if it is not the version; 0 if it is."""


class TaskRecord(msgspec.Struct, frozen=True):
    """A task for people: from the hot table, or rebuilt from its last attempt if it has left."""

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
    claimed_at: int | None
    node: str | None
    error_type: str | None
    error_text: str | None
    context: str | None
    payload_bytes: int
    tags: str = ""
