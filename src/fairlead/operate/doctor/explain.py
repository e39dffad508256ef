"""The explanation of one task: its state, and what it waits for."""

from __future__ import annotations

from fairlead.clock import MICROS, to_datetime
from fairlead.engine.membership import SILENT_SECONDS
from fairlead.errors import UnknownTask
from fairlead.model import LaneKey, PartitionKey, State, TaskRecord
from fairlead.operate.context import OperateContext
from fairlead.operate.doctor.finding import Finding, ok, problem
from fairlead.operate.overview import owners

_EVERY_KEY = 1_000_000
_FOR_A_LIMIT = "it waits for a limit of its task or queue, or for its ordering key"


async def explain(context: OperateContext, task_id: str) -> list[Finding]:
    """Return findings that explain the state of a task. Raise UnknownTask."""
    store = context.store
    record: TaskRecord | None = store.database.read_now(store.records.task(task_id))
    if record is None:
        raise UnknownTask(f"no task {task_id!r}: it never committed, or its history was cleaned")
    match record.state:
        case State.WAITING:
            return [_waiting(record)]
        case State.PROCESSING:
            return [await _processing(context, record)]
        case State.ERROR:
            return [_in_error(record)]
        case State.SUBMITTED:
            return await _submitted(context, record)
        case _:
            return [ok(f"{record.state}: it is finished")]


def _waiting(record: TaskRecord) -> Finding:
    why = "its next try" if record.attempt else "its time"
    return ok(
        f"WAITING for {why}: {to_datetime(record.run_at).isoformat()}",
        f"`fairlead tasks resume {record.id}` runs it now",
    )


async def _processing(context: OperateContext, record: TaskRecord) -> Finding:
    since = ""
    if record.claimed_at is not None:
        since = f" since {to_datetime(record.claimed_at).isoformat()}"
    silent = await context.store.silent_nodes(context.clock.now(), round(SILENT_SECONDS * MICROS))
    if record.node in silent:
        return problem(
            f"PROCESSING on {record.node}{since}, which is silent: it is resumed within seconds"
        )
    return ok(f"PROCESSING on {record.node}{since}, attempt {record.attempt}")


def _in_error(record: TaskRecord) -> Finding:
    text = (record.error_text or "").split("\n")[0]
    return problem(
        f"ERROR after {record.attempt} attempts: {record.error_type}: {text}",
        f"`fairlead tasks retry {record.id}` or `fail`",
    )


async def _submitted(context: OperateContext, record: TaskRecord) -> list[Finding]:
    found = _paused(context, record)
    held = await _held_by_its_key(context, record)
    return [*found, held or await _in_its_partition(context, record)]


def _paused(context: OperateContext, record: TaskRecord) -> list[Finding]:
    store = context.store
    queues = store.database.read_now(store.records.queue_statuses())
    if not any(queue.queue == record.queue and queue.paused for queue in queues):
        return []
    what = f"SUBMITTED, and its queue {record.queue} is paused"
    return [problem(what, f"`fairlead queues resume {record.queue}`")]


async def _held_by_its_key(context: OperateContext, record: TaskRecord) -> Finding | None:
    """Return a finding if an earlier task of the same ordering key holds this one, or None."""
    if record.ordering_key is None:
        return None
    store = context.store
    heads = await store.database.read(store.ordered([(record.queue, record.ordering_key)], 1))
    if not heads or heads[0][0].id == record.id:
        return None
    head, state = heads[0]
    what = (
        f"SUBMITTED, and its ordering key {record.ordering_key!r} is held by {head.id}, which is"
        f" {state}"
    )
    if state == State.ERROR:
        return problem(what, f"`fairlead tasks retry {head.id}`, `fail` or `cancel`")
    return ok(what)


async def _in_its_partition(context: OperateContext, record: TaskRecord) -> Finding:
    read_by = await owners(context, [record.queue])
    owner = read_by.get(PartitionKey(record.queue, record.partition))
    where = f"SUBMITTED in partition {record.partition} of {record.queue}"
    position, cure = await _position(context, record)
    if owner is None:
        return problem(
            f"{where}, read by nobody, {position}", "start `fairlead worker` for this queue"
        )
    return ok(f"{where}, owner {owner}, {position}", cure)


async def _position(context: OperateContext, record: TaskRecord) -> tuple[str, str]:
    """Return the position of a task among the others of its partition, and why it waits there."""
    store, backlog = context.store, context.backlog
    lane = LaneKey(record.queue, record.partition, record.priority)
    owned = (await backlog.records()).get(PartitionKey(record.queue, record.partition))
    if owned is not None and record.priority in owned.unreadable:
        return (
            "in a lane that stands still: its record cannot be read",
            f"correct or delete {owned.unreadable[record.priority]}",
        )
    kept = None if owned is None else owned.lanes.get(record.priority)
    entry = None if kept is None else await backlog.entry(lane, record.id)
    limits = f"if nothing is ahead of it, {_FOR_A_LIMIT}"
    if owned is None or kept is None or entry is None or entry.level is None:
        ahead = await store.database.read(store.records.ahead(record.id))
        if owned is None:
            return f"{ahead:,} tasks arrived before it", limits
        return f"not in the stored backlog, at most {ahead:,} tasks ahead of it", limits
    tasks, keys = await backlog.ahead(lane, kept.ack_level, entry.level)
    loads, _ = await store.database.read(store.records.heaviest_keys(record.queue, _EVERY_KEY))
    share = next((load.share for load in loads if load.fairness_key == record.fairness_key), 0.0)
    level = f"({entry.level.pass_}, {entry.level.id})"
    if tasks == 0:
        return f"level {level}, nothing ahead of it", _FOR_A_LIMIT
    ahead_of_it = "1 task" if tasks == 1 else f"{tasks:,} tasks"
    of_keys = "1 key" if keys == 1 else f"{keys:,} keys"
    return (
        f"level {level}, {ahead_of_it} ahead of it from {of_keys}, its key's share {share:.1%}",
        limits,
    )
