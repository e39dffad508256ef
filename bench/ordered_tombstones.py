"""Tombstones of the ordered schedule on Cassandra: 100,000 tasks of one hour are completed, then
reads are traced.

python bench/ordered_tombstones.py [--tasks 100000]

Measured once without a stuck task, once with one stuck task at the head that holds back the
low-water mark, and once with 200. Operators usually warn at 1,000 tombstones a read; Cassandra
fails a read at 100,000.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
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
from fairlead.model import NewTask, Outcome, PartitionKey, RunEnd, ScheduleRecord, State, TaskKey  # noqa: E402
from fairlead.ordered.record import MOST_DONE  # noqa: E402
from fairlead.ports.schedule_store import HOUR  # noqa: E402
from services.cassandra import CassandraServer  # noqa: E402

PARTITION = PartitionKey("reminders", 0)
NOW = 490_000 * HOUR
END = TaskKey(NOW + HOUR, "", "")
KEEP_EVERY = 5
"""Number of writes, each of 500 ended runs, between two saves of the low-water mark: five seconds
at 500 tasks per second."""


def task(n: int) -> NewTask:
    return NewTask(
        f"{n:036}",
        *PARTITION,
        "remind",
        b'{"name": "someone"}',
        "json",
        5,
        "",
        1.0,
        f"k{n}",
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
                schedule.done(MOST_DONE),
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
            schedule.read_done(await store.read(PARTITION, *read[1:], read.ordering_key))
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
        schedule.done(MOST_DONE),
    )
    return (await store.take_over(PARTITION)).record.low_water_mark


async def traced(store: CassandraScheduleStore, mark: TaskKey, tasks: int) -> dict[str, Any]:
    """Trace the reads of an owner: all pages from the low-water mark, one page of a key, pages from
    the middle and from the end."""
    scanned, found, after = [], 0, mark
    began = time.perf_counter()
    while True:
        rows, count = await store.traced_read(PARTITION, after, END, 1000)
        scanned.append(count)
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
        "tombstones_of_one_key": (await store.traced_read(PARTITION, mark, END, 20, "k0"))[1],
        "tombstones_from_the_middle": (await store.traced_read(PARTITION, middle, END, 1000))[1],
        "tombstones_from_the_end": (await store.traced_read(PARTITION, end, END, 1000))[1],
    }


async def run(tasks: int, heads: Iterable[int]) -> None:
    with CassandraServer() as server:
        for stuck in heads:
            with tempfile.TemporaryDirectory() as folder:
                history = task_store(f"sqlite:///{folder}/tasks.db")
                migrate(history.database)
                store = CassandraScheduleStore(server.create_keyspace(), history)
                await store.migrate()
                began = time.perf_counter()
                low_water_mark = await complete(store, tasks, stuck)
                report = {
                    "tasks": tasks,
                    "stuck": stuck,
                    "per_s": round(tasks / (time.perf_counter() - began)),
                }
                print(json.dumps(report | await traced(store, low_water_mark, tasks)), flush=True)
                await store.close()
                await history.database.close_async()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=100_000)
    asyncio.run(run(parser.parse_args().tasks, (0, 1, 200)))


if __name__ == "__main__":
    main()
