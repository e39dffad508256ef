"""Results of the operations of the JSON API that `fairlead.operate` does not return as they are.

Instants are in microseconds since the epoch unless a docstring says otherwise; `conversion` makes
documents of all results.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fairlead.model import (
    AttemptRecord,
    Incident,
    Progress,
    RunNotes,
    State,
    TaskKey,
    TaskRecord,
    lake_history,
)
from fairlead.operate.doctor.explain import Explanation, Reason
from fairlead.operate.doctor.finding import Finding
from fairlead.operate.filters import Counted
from fairlead.operate.limits import LimitView
from fairlead.operate.nodes import NodeView
from fairlead.operate.numbers import Window
from fairlead.operate.ordered import OrderedPartitionView
from fairlead.operate.overview import PartitionView
from fairlead.operate.store.actions import ActionState
from fairlead.operate.store.audit import AuditEntry
from fairlead.operate.store.policies import PolicyState, Switch
from fairlead.operate.summary import Attention, QueueNumbers
from fairlead.operate.tenants import Tenant
from fairlead.web.api.conversion import Instant

Next = Annotated[
    str | None, Meta(description="Value of `after` for the next page; null at the end.")
]


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the results."""


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


class TaskList(_Result, frozen=True, kw_only=True):
    """A page of tasks. If `is_cut` is true, the search has stopped at its bound, and the next page
    goes on, even after an empty one. `not_searched`: tasks with arguments too long to search."""

    tasks: list[TaskRecord]
    next: Next
    is_cut: bool
    not_searched: int


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


class TenantList(_Result, frozen=True, kw_only=True):
    """A page of tenants."""

    tenants: list[Tenant]
    next: Next
    number: Counted
    window: Window
    is_sample: bool


class TenantWhy(_Result, frozen=True, kw_only=True):
    """Why a tenant waits: its numbers, and the explanations of its oldest unfinished tasks."""

    tenant: Tenant
    oldest: list[Explanation]


# queues and nodes ---------------------------------------------------------------------------------


class Overview(_Result, frozen=True, kw_only=True):
    """The state of all queues, and what needs a person first."""

    at: int
    attention: list[Attention]
    more_attention: int
    queues: list[QueueNumbers]
    more_queues: int
    window: Window
    is_sample: bool


class QueueList(_Result, frozen=True, kw_only=True):
    """Queues by name, at most 200."""

    at: int
    queues: list[QueueNumbers]
    more_queues: int
    is_sample: bool


class QueueDetail(_Result, frozen=True, kw_only=True):
    """One queue. For a caller who is limited to tenants, the numbers are of these tenants, and
    partitions and limits are empty."""

    numbers: QueueNumbers
    attention: list[Attention]
    tenants: list[Tenant]
    partitions: list[PartitionView]
    limits: list[LimitView]


class NodeList(_Result, frozen=True, kw_only=True):
    """Nodes, the latest heartbeat first, at most 1,000."""

    nodes: list[NodeView]


class IncidentList(_Result, frozen=True, kw_only=True):
    """Open incidents, the latest first."""

    incidents: list[Incident]
    next: Next


class Periodic(_Result, frozen=True, kw_only=True):
    """A periodic task. `next_slot_at` is null while no slot will run."""

    name: str
    task: str
    queue: str
    cron: str
    timezone: str
    catch_up: str
    paused: bool
    last_slot_at: int | None
    next_slot_at: int | None
    is_declared: bool
    declared_by: str


class PeriodicList(_Result, frozen=True, kw_only=True):
    """All periodic tasks, by name."""

    periodics: list[Periodic]


class OrderedQueue(_Result, frozen=True, kw_only=True):
    """One ordered queue."""

    queue: str
    partitions: list[OrderedPartitionView]


class OrderedList(_Result, frozen=True, kw_only=True):
    """The ordered queues that the application declares."""

    queues: list[OrderedQueue]


class OrderedTask(_Result, frozen=True, kw_only=True):
    """An unfinished task of an ordered queue."""

    id: str
    name: str
    fairness_key: str
    key: TaskKey
    attempt: int
    tries: int
    retry_at: int | None
    unreadable: str | None


class OrderedTaskList(_Result, frozen=True, kw_only=True):
    """Unfinished tasks of an ordered queue, earliest first."""

    tasks: list[OrderedTask]


# sharded queues -----------------------------------------------------------------------------------


