"""Documents of the JSON API, as its server makes them and its client reads them.

Ids and 64-bit numbers are texts, instants are in UTC (ISO 8601), durations are in seconds.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fairlead.model import IncidentKind, State
from fairlead.operate.store.actions import ActionState
from fairlead.operate.store.audit import AuditOutcome
from fairlead.operate.store.policies import PolicyState, SwitchMode
from fairlead.web.api.conversion import FROM_MICROS, FROM_US, FROM_WHOLE

Int64 = Annotated[
    str, Meta(pattern="^-?[0-9]{1,19}$", description="A 64-bit number.", extra=FROM_WHOLE)
]
Instant = Annotated[datetime, Meta(tz=True, description="An instant in UTC.", extra=FROM_MICROS)]
Seconds = Annotated[float, Meta(description="Seconds.", extra=FROM_MICROS)]
Duration = Annotated[float, Meta(description="Seconds.", extra=FROM_US)]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Next = Annotated[
    str | None, Meta(description="Value of `after` for the next page; null at the end.")
]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the documents."""


# numbers ------------------------------------------------------------------------------------------


class Estimate(_Document, frozen=True, kw_only=True):
    """A number of tasks: counted, or estimated from a sample."""

    number: Count
    is_exact: bool


class Counted(_Document, frozen=True, kw_only=True):
    """A number that was counted up to a bound; there may be more if `at_least` is true."""

    number: Count
    at_least: bool


class Waits(_Document, frozen=True, kw_only=True):
    """Waits of the latest runs, from ready to claimed."""

    runs: Count
    p50: Seconds | None
    p99: Seconds | None


class Window(_Document, frozen=True, kw_only=True):
    """The attempts from which numbers were computed; `is_cut`: there were earlier ones."""

    attempts: Count
    from_at: Instant | None
    to_at: Instant | None
    is_cut: bool


class _TaskNumbers(_Document, frozen=True, kw_only=True):
    """Numbers of the tasks of a queue or a tenant."""

    backlog: Estimate
    processing: Estimate
    waiting: Estimate
    errors: Counted
    oldest_ready_at: Instant | None
    runs: Count
    waits: Waits


class _TenantNumbers(_TaskNumbers, frozen=True, kw_only=True):
    """Numbers of a tenant, in one queue or in all."""

    failures: Count
    run_time: Seconds
    share_got: float | None
    share_due: float | None


# errors and access --------------------------------------------------------------------------------


class ErrorDetail(_Document, frozen=True, kw_only=True):
    """Why a request was not served: the cause and the cure."""

    status: int
    title: str
    detail: str


class ErrorDocument(_Document, frozen=True, kw_only=True):
    """Response to a request that was not served."""

    error: ErrorDetail


class Rights(_Document, frozen=True, kw_only=True):
    """Rights of the caller. `tenants`: null for all. `csrf_token` is for the header X-CSRF-Token of
    a client with a session cookie; a client with a bearer token needs none."""

    name: str
    actions: list[str]
    tenants: list[str] | None
    csrf_token: str | None


# tasks --------------------------------------------------------------------------------------------


class Task(_Document, frozen=True, kw_only=True):
    """A task. Texts such as `error_text` come from the application."""

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
    submitted_at: Instant
    run_at: Instant
    ready_at: Instant | None
    claimed_at: Instant | None
    node: str | None
    error_type: str | None
    error_text: str | None
    payload_bytes: Count


class TaskList(_Document, frozen=True, kw_only=True):
    """A page of tasks. If `is_cut` is true, the search has stopped at its bound, and the next page
    goes on, even after an empty one. `not_searched`: tasks with arguments too long to search."""

    tasks: list[Task]
    next: Next
    is_cut: bool
    not_searched: Count


class Attempt(_Document, frozen=True, kw_only=True):
    """One run of a task, or its end without a run."""

    seq: Int64
    attempt: int
    tries: int
    queue: str
    partition: int
    priority: int
    fairness_key: str
    version: int
    run_at: Instant
    ready_at: Instant | None
    triggered_at: Instant | None
    claimed_at: Instant | None
    started_at: Instant | None
    finished_at: Instant
    outcome: str
    next_state: str
    error_type: str | None
    error_text: str | None
    node: str | None
    trigger_path: str


