"""Results of operations that the modules of their subjects do not have.

Instants are in microseconds since the epoch unless a docstring says otherwise; `documents` makes
documents of all results.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from fairlead.model import TaskKey
from fairlead.operate.doctor.explain import Explanation
from fairlead.operate.ordered import OrderedPartitionView
from fairlead.operate.store.policies import PolicyState, Switch
from fairlead.operate.summary import QueueNumbers
from fairlead.operate.tenants import Tenant

Next = Annotated[
    str | None, Meta(description="Value of `after` for the next page; null at the end.")
]
Row = TypeVar("Row")


class Rows(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    """A page of a list."""

    rows: list[Row]
    next: Next


class TenantWhy(msgspec.Struct, frozen=True, kw_only=True):
    """Why a tenant waits: its numbers, and the explanations of its oldest unfinished tasks."""

    tenant: Tenant
    oldest: list[Explanation]


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """Queues by name, at most 200."""

    at: int
    queues: list[QueueNumbers]
    more_queues: int = 0
    is_sample: bool = False


class OrderedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """One ordered queue."""

    queue: str
    partitions: list[OrderedPartitionView]


class PolicyEntry(msgspec.Struct, frozen=True, kw_only=True):
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


class PolicyList(msgspec.Struct, frozen=True, kw_only=True):
    """Versions, the newest first, and the switches."""

    policies: list[PolicyEntry]
    switches: list[Switch]


class TenantPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tenants that a bulk action would be about now, and the first of them by name.
    `is_sample`: tenants with few tasks may be missing."""

    number: int
    first: list[str]
    is_sample: bool


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one of the named tasks; `error` is null if it was changed."""

    id: str
    error: str | None


class ChangedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a change of named tasks."""

    changed: int
    refused: int
    outcomes: list[TaskOutcome]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an action that returns nothing else."""

    done: bool = True


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """The ordered task that its owner was asked to end."""

    dropped: TaskKey


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The task that was submitted."""

    id: str


class PublishedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The version that is in force now."""

    version: int
