"""A recorded workload of a fair queue: 25 days up to now, inserted directly into a store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from fairlead import App
from fairlead.clock import MICROS, SYSTEM_CLOCK
from fairlead.core.ids import IdSource, id_text
from tests.pipeline.filling import COLUMNS, add_rows, connected

DAYS = 25
QUEUE = "payouts"
RUN_SECONDS = {"acme": 4.0, "umbrella": 2.0, "globex": 1.0, "initech": 1.0, "the bank": 1.0}
"""Mean run time of each fairness key."""

NEWCOMER = "newcomer"
"""A key with fewer tasks than `tune` needs."""

_HOUR = 3600 * MICROS
_BUSY_HOURS = 5
"""Number of last hours with 60 tasks of each key."""

_QUIET_HOURS = 72
"""Hours between tasks of a key before that: few, because a build takes its time by hours with
tasks."""


def record(url: str) -> None:
    """Migrate the store and add attempts of `QUEUE`, of which every 20th failed. A person has set
    the weight of "the bank"."""
    app = App(url)
    app.migrate()
    app.sql_store.database.run(app.sql_store.registration({QUEUE: 4}))
    app.management.set_weight(QUEUE, "the bank", 5.0)
    app.close()
    with connected(url) as connection:
        add_rows(connection, list(_attempts(SYSTEM_CLOCK.now())))


def _attempts(now: int) -> Iterator[tuple[Any, ...]]:
    chance, ids = random.Random(7), IdSource()
    first = now - DAYS * 24 * _HOUR
    for hour in range(DAYS * 24):
        is_busy = hour >= DAYS * 24 - _BUSY_HOURS
        if not is_busy and hour % _QUIET_HOURS:
            continue
        begin = first + hour * _HOUR
        count = 60 if is_busy else 1
        keys = [key for key in RUN_SECONDS for _ in range(count)]
        if hour == DAYS * 24 - 1:
            keys += [NEWCOMER] * 56
        for n, key in enumerate(keys):
            arrives = begin + n * 1000
            (task_id,) = ids.block(1, arrives)
            starts = arrives + int(chance.uniform(0.1, 25.0) * MICROS)
            seconds = RUN_SECONDS.get(key, 1.0) * chance.uniform(0.5, 1.5)
            yield _attempt(id_text(task_id), key, arrives, starts, seconds, n % 20 == 19)


def _attempt(
    task_id: str, key: str, arrives: int, starts: int, seconds: float, fails: bool
) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "task_id": task_id,
        "attempt": 1,
        "tries": 1,
        "queue": QUEUE,
        "name": "pay",
        "partition": hash(task_id) % 4,
        "priority": 5,
        "fairness_key": key,
        "weight": 5.0 if key == "the bank" else 1.0,
        "version": 3,
        "submitted_at": arrives,
        "run_at": arrives,
        "ready_at": arrives,
        "triggered_at": arrives,
        "claimed_at": starts - 1000,
        "started_at": starts,
        "finished_at": starts + int(seconds * MICROS),
        "outcome": "failed" if fails else "done",
        "next_state": "ERROR" if fails else "DONE",
        "error_type": "ValueError" if fails else None,
        "error_text": f"ValueError: no cover for {key}" if fails else None,
        "node": "node-1",
        "trigger_path": "hook",
        "payload_bytes": 40,
        "tags": "",
    }
    return tuple(values.get(column) for column in COLUMNS)
