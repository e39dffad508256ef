"""Alerts on generated history with known bursts: none without bursts, and floods where tenants burst."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.clock import MICROS, to_micros
from fairlead.pipeline.bronze import ATTEMPTS
from fairlead.pipeline.incidents.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from fairlead.pipeline.incidents.watch import Alert, Rules, Watched, observe
from fairlead.pipeline.warehouse.warehouse import Warehouse
from tests.generate import Truth, write_lake

STEP = round(HEARTBEAT_SECONDS * MICROS)
SETTLED = STEP // 4
"""Microseconds for which a task is ready before heartbeats report it as waiting."""


def heartbeats(
    queue: str, attempts: list[dict[str, Any]], begin: int, end: int
) -> Iterator[Heartbeat]:
    """Yield the heartbeats that a relay sends for a queue in (begin, end], one every two seconds."""
    arriving = sorted((a["submitted_at"], a["fairness_key"]) for a in attempts if a["attempt"] <= 1)
    ready = sorted(
        (a["ready_at"], a["claimed_at"] or a["finished_at"]) for a in attempts if a["ready_at"]
    )
    taken = sorted((a["claimed_at"], a["finished_at"]) for a in attempts if a["claimed_at"])
    ended = sorted((a["finished_at"], a["outcome"] in ("done", "cancelled")) for a in attempts)
    every = [iter(each) for each in (arriving, ready, taken, ended)]
    following: list[Any] = [next(each, None) for each in every]

    def up_to(which: int, until: int) -> Iterator[Any]:
        while following[which] is not None and following[which][0] <= until:
            yield following[which]
            following[which] = next(every[which], None)

    waiting: list[tuple[int, int]] = []
    running: list[int] = []
    claimed_at = 0
    for now in range(begin + STEP, end + 1, STEP):
        keys = Counter(key for _, key in up_to(0, now))
        for span in up_to(1, now):
            heapq.heappush(waiting, span)
        while waiting and waiting[0][1] <= now:
            heapq.heappop(waiting)
        for claimed, finished in up_to(2, now):
            heapq.heappush(running, finished)
            claimed_at = claimed
        while running and running[0] <= now:
            heapq.heappop(running)
        went = Counter(well for _, well in up_to(3, now))
        oldest = waiting[0][0] if waiting and waiting[0][0] < now - SETTLED else None
        yield Heartbeat(
            "store",
            queue,
            "one",
            now,
            oldest,
            len(running),
            claimed_at,
            0,
            False,
            went[True],
            went[False],
            keys.total(),
            dict(keys),
        )


def alerts_of(spark: Any, lake: Warehouse, truth: Truth) -> tuple[list[Alert], int]:
    """Return the alerts of all queues, and the number of attempts."""
    write_lake(spark, lake, truth)
    instants = ["submitted_at", "ready_at", "claimed_at", "finished_at"]
    names = ["queue", "fairness_key", "attempt", "outcome", *instants]
    rows = lake.table(ATTEMPTS).load(columns=names).to_pylist()
    for row in rows:
        row.update({name: row[name] and to_micros(row[name]) for name in instants})
    found: list[Alert] = []
    begin, end = to_micros(truth.start), to_micros(truth.end)
    for queue in sorted({row["queue"] for row in rows}):
        of_queue = [row for row in rows if row["queue"] == queue]
        found += observe(
            Watched(begin, "one"), heartbeats(queue, of_queue, begin, end), {}, Rules()
        )
    return found, len(rows)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_workload_without_bursts_has_no_floods(
    on_warehouse: Any, warehouse: Warehouse, seed: int
) -> None:
    """The workload has six hours of three queues, 8 tenants, and five attempts a second, of which every
    tenth fails."""
    truth = Truth(
        rows=100_000,
        days=0.25,
        seed=seed,
        tenants=8,
        burst_times=1.0,
        burst_pickup_s=0.4,
        late=0.0,
        stepped=0.0,
    )
    found, attempts = alerts_of(on_warehouse, warehouse, truth)
    assert attempts > 90_000
    assert found == []


def test_bursts_of_tenants_are_floods_and_cause_no_other_incident(
    on_warehouse: Any, warehouse: Warehouse
) -> None:
    truth = Truth(
        rows=100_000,
        days=0.25,
        tenants=40,
        zipf=0.5,
        burst_s=600,
        burst_times=100.0,
        late=0.0,
        stepped=0.0,
    )
    found, _ = alerts_of(on_warehouse, warehouse, truth)
    assert {alert.kind for alert in found} == {"flood"}
