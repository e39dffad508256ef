"""Tombstones of the ordered schedule on Cassandra: 100,000 tasks of one hour are completed, then
reads are traced.

python bench/ordered_tombstones.py [--tasks 100000] [--keys 1000]

Measured once without a stuck task, once with one stuck task at the head that holds back the
low-water mark, and once with 200. Operators usually warn at 1,000 tombstones a read; Cassandra
fails a read at 100,000.

With --keys, the tasks are overdue and belong to so many ordering keys instead: one owner reads and
completes them all, and the rows it received for each task are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fairlead.backends.cassandra.schedule import CassandraScheduleStore  # noqa: E402
from fairlead.backends.sql.migrate import migrate  # noqa: E402
from fairlead.connect import task_store  # noqa: E402
from fairlead.core.schedule.schedule import Schedule  # noqa: E402
from fairlead.core.schedule.throughput import Window  # noqa: E402
from fairlead.model import (  # noqa: E402
    NewTask,
    Outcome,
    PartitionKey,
    RunEnd,
    ScheduledTask,
    ScheduleRecord,
    State,
    TaskKey,
)
from fairlead.ordered.persistence import READS_AT_ONCE  # noqa: E402
from fairlead.ordered.record import MOST_DONE  # noqa: E402
from fairlead.ports.schedule_store import HOUR  # noqa: E402
from services.cassandra import CassandraServer  # noqa: E402

PARTITION = PartitionKey("reminders", 0)
NOW = 490_000 * HOUR
END = TaskKey(NOW + HOUR, "", "")
KEEP_EVERY = 5
"""Number of writes, each of 500 ended runs, between two saves of the low-water mark: five seconds
at 500 tasks per second."""


def task(n: int, keys: int | None = None) -> NewTask:
    return NewTask(
        str(uuid.UUID(int=n)),
        *PARTITION,
        "remind",
        b'{"name": "someone"}',
        "json",
        5,
        "",
        1.0,
        f"k{n % (keys or n + 1)}",
        f"u{n}",
        NOW + n,
        NOW,
        False,
        None,
    )


async def complete(store: CassandraScheduleStore, tasks: int, stuck: int) -> TaskKey:
    """Complete tasks as a partition does, from its own schedule, and return the saved low-water
    mark."""
    owned = await store.take_over(PARTITION)
    schedule = Schedule(TaskKey(NOW - 1, "", ""), Window())
    held = set(range(0, tasks, tasks // stuck)) if stuck else set()
    writes = 0
    ends: list[RunEnd] = []

    async def write() -> None:
        nonlocal writes
        await store.finish(PARTITION, owned.range_id, ends)
        for end in ends:
            schedule.ended(end.scheduled.key, None if end.completes else end.again)
        ends.clear()
        writes += 1
        if writes % KEEP_EVERY == 0:
            await store.keep(
                PARTITION,
                owned.range_id,
                ScheduleRecord(low_water_mark=schedule.low_water_mark),
                schedule.completed_ranges(MOST_DONE),
            )

    for start in range(0, tasks, 1000):
        new = [task(n) for n in range(start, start + 1000)]
        await store.persist(
            PARTITION,
            owned.range_id,
            new,
            ScheduleRecord(low_water_mark=schedule.low_water_mark_with(new)),
        )
        schedule.written(new, ())
        while (read := schedule.next_read(NOW + HOUR)) is not None:
            schedule.read_done(await store.read(PARTITION, *read[1:4], read.ordering_key))
        while due := schedule.due(NOW + HOUR):
            for scheduled in due:
                is_stuck = scheduled.key.run_at - NOW in held
                state = State.WAITING if is_stuck else State.DONE
                ends.append(
                    RunEnd(
                        scheduled,
                        scheduled.attempt + 1,
                        1,
                        Outcome.RETRIED if is_stuck else Outcome.DONE,
                        state,
                        NOW + HOUR,
                        2 * NOW if is_stuck else None,
                    )
                )
                if len(ends) == 500:
                    await write()
            if ends:
                await write()
    await store.keep(
        PARTITION,
        owned.range_id,
        ScheduleRecord(low_water_mark=schedule.low_water_mark),
        schedule.completed_ranges(MOST_DONE),
    )
    return (await store.take_over(PARTITION)).record.low_water_mark


def done(scheduled: ScheduledTask) -> RunEnd:
    return RunEnd(scheduled, scheduled.attempt + 1, 1, Outcome.DONE, State.DONE, NOW + HOUR)


async def complete_overdue(store: CassandraScheduleStore, tasks: int, keys: int) -> dict[str, Any]:
    """Complete overdue tasks of some ordering keys, as a new owner does; trace every 50th read."""
    range_id = (await store.take_over(PARTITION)).range_id
    for start in range(0, tasks, 1000):
        new = [task(n, keys) for n in range(start, start + 1000)]
        await store.persist(PARTITION, range_id, new, ScheduleRecord())
    range_id = (await store.take_over(PARTITION)).range_id
    schedule = Schedule(TaskKey(NOW - 1, "", ""), Window())
    before, began = store.session.received, time.perf_counter()
    ended = reads = writes = 0
    tombstones = [0]
    while ended < tasks:
        while (read := schedule.next_read(NOW + HOUR)) is not None:
            together = [read, *schedule.reads_beside(READS_AT_ONCE - 1)]
            about = [
                (PARTITION, one.after, one.through, one.limit, one.ordering_key) for one in together
            ]
            found = await asyncio.gather(*(store.read(*one) for one in about))
            if reads % 50 == 0:
                tombstones.append((await store.traced_read(*about[0]))[1].tombstones)
            for one, rows in zip(together[1:], found[1:], strict=True):
                schedule.read_beside_done(one, rows)
            schedule.read_done(found[0])
            reads += 1
        due = schedule.due(NOW + HOUR)
        for some in (due[n : n + 500] for n in range(0, len(due), 500)):
            await store.finish(PARTITION, range_id, [done(scheduled) for scheduled in some])
            for scheduled in some:
                schedule.ended(scheduled.key, None)
            ended += len(some)
            writes += 1
            if writes % KEEP_EVERY == 0:
                record = ScheduleRecord(low_water_mark=schedule.low_water_mark)
                await store.keep(PARTITION, range_id, record, schedule.completed_ranges(MOST_DONE))
    return {
        "tasks": tasks,
        "keys": keys,
        "per_s": round(tasks / (time.perf_counter() - began)),
        "reads": reads,
        "rows_for_each_task": round((store.session.received - before) / tasks, 2),
        "most_tombstones_of_a_read": max(tombstones),
    }


async def traced(store: CassandraScheduleStore, mark: TaskKey, tasks: int) -> dict[str, Any]:
    """Trace the reads of an owner: all pages from the low-water mark, one page of a key, pages from
    the middle and from the end."""

    async def tombstones(after: TaskKey, limit: int, ordering_key: str | None = None) -> int:
        return (await store.traced_read(PARTITION, after, END, limit, ordering_key))[1].tombstones

    scanned, found, after = [], 0, mark
    began = time.perf_counter()
    while True:
        rows, scan = await store.traced_read(PARTITION, after, END, 1000)
        scanned.append(scan.tombstones)
        found += len(rows)
        if len(rows) < 1000:
            break
        after = rows[-1].key
    middle, end = TaskKey(NOW + tasks // 2, "", ""), TaskKey(NOW + tasks - 1, "", "")
    return {
        "unfinished": found,
        "pages": len(scanned),
        "tombstones_per_page": max(scanned),
        "seconds_with_traces": round(time.perf_counter() - began, 2),
        "tombstones_of_one_key": await tombstones(mark, 20, "k0"),
        "tombstones_from_the_middle": await tombstones(middle, 1000),
        "tombstones_from_the_end": await tombstones(end, 1000),
    }


async def run(tasks: int, heads: Iterable[int], keys: int | None) -> None:
    with CassandraServer() as server:
        for stuck in heads:
            with tempfile.TemporaryDirectory() as folder:
                history = task_store(f"sqlite:///{folder}/tasks.db")
                migrate(history.database)
                store = CassandraScheduleStore(server.create_keyspace(), history)
                await store.migrate()
                if keys is not None:
                    report = await complete_overdue(store, tasks, keys)
                else:
                    began = time.perf_counter()
                    low_water_mark = await complete(store, tasks, stuck)
                    report = {
                        "tasks": tasks,
                        "stuck": stuck,
                        "per_s": round(tasks / (time.perf_counter() - began)),
                    } | await traced(store, low_water_mark, tasks)
                print(json.dumps(report), flush=True)
                await store.close()
                await history.database.close_async()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--keys", type=int, help="complete overdue tasks of so many ordering keys")
    options = parser.parse_args()
    asyncio.run(run(options.tasks, (0, 1, 200) if options.keys is None else (0,), options.keys))


if __name__ == "__main__":
    main()