class Level(_Document, frozen=True, kw_only=True):
    """Position in a fair backlog: pass first, then id."""

    pass_: Int64 = msgspec.field(name="pass")
    id: Int64


class Position(_Document, frozen=True, kw_only=True):
    """Position of a task among the others of its partition. `is_cut`: there may be more ahead."""

    ahead: Count | None
    is_cut: bool
    keys_ahead: Count | None
    level: Level | None


class Reason(_Document, frozen=True, kw_only=True):
    """One reason why a task is in its state, and what must happen."""

    kind: str
    severity: Literal["ok", "note", "problem"]
    what: str
    must_happen: str | None
    at: Instant | None
    node: str | None
    queue: str | None
    held_by: str | None
    held_by_state: State | None
    partition: int | None
    position: Position | None


class Why(_Document, frozen=True, kw_only=True):
    """Why a task is in its state. All reasons apply; the last names its place."""

    task: Task
    reasons: list[Reason]


class Progress(_Document, frozen=True, kw_only=True):
    """Progress that a run has reported: `done` of `total`, in a unit of the application."""

    done: float
    total: float | None
    note: str | None
    at: Instant
    attempt: int


class LogLine(_Document, frozen=True, kw_only=True):
    """One line that a run has logged; its text may have several lines."""

    at: Instant
    level: str
    logger: str
    text: str


class AttemptLog(_Document, frozen=True, kw_only=True):
    """Last log lines of one attempt, oldest first, and the number of earlier ones that were not
    kept."""

    attempt: int
    lines: list[LogLine]
    dropped: Count


class TaskDetail(_Document, frozen=True, kw_only=True):
    """A task with its latest attempts, first to last, and why it is in its state.

    `progress` is that of the latest run that reported any. `logs` has the lines that attempts have
    logged, if the task keeps them, first to last; `more_logs` earlier attempts have lines that are
    too many for one response. `arguments` is JSON as text, so that no number loses digits; null if
    they are not kept or not shown, and `arguments_hidden` then says why.
    """

    task: Task
    reasons: list[Reason]
    progress: Progress | None
    attempts: list[Attempt]
    more_attempts: Count
    logs: list[AttemptLog]
    more_logs: Count
    arguments: str | None
    arguments_hidden: str | None
    trace_url: str | None


# tenants ------------------------------------------------------------------------------------------


class TenantQueue(_TenantNumbers, frozen=True, kw_only=True):
    """One tenant's part of one queue."""

    queue: str
    is_paused: bool
    weight: float
    is_weight_set: bool
    limit: Count | None


class Tenant(_TenantNumbers, frozen=True, kw_only=True):
    """One tenant over all queues: tasks ready (`backlog`), running, waiting for their time or a
    retry, in ERROR; share of run time got and due, from 0 to 1."""

    tenant: str
    queues: list[TenantQueue]


class TenantList(_Document, frozen=True, kw_only=True):
    """A page of tenants."""

    tenants: list[Tenant]
    next: Next
    number: Counted
    window: Window
    is_sample: bool


class TenantWhy(_Document, frozen=True, kw_only=True):
    """Why a tenant waits: its numbers, and the explanations of its oldest unfinished tasks."""

    tenant: Tenant
    oldest: list[Why]


# queues and nodes ---------------------------------------------------------------------------------


class Incident(_Document, frozen=True, kw_only=True):
    """An open incident: a condition that needs a person."""

    id: Int64
    kind: IncidentKind
    subject: str
    details: str
    since: Instant
    queue: str
    name: str
    version: int
    deliveries: Count
    delivered_at: Instant | None


class Attention(_Document, frozen=True, kw_only=True):
    """Something that needs a person."""

    kind: str
    what: str
    queue: str | None
    name: str | None
    number: Counted | None
    since: Instant | None
    incident: Incident | None


class Queue(_TaskNumbers, frozen=True, kw_only=True):
    """Numbers of one queue."""

    queue: str
    partitions: Count
    is_paused: bool
    nodes: list[str]
    ends_per_second: float
    failures_per_second: float


