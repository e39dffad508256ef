"""A task: submitted, claimed by a node, and as people see it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from fairlead.model.states import State

DEFAULT_PRIORITY = 5
PRIORITIES = range(10)
DEFAULT_WEIGHT = 1.0
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


class PayloadFormat(StrEnum):
    """How the payload bytes of a row are to be read; kept per row so that the default may
    change."""

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


class ClaimedTask(msgspec.Struct, frozen=True, gc=False):
    """A task this node won: SUBMITTED -> PROCESSING by compare-and-set. `version` is the one after
    the claim."""

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
    """Which claim this was; the node tells the store when all of a batch has ended."""


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
    claimed_at: int | None
    node: str | None
    error_type: str | None
    error_text: str | None
    context: str | None
    payload_bytes: int
