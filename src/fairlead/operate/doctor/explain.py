"""The explanation of one task: its state, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import msgspec

from fairlead.clock import MICROS, to_datetime
from fairlead.core import values
from fairlead.declare.handle import find_record
from fairlead.engine.liveness import SILENT_SECONDS
from fairlead.errors import InvalidTask, UnknownTask
from fairlead.model import LOWEST, LaneKey, Level, PartitionKey, State, TaskRecord
from fairlead.operate.context import OperateContext
from fairlead.operate.doctor.finding import Severity, counted
from fairlead.operate.filters import checked_id, is_within
from fairlead.operate.overview import owners

MOST_AHEAD = 10_000
"""Number up to which an explanation counts the tasks ahead."""

_FOR_A_LIMIT = "it waits for a limit of its task or queue, or for its ordering key"

ReasonKind = Literal[
    "finished",
    "its_time",
    "its_next_try",
    "runs",
    "node_silent",
    "in_error",
    "queue_paused",
    "held_by_its_key",
    "in_its_partition",
]


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a task among the others of its partition."""

    ahead: int | None
    """Tasks ahead of it; None in a lane that cannot be read."""
    is_cut: bool = False
    """Whether the tasks ahead were counted up to a bound only."""
    keys_ahead: int | None = None
    """Fairness keys of the tasks ahead; None if not known."""
    level: Level | None = None
    """Level in the stored fair backlog; None if it is not there."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a task is in its state, and what must happen."""

    kind: ReasonKind
    severity: Severity
    what: str
    must_happen: str | None = None
    """Event after which the task goes on, or the command by which a person continues it."""
    at: int | None = None
    """Time at which it goes on by itself, or since which it runs (microseconds since the epoch)."""
    node: str | None = None
    """Node that runs the task, or that reads its partition; None if none reads it."""
    queue: str | None = None
    held_by: str | None = None
    """Id of the task that holds its ordering key."""
    held_by_state: State | None = None
    partition: int | None = None
    position: Position | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task is in its state. All reasons apply; the last names its place."""

    task: TaskRecord
    reasons: list[Reason]


async def explanation(
    context: OperateContext,
    task_id: str,
    *,
    most_ahead: int = MOST_AHEAD,
    tenants: Collection[str] | None = None,
) -> Explanation:
    """Return why a task is in its state, and what must happen before it goes on.

    Counts at most `most_ahead` tasks ahead of one that may run. With `tenants`, no task of another
    tenant is named. Raise InvalidTask, and UnknownTask, also for a task of none of `tenants`.
    """
    values.whole("most_ahead", most_ahead, 1, values.MOST_ROWS, InvalidTask)
    record = find_record(context.connector, checked_id(task_id))
    if record is None or not is_within(record.fairness_key, tenants):
        raise UnknownTask(
            f"no task {values.brief(task_id)}: it never committed, or its history was cleaned"
        )
    return Explanation(
        task=record, reasons=await _reasons(_Sight(context, tenants, most_ahead), record)
    )


@dataclass(frozen=True)
class _Sight:
    """Bounds of what an explanation looks at."""

    context: OperateContext
    tenants: Collection[str] | None
    most_ahead: int


async def _reasons(sight: _Sight, record: TaskRecord) -> list[Reason]:
    match record.state:
        case State.WAITING:
            return [_waiting(record)]
        case State.PROCESSING:
            return [await _processing(sight.context, record)]
        case State.ERROR:
            return [_in_error(record)]
        case State.SUBMITTED:
            return await _submitted(sight, record)
        case _:
            what = f"{record.state}: it is finished"
            return [Reason(kind="finished", severity="ok", what=what)]


def _waiting(record: TaskRecord) -> Reason:
    why = "its next try" if record.attempt else "its time"
    return Reason(
        kind="its_next_try" if record.attempt else "its_time",
        severity="ok",
        what=f"WAITING for {why}: {to_datetime(record.run_at).isoformat()}",
        must_happen=f"`fairlead tasks resume {record.id}` runs it now",
        at=record.run_at,
    )


async def _processing(context: OperateContext, record: TaskRecord) -> Reason:
    since = ""
    if record.claimed_at is not None:
        since = f" since {to_datetime(record.claimed_at).isoformat()}"
    silent = await context.cluster.silent_nodes(context.clock.now(), round(SILENT_SECONDS * MICROS))
    if record.node in silent:
        return Reason(
            kind="node_silent",
            severity="problem",
            what=f"PROCESSING on {record.node}{since}, which is silent: it is resumed within"
            " seconds",
            at=record.claimed_at,
            node=record.node,
        )
    return Reason(
        kind="runs",
        severity="ok",
        what=f"PROCESSING on {record.node}{since}, attempt {record.attempt}",
        at=record.claimed_at,
        node=record.node,
    )


def _in_error(record: TaskRecord) -> Reason:
    text = (record.error_text or "").split("\n")[0]
    runs = "1 attempt" if record.attempt == 1 else f"{record.attempt} attempts"
    return Reason(
        kind="in_error",
        severity="problem",
        what=f"ERROR after {runs}: {record.error_type}: {text}",
        must_happen=f"`fairlead tasks retry {record.id}` or `fail`",
    )


async def _submitted(sight: _Sight, record: TaskRecord) -> list[Reason]:
    found = _paused(sight.context, record)
    held = await _held_by_its_key(sight, record)
    return [*found, held or await _in_its_partition(sight, record)]


def _paused(context: OperateContext, record: TaskRecord) -> list[Reason]:
    store = context.cluster
    settings = store.database.read_now(store.queue_settings()).get(record.queue)
    if settings is None or not settings.paused:
        return []
    return [
        Reason(
            kind="queue_paused",
            severity="problem",
            what=f"SUBMITTED, and its queue {record.queue} is paused",
            must_happen=f"`fairlead queues resume {record.queue}`",
            queue=record.queue,
        )
    ]


async def _held_by_its_key(sight: _Sight, record: TaskRecord) -> Reason | None:
    """Return a reason if an earlier task of the same ordering key holds this one, or None."""
    if record.ordering_key is None:
        return None
    store = sight.context.store
    heads = await store.database.read(store.ordered([(record.queue, record.ordering_key)], 1))
    if not heads or heads[0][0].id == record.id:
        return None
    head, state = heads[0]
    if not is_within(head.fairness_key, sight.tenants):
        return Reason(
            kind="held_by_its_key",
            severity="problem" if state == State.ERROR else "ok",
            what=f"SUBMITTED, and its ordering key {record.ordering_key!r} is held by a task that"
            " you may not see",
            queue=record.queue,
            held_by_state=State(state),
        )
    is_error = state == State.ERROR
    return Reason(
        kind="held_by_its_key",
        severity="problem" if is_error else "ok",
        what=f"SUBMITTED, and its ordering key {record.ordering_key!r} is held by {head.id}, which"
        f" is {state}",
        must_happen=f"`fairlead tasks retry {head.id}`, `fail` or `cancel`" if is_error else None,
        queue=record.queue,
        held_by=head.id,
        held_by_state=State(state),
    )


async def _in_its_partition(sight: _Sight, record: TaskRecord) -> Reason:
    read_by = await owners(sight.context, [record.queue])
    owner = read_by.get(PartitionKey(record.queue, record.partition))
    where = f"SUBMITTED in partition {record.partition} of {record.queue}"
    position, text, cure = await _position(sight, record)
    if owner is None:
        what = f"{where}, read by nobody, {text}"
        cure = "start `fairlead worker` for this queue"
    else:
        what = f"{where}, owner {owner}, {text}"
    return Reason(
        kind="in_its_partition",
        severity="problem" if owner is None else "ok",
        what=what,
        must_happen=cure,
        node=owner,
        queue=record.queue,
        partition=record.partition,
        position=position,
    )


async def _position(sight: _Sight, record: TaskRecord) -> tuple[Position, str, str]:
    """Return the position of a task among the others of its partition, the text of it, and why the
    task waits there."""
    store, backlog, most = sight.context.sql_store, sight.context.backlog, sight.most_ahead
    lane = LaneKey(record.queue, record.partition, record.priority)
    records = {} if backlog is None else await backlog.records()
    owned = records.get(PartitionKey(record.queue, record.partition))
    kept = None if owned is None else owned.lanes.get(record.priority)
    found = (
        [] if backlog is None or kept is None else await backlog.entries(lane, LOWEST, [record.id])
    )
    entry = max(found, key=lambda entry: entry.level or LOWEST, default=None)
    limits = f"if nothing is ahead of it, {_FOR_A_LIMIT}"
    if backlog is None or kept is None or entry is None or entry.level is None:
        ahead = await store.database.read(store.ahead(record.id, most))
        position = Position(ahead=ahead, is_cut=ahead == most)
        if position.is_cut:
            return position, f"{counted(ahead, 'task')} or more arrived before it", limits
        if owned is None:
            return position, f"{counted(ahead, 'task')} arrived before it", limits
        return (
            position,
            f"not in the stored backlog, at most {counted(ahead, 'task')} ahead of it",
            limits,
        )
    tasks, keys = await backlog.ahead(lane, kept.ack_level, entry.level, most)
    position = Position(ahead=tasks, keys_ahead=keys, level=entry.level, is_cut=tasks == most)
    level = f"({entry.level.pass_}, {entry.level.id})"
    if tasks == 0:
        return position, f"level {level}, nothing ahead of it", _FOR_A_LIMIT
    ahead_of_it = counted(tasks, "task")
    if position.is_cut:
        ahead_of_it += " or more"
    of_keys = counted(keys, "key")
    return position, f"level {level}, {ahead_of_it} ahead of it from {of_keys}", limits