class Overview(_Document, frozen=True, kw_only=True):
    """The state of all queues, and what needs a person first."""

    at: Instant
    attention: list[Attention]
    more_attention: Count
    queues: list[Queue]
    more_queues: Count
    window: Window
    is_sample: bool


class QueueList(_Document, frozen=True, kw_only=True):
    """Queues by name, at most 200."""

    at: Instant
    queues: list[Queue]
    more_queues: Count
    is_sample: bool


class Lane(_Document, frozen=True, kw_only=True):
    """Fair backlog of one priority of one partition, as its owner saved it last."""

    priority: int
    ack_level: Level
    read_level: Level
    max_level: Level
    buffered: Count
    stored: Count
    is_stored_cut: bool


class Partition(_Document, frozen=True, kw_only=True):
    """One partition of a queue."""

    partition: int
    owner: str | None
    range_id: Int64 | None
    lanes: list[Lane]


class Holder(_Document, frozen=True, kw_only=True):
    """Permits of a cluster-wide limit that a node holds."""

    node: str
    pool: str
    permits: Count


class Limit(_Document, frozen=True, kw_only=True):
    """A limit of a queue, or of one of its tasks."""

    name: str
    task: str | None
    policy: str
    is_cluster_wide: bool
    holders: list[Holder]
    more_holders: Count
    trouble: str | None


class QueueDetail(_Document, frozen=True, kw_only=True):
    """One queue. For a caller who is limited to tenants, the numbers are of these tenants, and
    partitions and limits are empty."""

    numbers: Queue
    attention: list[Attention]
    tenants: list[Tenant]
    partitions: list[Partition]
    limits: list[Limit]


class Node(_Document, frozen=True, kw_only=True):
    """One worker process. `slots`: runs at once; `version`: of Fairlead."""

    node: str
    started_at: Instant
    heartbeat_at: Instant
    is_alive: bool
    queues: list[str]
    names: list[str]
    partitions: Count
    slots: Count
    version: str
    python: str
    blocked_loop: Incident | None


class NodeList(_Document, frozen=True, kw_only=True):
    """Nodes, the latest heartbeat first, at most 1,000."""

    nodes: list[Node]


class IncidentList(_Document, frozen=True, kw_only=True):
    """Open incidents, the latest first."""

    incidents: list[Incident]
    next: Next


class Periodic(_Document, frozen=True, kw_only=True):
    """A periodic task. `next_slot_at` is null while no slot will run."""

    name: str
    task: str
    queue: str
    cron: str
    timezone: str
    catch_up: str
    paused: bool
    last_slot_at: Instant | None
    next_slot_at: Instant | None
    is_declared: bool
    declared_by: str


class PeriodicList(_Document, frozen=True, kw_only=True):
    """All periodic tasks, by name."""

    periodics: list[Periodic]


class OrderedKey(_Document, frozen=True, kw_only=True):
    """Identity of a task in an ordered queue, and its position."""

    run_at: Instant
    ordering_key: str
    unique_key: str


class OrderedPartition(_Document, frozen=True, kw_only=True):
    """One partition of an ordered queue. `lag`: entries of the log that are not in the schedule
    yet; `look_ahead`: seconds from now up to which tasks are in memory."""

    partition: int
    owner: str | None
    lag: Count
    unfinished: Count
    stale: Count
    oldest: OrderedKey | None
    loaded: Count
    in_flight: Count
    look_ahead: float
    reloads: Count
    trouble: str | None
    unreadable: Count
    moving_to: int | None


class OrderedQueue(_Document, frozen=True, kw_only=True):
    """One ordered queue."""

    queue: str
    partitions: list[OrderedPartition]


class OrderedList(_Document, frozen=True, kw_only=True):
    """The ordered queues that the application declares."""

    queues: list[OrderedQueue]


class OrderedTask(_Document, frozen=True, kw_only=True):
    """An unfinished task of an ordered queue."""

    id: str
    name: str
    fairness_key: str
    key: OrderedKey
    attempt: int
    tries: int
    retry_at: Instant | None
    unreadable: str | None


class OrderedTaskList(_Document, frozen=True, kw_only=True):
    """Unfinished tasks of an ordered queue, earliest first."""

    tasks: list[OrderedTask]


# sharded queues -----------------------------------------------------------------------------------


