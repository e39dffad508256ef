"""Results of the operations of the JSON API that `fairlead.operate` does not return as they are.

Instants are in microseconds since the epoch unless a docstring says otherwise; `conversion` makes
documents of all results.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from fairlead.model import AttemptRecord, Progress, RunNotes, TaskRecord
from fairlead.operate.doctor.explain import Explanation, Reason
from fairlead.operate.ordered import OrderedPartitionView
from fairlead.operate.store.policies import PolicyState, Switch
from fairlead.operate.summary import QueueNumbers
from fairlead.operate.tenants import Tenant
from fairlead.web.api.conversion import Instant

Next = Annotated[
    str | None, Meta(description="Value of `after` for the next page; null at the end.")
]


Row = TypeVar("Row")


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the results."""


class Rows(_Result, Generic[Row], frozen=True, kw_only=True):
    """A page of a list."""

    rows: list[Row]
    next: Next


# errors and access --------------------------------------------------------------------------------


class ErrorDetail(_Result, frozen=True, kw_only=True):
    """Why a request was not served: the cause and the cure."""

    status: int
    title: str
    detail: str


class ErrorDocument(_Result, frozen=True, kw_only=True):
    """Response to a request that was not served."""

    error: ErrorDetail


class Rights(_Result, frozen=True, kw_only=True):
    """Rights of the caller. `tenants`: null for all. `csrf_token` is for the header X-CSRF-Token of
    a client with a session cookie; a client with a bearer token needs none."""

    name: str
    actions: list[str]
    tenants: list[str] | None
    csrf_token: str | None


# tasks --------------------------------------------------------------------------------------------


class TaskDetail(_Result, frozen=True, kw_only=True):
    """A task with its latest attempts, first to last, and why it is in its state.

    `progress` is that of the latest run that reported any. `logs` has the lines that attempts have
    logged, if the task keeps them, first to last; `more_logs` earlier attempts have lines that are
    too many for one response. `arguments` is JSON as text, so that no number loses digits; null if
    they are not kept or not shown, and `arguments_hidden` then says why.
    """

    task: TaskRecord
    reasons: list[Reason]
    progress: Progress | None
    attempts: list[AttemptRecord]
    more_attempts: int
    logs: list[RunNotes]
    more_logs: int
    arguments: str | None
    arguments_hidden: str | None
    trace_url: str | None


# tenants ------------------------------------------------------------------------------------------


class TenantWhy(_Result, frozen=True, kw_only=True):
    """Why a tenant waits: its numbers, and the explanations of its oldest unfinished tasks."""

    tenant: Tenant
    oldest: list[Explanation]


# queues and nodes ---------------------------------------------------------------------------------


class QueueList(_Result, frozen=True, kw_only=True):
    """Queues by name, at most 200."""

    at: int
    queues: list[QueueNumbers]
    more_queues: int
    is_sample: bool


class OrderedQueue(_Result, frozen=True, kw_only=True):
    """One ordered queue."""

    queue: str
    partitions: list[OrderedPartitionView]


# sharded queues -----------------------------------------------------------------------------------


class DeadLetter(_Result, frozen=True, kw_only=True):
    """A message that was delivered too often, of `size` bytes, with its first fields as the mask
    shows them."""

    id: str
    shard_key: str
    deliveries: int
    at: Instant
    size: int
    fields: dict[str, str]


class ChangedLetters(_Result, frozen=True, kw_only=True):
    """Ids of the dead letters that were requeued or deleted; the others were none any more."""

    ids: list[str]


# policies and doctor ------------------------------------------------------------------------------


class PolicyEntry(_Result, frozen=True, kw_only=True):
    """A version of computed weights and limits, without them."""

    version: int
    queue: str
    state: PolicyState
    supersedes: int | None
    author: str
    why: str
    computed_at: int
    is_canary: bool
    judged_at: int | None
    verdict: str | None


class PolicyList(_Result, frozen=True, kw_only=True):
    """Versions, the newest first, and the switches."""

    policies: list[PolicyEntry]
    switches: list[Switch]


# bulk actions and audit ---------------------------------------------------------------------------


class TenantPreview(_Result, frozen=True, kw_only=True):
    """Number of tenants that a bulk action would be about now, and the first of them by name.
    `is_sample`: tenants with few tasks may be missing."""

    number: int
    first: list[str]
    is_sample: bool


# results of actions -------------------------------------------------------------------------------


class TaskOutcome(_Result, frozen=True, kw_only=True):
    """Result for one of the named tasks; `error` is null if it was changed."""

    id: str
    error: str | None


class ChangedTasks(_Result, frozen=True, kw_only=True):
    """Result of a change of named tasks."""

    changed: int
    refused: int
    outcomes: list[TaskOutcome]


class Done(_Result, frozen=True, kw_only=True):
    """Result of an action that returns nothing else."""

    done: bool = True


class Submitted(_Result, frozen=True, kw_only=True):
    """The task that was submitted."""

    id: str


class PublishedPolicy(_Result, frozen=True, kw_only=True):
    """The version that is in force now."""

    version: int