class ShardedStats(_Result, frozen=True, kw_only=True):
    """Counts of messages. `pending`: claimed by the group; `waiting`: not yet delivered to it;
    `cordoned`: past their deadline; `oldest`: in seconds since 1970."""

    streams: int
    messages: int
    pending: int
    waiting: int
    dead: int
    cordoned: int
    later: int
    oldest: float | None


class ShardedQueue(_Result, frozen=True, kw_only=True):
    """One sharded queue, with the counts of one of its groups. `trouble`: why it cannot be read."""

    name: str
    group: str
    groups: list[str]
    stats: ShardedStats | None
    trouble: str | None


class ShardedList(_Result, frozen=True, kw_only=True):
    """The sharded queues that the console shows."""

    queues: list[ShardedQueue]


class ShardKeyLoad(_Result, frozen=True, kw_only=True):
    """Messages of a shard key, and its weight if one is set."""

    shard_key: str
    messages: int
    weight: float | None


class StreamLoad(_Result, frozen=True, kw_only=True):
    """Messages of a stream."""

    stream: str
    messages: int


class ConsumerLoad(_Result, frozen=True, kw_only=True):
    """Messages that a consumer has claimed, and its last read (seconds since 1970)."""

    name: str
    messages: int
    last_read: float | None


class ShardedDetail(_Result, frozen=True, kw_only=True):
    """One sharded queue with its heaviest shard keys, longest streams and consumers of the group.
    `is_whole`: whether all consumers and shard keys were looked at."""

    queue: ShardedQueue
    is_whole: bool
    shard_keys: list[ShardKeyLoad]
    shard_key_count: int
    streams: list[StreamLoad]
    stream_count: int
    consumers: list[ConsumerLoad]
    consumer_count: int


class DeadLetter(_Result, frozen=True, kw_only=True):
    """A message that was delivered too often, of `size` bytes, with its first fields as the mask
    shows them."""

    id: str
    shard_key: str
    deliveries: int
    at: Instant
    size: int
    fields: dict[str, str]


class DeadLetterList(_Result, frozen=True, kw_only=True):
    """Dead letters, oldest first."""

    letters: list[DeadLetter]
    next: Next


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


class FindingList(_Result, frozen=True, kw_only=True):
    """Findings of the doctor, problems first."""

    findings: list[Finding]


# bulk actions and audit ---------------------------------------------------------------------------


class Where(_Result, frozen=True, kw_only=True):
    """Tasks that a bulk action is about; null selects any value. `argument`: PATH=VALUE."""

    state: State | None
    queue: str | None
    name: str | None
    fairness_key: str | None
    ordering_key: str | None
    unique_key: str | None
    id_prefix: str | None
    argument: str | None
    error: str | None
    submitted_from: int | None
    submitted_before: int | None


class BulkAction(_Result, frozen=True, kw_only=True):
    """A change of all tasks that match a filter. `change` is JSON as text."""

    id: int
    verb: str
    change: str
    where: Where
    tenants: list[str] | None
    most: int | None
    actor: str
    asked_at: int
    state: ActionState
    is_stopping: bool
    performer: str | None
    looked: int
    changed: int
    refused: int
    error: str | None
    ended_at: int | None


class BulkActionList(_Result, frozen=True, kw_only=True):
    """Bulk actions, the newest first."""

    actions: list[BulkAction]
    next: Next


class TenantPreview(_Result, frozen=True, kw_only=True):
    """Number of tenants that a bulk action would be about now, and the first of them by name.
    `is_sample`: tenants with few tasks may be missing."""

    number: int
    first: list[str]
    is_sample: bool


class AuditList(_Result, frozen=True, kw_only=True):
    """Actions of people, the newest first."""

    entries: list[AuditEntry]
    next: Next


# history ------------------------------------------------------------------------------------------


class _History(_Result, frozen=True, kw_only=True):
    """Base of the results of the lake: period, step in seconds, state of the tables."""

    since: int
    until: int
    step: int
    built_at: int | None
    history_until: int | None
    note: str


class RunsHistory(_History, frozen=True, kw_only=True):
    """Runs, failures and worker time over a period."""

    rows: list[lake_history.Runs]


class WaitsHistory(_History, frozen=True, kw_only=True):
    """Waits, or other durations, over a period."""

    rows: list[lake_history.Waits]


class SharesHistory(_History, frozen=True, kw_only=True):
    """Shares of tenants over a period."""

    rows: list[lake_history.Shares]


class TenantsHistory(_History, frozen=True, kw_only=True):
    """Tenants with most worker time over a period."""

    rows: list[lake_history.Tenant]


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