class ShardedStats(_Document, frozen=True, kw_only=True):
    """Counts of messages. `pending`: claimed by the group; `waiting`: not yet delivered to it;
    `cordoned`: past their deadline."""

    streams: Count
    messages: Count
    pending: Count
    waiting: Count
    dead: Count
    cordoned: Count
    later: Count
    oldest: Instant | None


class ShardedQueue(_Document, frozen=True, kw_only=True):
    """One sharded queue, with the counts of one of its groups. `trouble`: why it cannot be read."""

    name: str
    group: str
    groups: list[str]
    stats: ShardedStats | None
    trouble: str | None


class ShardedList(_Document, frozen=True, kw_only=True):
    """The sharded queues that the console shows."""

    queues: list[ShardedQueue]


class ShardKeyLoad(_Document, frozen=True, kw_only=True):
    """Messages of a shard key, and its weight if one is set."""

    shard_key: str
    messages: Count
    weight: float | None


class StreamLoad(_Document, frozen=True, kw_only=True):
    """Messages of a stream."""

    stream: str
    messages: Count


class ConsumerLoad(_Document, frozen=True, kw_only=True):
    """Messages that a consumer has claimed, and its last read."""

    name: str
    messages: Count
    last_read: Instant | None


class ShardedDetail(_Document, frozen=True, kw_only=True):
    """One sharded queue with its heaviest shard keys, longest streams and consumers of the group.
    `is_whole`: whether all consumers and shard keys were looked at."""

    queue: ShardedQueue
    is_whole: bool
    shard_keys: list[ShardKeyLoad]
    shard_key_count: Count
    streams: list[StreamLoad]
    stream_count: Count
    consumers: list[ConsumerLoad]
    consumer_count: Count


class DeadLetter(_Document, frozen=True, kw_only=True):
    """A message that was delivered too often, with its first fields as the mask shows them."""

    id: str
    shard_key: str
    deliveries: Count
    at: Instant
    size: Count
    fields: dict[str, str]


class DeadLetterList(_Document, frozen=True, kw_only=True):
    """Dead letters, oldest first."""

    letters: list[DeadLetter]
    next: Next


class ChangedLetters(_Document, frozen=True, kw_only=True):
    """Ids of the dead letters that were requeued or deleted; the others were none any more."""

    ids: list[str]


# policies and doctor ------------------------------------------------------------------------------


class PolicyEntry(_Document, frozen=True, kw_only=True):
    """A version of computed weights and limits, without them."""

    version: Int64
    queue: str
    state: PolicyState
    supersedes: Int64 | None
    author: str
    why: str
    computed_at: Instant
    is_canary: bool
    judged_at: Instant | None
    verdict: str | None


class Switch(_Document, frozen=True, kw_only=True):
    """A kill switch that a person has set; an empty `queue` stands for all queues."""

    queue: str
    mode: SwitchMode
    author: str
    why: str
    at: Instant


class PolicyList(_Document, frozen=True, kw_only=True):
    """Versions, the newest first, and the switches."""

    policies: list[PolicyEntry]
    switches: list[Switch]


class Policy(PolicyEntry, frozen=True, kw_only=True):
    """A version with its weights and limits, by fairness key."""

    input_from: Instant | None
    input_to: Instant | None
    input_rows: Count
    raw: dict[str, float]
    guarded: dict[str, float]
    reasons: dict[str, str]
    due: dict[str, float]
    raw_limits: dict[str, float]
    limits: dict[str, Count]
    limit_reasons: dict[str, str]


class Finding(_Document, frozen=True, kw_only=True):
    """One finding of the doctor."""

    severity: Literal["ok", "note", "problem"]
    what: str
    cure: str | None


class FindingList(_Document, frozen=True, kw_only=True):
    """Findings of the doctor, problems first."""

    findings: list[Finding]


# bulk actions and audit ---------------------------------------------------------------------------


class Where(_Document, frozen=True, kw_only=True):
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
    submitted_from: Instant | None
    submitted_before: Instant | None


