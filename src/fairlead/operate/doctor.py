"""What is misconfigured, what waits, and why: checks as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from fairlead.app import App
from fairlead.backends.sql.history import SqlHistory
from fairlead.backends.sql.policies import SqlPolicies
from fairlead.backends.sql.task_store import SqlTaskStore
from fairlead.clock import MICROS, to_datetime
from fairlead.core.limits import permits
from fairlead.engine.cluster_limits import cluster_wide
from fairlead.engine.membership import SILENT_SECONDS
from fairlead.engine.ownership import owners_of
from fairlead.errors import StoreUnavailable, UnknownQueue, UnknownTask
from fairlead.model import LaneKey, PartitionKey, State, TaskRecord
from fairlead.operate.overview import owners
from fairlead.ordered.partition import STALE_SECONDS
from fairlead.ports.history import START, Place
from fairlead.ports.policy_store import PolicyState
from fairlead.ports.trigger_channel import PartitionStatus

Severity = Literal["ok", "note", "problem"]

_EVERY_KEY = 1_000_000
_MOST_SHOWN = 10

QUIET_SECONDS = 86_400
"""A reader of the history that says nothing for longer than this keeps it from being cleaned."""

MOST_COUNTED = 1_000_000
"""Attempts that a reader has not read are counted up to here."""

OLD_SECONDS = 300
"""A SUBMITTED task that waits longer than this is worth a note."""


class Finding(msgspec.Struct, frozen=True):
    """One thing found. `cure` says what to do about a problem."""

    severity: Severity
    what: str
    cure: str | None = None


async def examine(app: App) -> list[Finding]:
    """Check the store, the nodes and the queues. Raises StoreUnavailable, SchemaMismatch when there
    is nothing to check."""
    store = app.store
    coordinator = app.connections.coordinator
    try:
        leases = await coordinator.leases()
        held = Finding(
            "ok",
            f"{coordinator.location}: {len(leases)} leases of {len({o.owner for o in leases})}"
            " workers",
        )
    except StoreUnavailable as error:
        leases = None
        cure = (
            "start it: until then no partition and no poller changes hands, and cluster-wide limits"
            " let nothing run"
        )
        held = Finding("problem", str(error), cure)
    management = app.management
    nodes, queues = management.nodes(), management.queues()
    read_by: Mapping[PartitionKey, str] | None = None if leases is None else owners_of(leases)
    told: list[Finding] = []
    if app.channel.carries_triggers:
        told, read_by = await _channel(
            app, {queue.queue: queue.partitions for queue in queues}, read_by
        )
    silent = set(await store.silent_nodes(app.clock.now(), round(SILENT_SECONDS * MICROS)))
    living = [node for node in nodes if node.node not in silent]
    now = app.clock.now()
    tables = ", its tables are up to date" if isinstance(store, SqlTaskStore) else ""
    found = [Finding("ok", f"{store.database.location}: reachable{tables}"), held, *told]
    found += [
        Finding(
            "problem",
            f"node {name} is silent; what it held is resumed by the others",
            "start a worker if none is left",
        )
        for name in sorted(silent)
    ]
    for queue in queues:
        serving = [node for node in living if queue.queue in node.queues]
        waiting = queue.waiting + queue.submitted
        if waiting and not serving:
            found.append(
                Finding(
                    "problem",
                    f"queue {queue.queue}: {waiting} tasks and no living worker",
                    "start `fairlead worker` for it",
                )
            )
        if len(serving) > queue.partitions and not app.channel.decides_order:
            found.append(
                Finding(
                    "note",
                    f"queue {queue.queue}: {len(serving)} workers share {queue.partitions}"
                    " partitions, so some stand by",
                    f"declare partitions={len(serving)} or more",
                )
            )
        if queue.paused:
            found.append(
                Finding(
                    "note",
                    f"queue {queue.queue} is paused",
                    f"`fairlead queues resume {queue.queue}`",
                )
            )
        if queue.error:
            cure = f"`fairlead tasks list --state ERROR --queue {queue.queue}`"
            found.append(
                Finding(
                    "problem",
                    f"queue {queue.queue}: {queue.error} tasks in ERROR ask for a person",
                    cure,
                )
            )
        if queue.oldest_ready_at is not None and not queue.paused:
            age = (now - queue.oldest_ready_at) / MICROS
            if age > OLD_SECONDS:
                found.append(
                    Finding(
                        "note",
                        f"queue {queue.queue}: the oldest task has waited {age:,.0f} s",
                        "add workers, or look at its limits",
                    )
                )
        if serving and read_by is not None and not app.channel.decides_order:
            found += _unowned(queue.queue, queue.partitions, read_by)
        if leases is not None and isinstance(store, SqlTaskStore):
            found += await _ordered(app, queue.queue)
        declared = app.queues.get(queue.queue)
        if declared is not None and declared.partitions < queue.partitions:
            found.append(
                Finding(
                    "note",
                    f"queue {queue.queue}: {declared.partitions} partitions here,"
                    f" {queue.partitions} in the store, which counts",
                )
            )
    if isinstance(store, SqlTaskStore):
        found += _readers(store, now)
        found += _policies(store)
    if leases is not None:
        found += await _permits(app)
    if app.handlers:
        for (queue_name, name), count in (await store.database.read(store.records.names())).items():
            if name not in app.handlers:
                found.append(
                    Finding(
                        "problem",
                        f"{count} tasks named {name!r} in {queue_name}: no such task in this"
                        " application",
                        "deploy one that has it",
                    )
                )
    return found


async def _permits(app: App) -> list[Finding]:
    """What is given out of the cluster-wide limits that the application declares."""
    found = []
    for name in cluster_wide(app.queues.values(), app.handlers.values()):
        data, _ = await app.connections.coordinator.read_book(name)
        try:
            book = permits.decode(data)
        except msgspec.DecodeError as error:
            cure = (
                "stop the workers, and delete it where the coordinator keeps it: they write it anew"
            )
            found.append(
                Finding(
                    "problem",
                    f"the book of the cluster-wide limit {name} cannot be read: {error}",
                    cure,
                )
            )
            continue
        pools = sorted({pool for holding in book.nodes.values() for pool in holding.shares})
        given = [f"{pool or 'all'} {permits.held(book, pool)}" for pool in pools[:_MOST_SHOWN]]
        given += [f"and {len(pools) - _MOST_SHOWN} more"] if len(pools) > _MOST_SHOWN else []
        found.append(
            Finding("ok", f"cluster-wide limit {name}: given out {', '.join(given) or 'nothing'}")
        )
    return found


async def _ordered(app: App, queue: str) -> list[Finding]:
    """Of an ordered queue; of another, nothing."""
    try:
        views = await app.management.ordered.status(queue)
    except UnknownQueue:  # tasks were submitted, and no worker has come yet
        return []
    if not views:
        return []
    told = [
        Finding(
            "problem",
            f"queue {queue}, partition {view.partition}: loaded anew {view.reloads} times in a row:"
            f" {view.trouble}",
            "its tasks wait until that is cured; nothing is lost",
        )
        for view in views
        if view.trouble is not None and view.reloads > 1
    ]
    if stale := sum(view.stale for view in views):
        late = sum(view.stale > 0 for view in views)
        told.append(
            Finding(
                "problem",
                f"queue {queue}: {stale} tasks in {late} partitions were due more than"
                f" {STALE_SECONDS:.0f} s ago",
                f"`fairlead ordered status {queue}`; a stuck one: `fairlead ordered drop {queue}"
                " ORDERING_KEY`",
            )
        )
    unfinished, lag = sum(view.unfinished for view in views), sum(view.lag for view in views)
    what = (
        f"queue {queue}: {unfinished} tasks in the schedule, {lag} entries in the log, of"
        f" {len(views)} partitions"
    )
    return [*told, Finding("ok", what)]


def _policies(store: SqlTaskStore) -> Iterator[Finding]:
    """Where computed weights and limits count, and where they are not allowed to."""
    policies = SqlPolicies(store)
    for queue, policy in sorted(store.database.look(policies.newest()).items()):
        if policy.state == PolicyState.ACTIVE and (policy.guarded or policy.limits):
            trial = ", on trial" if policy.judged_at is None else ""
            limits = f", limits of {len(policy.limits)}" if policy.limits else ""
            yield Finding(
                "ok",
                f"queue {queue}: computed weights of {len(policy.guarded)} keys{limits}, version"
                f" {policy.version}{trial}",
            )
    for switch in store.database.look(policies.switches()):
        where = f" --queue {switch.queue}" if switch.queue else ""
        what = (
            f"computed weights of {switch.queue or 'every queue'} are {switch.mode}, by"
            f" {switch.author}: {switch.why}"
        )
        yield Finding("note", what, f"`fairlead pipeline tune on{where}`")


def _readers(store: SqlTaskStore, now: int) -> Iterator[Finding]:
    """Who follows the history; what they have not read, and lakes not compared, is not cleaned."""
    history = SqlHistory(store.database)
    look = history.database.look
    horizon: Place = look(history.horizon())
    for reader in look(history.readers()):
        if reader.kind == "events":
            continue  # it goes with its lake
        forget = f"`fairlead pipeline status --forget '{reader.name}'`"
        until = look(history.place_after(reader.place, horizon, MOST_COUNTED))
        behind = look(history.attempts_between(reader.place, until)).rows
        more = " or more" if behind == MOST_COUNTED else ""
        yield Finding("ok", f"{reader.name}: {behind:,}{more} finished attempts are not read yet")
        if now - reader.updated_at > QUIET_SECONDS * MICROS:
            days = (now - reader.updated_at) / MICROS / 86_400
            start = (
                "start `fairlead pipeline ingest`" if reader.kind == "lake" else "start its stream"
            )
            what = (
                f"{reader.name} was not heard of for {days:,.1f} days, and history is kept for it"
            )
            yield Finding("problem", what, f"{start}, or {forget}")
        is_unchecked = reader.kind == "lake" and reader.place > (reader.checked or START)
        if is_unchecked and now - (reader.checked_at or 0) > QUIET_SECONDS * MICROS:
            when = "never" if reader.checked_at is None else "not for a day"
            what = (
                f"{reader.name} was {when} compared with this store, which keeps until then what is"
                " in it"
            )
            yield Finding("problem", what, f"`fairlead pipeline reconcile`, or {forget}")


async def _channel(
    app: App, queues: Mapping[str, int], by_leases: Mapping[PartitionKey, str] | None
) -> tuple[list[Finding], Mapping[PartitionKey, str] | None]:
    """A channel with servers of its own: they, what lies there, and who reads the partitions."""
    is_sharing = app.channel.shares_partitions
    try:
        status = await app.channel.status(queues)
    except StoreUnavailable as error:
        goes_on = (
            "workers go on by the rows for 10 s, then nothing new starts"
            if is_sharing
            else "nothing new starts"
        )
        cure = f"start it: {goes_on} until it is back; nothing is lost"
        return [Finding("problem", str(error), cure)], None if is_sharing else by_leases
    assert status is not None
    found = [Finding("ok", f"{app.channel.location}: reachable, {status.servers}")]
    for load in status.loads:
        oldest = "" if load.oldest is None else f", the oldest for {load.oldest:,.0f} s"
        what = (
            f"triggers of {load.queue}: {load.waiting:,} waiting, {load.held:,} held by"
            f" workers{oldest}"
        )
        found.append(Finding("ok", what))
    if not is_sharing:
        return found, by_leases
    of_queue: dict[str, list[PartitionStatus]] = {queue: [] for queue in queues}
    for partition in status.partitions:
        of_queue[partition.queue].append(partition)
    by_leases = by_leases or {}
    for queue, partitions in of_queue.items():
        if not partitions and any(key.queue == queue for key in by_leases):
            continue  # an ordered one: its partitions are held by leases
        if len(partitions) < queues[queue]:
            what = (
                f"topic of {queue}: {len(partitions) or 'no'} partitions, the queue has"
                f" {queues[queue]}"
            )
            found.append(
                Finding("note", what, "a worker makes it, or makes it larger, when it starts")
            )
            continue
        lags = [f"{p.partition}: {p.lag:,}" for p in partitions if p.lag]
        each = (
            f" ({', '.join(lags[:_MOST_SHOWN])}{', ...' if len(lags) > _MOST_SHOWN else ''})"
            if lags
            else ""
        )
        lag = f"lag {sum(p.lag for p in partitions):,}{each}"
        found.append(Finding("ok", f"topic of {queue}: {len(partitions)} partitions, {lag}"))
    shared_out = {
        PartitionKey(p.queue, p.partition): p.owner
        for p in status.partitions
        if p.owner is not None
    }
    return found, {**by_leases, **shared_out}


def _unowned(queue: str, partitions: int, read_by: Mapping[PartitionKey, str]) -> Iterator[Finding]:
    free = [p for p in range(partitions) if PartitionKey(queue, p) not in read_by]
    if free:
        which = ", ".join(map(str, free))
        yield Finding(
            "note",
            f"queue {queue}: nobody reads partition {which} right now",
            "it is taken within seconds",
        )


async def explain(app: App, task_id: str) -> list[Finding]:
    """Why a task is where it is. Raises UnknownTask."""
    store = app.store
    record: TaskRecord | None = store.database.look(store.records.task(task_id))
    if record is None:
        raise UnknownTask(f"no task {task_id!r}: it never committed, or its history was cleaned")
    if record.state == State.WAITING:
        why = "its next try" if record.attempt else "its time"
        return [
            Finding(
                "ok",
                f"WAITING for {why}: {to_datetime(record.run_at).isoformat()}",
                f"`fairlead tasks resume {task_id}` runs it now",
            )
        ]
    if record.state == State.PROCESSING:
        since = (
            ""
            if record.grabbed_at is None
            else f" since {to_datetime(record.grabbed_at).isoformat()}"
        )
        silent = await store.silent_nodes(app.clock.now(), round(SILENT_SECONDS * MICROS))
        if record.node in silent:
            return [
                Finding(
                    "problem",
                    f"PROCESSING on {record.node}{since}, which is silent: it is resumed within"
                    " seconds",
                )
            ]
        return [Finding("ok", f"PROCESSING on {record.node}{since}, attempt {record.attempt}")]
    if record.state == State.ERROR:
        text = (record.error_text or "").split("\n")[0]
        return [
            Finding(
                "problem",
                f"ERROR after {record.attempt} attempts: {record.error_type}: {text}",
                f"`fairlead tasks retry {task_id}` or `fail`",
            )
        ]
    if record.state != State.SUBMITTED:
        return [Finding("ok", f"{record.state}: it is finished")]
    found = []
    status = next((queue for queue in app.management.queues() if queue.queue == record.queue), None)
    if status is not None and status.paused:
        found.append(
            Finding(
                "problem",
                f"SUBMITTED, and its queue {record.queue} is paused",
                f"`fairlead queues resume {record.queue}`",
            )
        )
    if record.ordering_key is not None:
        heads = await store.database.read(store.ordered([(record.queue, record.ordering_key)], 1))
        if heads and heads[0][0].id != record.id:
            head, state = heads[0]
            cure = (
                f"`fairlead tasks retry {head.id}`, `fail` or `cancel`"
                if state == State.ERROR
                else None
            )
            what = (
                f"SUBMITTED, and its ordering key {record.ordering_key!r} is held by {head.id},"
                f" which is {state}"
            )
            return [*found, Finding("problem" if state == State.ERROR else "ok", what, cure)]
    owner = (await owners(app, [record.queue])).get(PartitionKey(record.queue, record.partition))
    where = f"SUBMITTED in partition {record.partition} of {record.queue}"
    who = "read by nobody" if owner is None else f"owner {owner}"
    place, cure = await _place(app, record)
    if owner is None:
        found.append(
            Finding("problem", f"{where}, {who}, {place}", "start `fairlead worker` for this queue")
        )
    else:
        found.append(Finding("ok", f"{where}, {who}, {place}", cure))
    return found


async def _place(app: App, record: TaskRecord) -> tuple[str, str]:
    """Where a task stands among the others of its partition, and what that means."""
    store, backlog = app.store, app.connections.backlog
    lane = LaneKey(record.queue, record.partition, record.priority)
    owned = (await backlog.records()).get(PartitionKey(record.queue, record.partition))
    kept = None if owned is None else owned.lanes.get(record.priority)
    entry = None if kept is None else await backlog.entry(lane, record.id)
    limits = (
        "if nothing is ahead of it, it waits for a limit of its task or queue, or for its"
        " ordering key"
    )
    if owned is None or kept is None or entry is None or entry.level is None:
        ahead = await store.database.read(store.records.ahead(record.id))
        if owned is None:
            return f"{ahead:,} tasks arrived before it", limits
        return f"in its owner's memory, at most {ahead:,} tasks ahead of it", limits
    tasks, keys = await backlog.ahead(lane, kept.ack_level, entry.level)
    loads, _ = await store.database.read(store.records.heaviest_keys(record.queue, _EVERY_KEY))
    share = next((load.share for load in loads if load.fairness_key == record.fairness_key), 0.0)
    level = f"({entry.level.turn}, {entry.level.id})"
    if tasks == 0:
        return (
            f"level {level}, nothing ahead of it",
            "it waits for a limit of its task or queue, or for its ordering key",
        )
    ahead_of_it = "1 task" if tasks == 1 else f"{tasks:,} tasks"
    of_keys = "1 key" if keys == 1 else f"{keys:,} keys"
    return (
        f"level {level}, {ahead_of_it} ahead of it from {of_keys}, its key's share {share:.1%}",
        limits,
    )