class BulkAction(_Document, frozen=True, kw_only=True):
    """A change of all tasks that match a filter. `change` is JSON as text."""

    id: Int64
    verb: str
    change: str
    where: Where
    tenants: list[str] | None
    most: Count | None
    actor: str
    asked_at: Instant
    state: ActionState
    is_stopping: bool
    performer: str | None
    looked: Count
    changed: Count
    refused: Count
    error: str | None
    ended_at: Instant | None


class BulkActionList(_Document, frozen=True, kw_only=True):
    """Bulk actions, the newest first."""

    actions: list[BulkAction]
    next: Next


class Preview(_Document, frozen=True, kw_only=True):
    """Number of tasks that a bulk action would change now, and the first of them. `refused`: tasks,
    among those looked at, whose state does not allow the change."""

    changed: Count
    is_more: bool
    refused: Count
    first: list[Task]


class TenantPreview(_Document, frozen=True, kw_only=True):
    """Number of tenants that a bulk action would be about now, and the first of them by name.
    `is_sample`: tenants with few tasks may be missing."""

    number: Count
    first: list[str]
    is_sample: bool


class AuditEntry(_Document, frozen=True, kw_only=True):
    """An action of a person."""

    id: Int64
    at: Instant
    actor: str
    verb: str
    outcome: AuditOutcome
    task_id: str | None
    queue: str | None
    fairness_key: str | None
    subject: str | None
    action: Int64 | None
    details: str | None


class AuditList(_Document, frozen=True, kw_only=True):
    """Actions of people, the newest first."""

    entries: list[AuditEntry]
    next: Next


# history ------------------------------------------------------------------------------------------


class _History(_Document, frozen=True, kw_only=True):
    """Base of the results of the lake: period, step in seconds, state of the tables."""

    since: Instant
    until: Instant
    step: Count
    built_at: Instant | None
    history_until: Instant | None
    note: str


class _PartRow(_Document, frozen=True, kw_only=True):
    """One part in one step; `part` is null for all after the top ones, together."""

    at: Instant
    part: str | None
    rank: int


class RunsRow(_PartRow, frozen=True, kw_only=True):
    """Runs of one part in one step."""

    started: Count
    done: Count
    failed: Count
    busy: Duration
    wasted: Duration


class RunsHistory(_History, frozen=True, kw_only=True):
    """Runs, failures and worker time over a period."""

    rows: list[RunsRow]


class WaitsRow(_PartRow, frozen=True, kw_only=True):
    """Durations of one part in one step; percentiles are off by at most 1 %."""

    n: Count
    p50: Duration
    p90: Duration
    p99: Duration
    max: Duration


class WaitsHistory(_History, frozen=True, kw_only=True):
    """Waits, or other durations, over a period."""

    rows: list[WaitsRow]


class SharesRow(_PartRow, frozen=True, kw_only=True):
    """Worker time that a tenant got in one step, and that was due to it."""

    busy: Duration
    entitled: Duration
    demand: Duration
    claimed: Count
    lag: Duration
    starved: bool


class SharesHistory(_History, frozen=True, kw_only=True):
    """Shares of tenants over a period."""

    rows: list[SharesRow]


class TenantRow(_Document, frozen=True, kw_only=True):
    """One tenant over a whole period; null where the lake does not know."""

    tenant: str
    started: Count
    failed: Count
    busy: Duration
    entitled: Duration | None
    starved: bool | None
    wait_p50: Duration | None
    wait_p99: Duration | None
    amount: Decimal | None


class TenantsHistory(_History, frozen=True, kw_only=True):
    """Tenants with most worker time over a period."""

    rows: list[TenantRow]


# results of actions -------------------------------------------------------------------------------


class TaskOutcome(_Document, frozen=True, kw_only=True):
    """Result for one of the named tasks; `error` is null if it was changed."""

    id: str
    error: str | None


class ChangedTasks(_Document, frozen=True, kw_only=True):
    """Result of a change of named tasks."""

    changed: Count
    refused: Count
    outcomes: list[TaskOutcome]


class Done(_Document, frozen=True, kw_only=True):
    """Result of an action that returns nothing else."""

    done: bool = True


class Submitted(_Document, frozen=True, kw_only=True):
    """The task that was submitted."""

    id: str


class PublishedPolicy(_Document, frozen=True, kw_only=True):
    """The version that is in force now."""

    version: Int64
