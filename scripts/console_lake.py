"""The lake in the pictures of the web console: a day of a payment service, in which one customer
floods the exports for two hours."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from fairlead.pipeline.models import (
    ATTEMPTS,
    COST,
    FAIRNESS,
    INCIDENTS,
    LATENCY_HIST,
    SERVICE,
    TENANT_SHARE,
)
from fairlead.pipeline.windows import GROWTH
from tests.pipeline.frames import attempt
from tests.pipeline.tables_by_hand import put, row
from tests.pipeline.warehouses import lake_in

CUSTOMERS = ("northwind", "globex", "initech", "umbrella", "hooli", "wonka", "tyrell")
FLOOD = "globex"
QUEUE, TASK = "exports", "export_month"
HOURS = 24
FLOODED = range(13, 15)
"""Hours of the period in which FLOOD submits more than all others."""
WORKERS = 12
MINUTE_US = 60_000_000
MICROSECOND = timedelta(microseconds=1)


def make_lake(folder: Path, now: datetime) -> None:
    """Write the tables of the last day before `now`."""
    until = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    begin = until - timedelta(hours=HOURS)
    service, shares, attempts, fairness = [], [], [], []
    buckets = Counter[tuple[datetime, int]]()
    for step in range(HOURS * 6):
        at, hour = begin + timedelta(minutes=10 * step), step // 6
        demand = {key: _demand(number, step) for number, key in enumerate(CUSTOMERS)}
        if hour in FLOODED:
            demand[FLOOD] = 3.0 * WORKERS
        got = _shared(demand)
        for key, workers in got.items():
            busy = round(workers * 10 * MINUTE_US)
            failed = round(workers * 4) if key == "umbrella" else 0
            service.append(
                row(
                    SERVICE, window_start=at, window_s=60, queue=QUEUE, name=TASK,
                    fairness_key=key, busy_us=busy, wasted_us=busy // 50 * (failed > 0),
                    attempts_started=round(workers * 120),
                    attempts_done=round(workers * 120) - failed, failed=failed,
                )
            )  # fmt: skip
            shares.append(
                row(
                    TENANT_SHARE, window_start=at, window_s=60, queue=QUEUE, fairness_key=key,
                    busy_us=busy, entitled_us=round(min(demand[key], WORKERS / 4) * 10 * MINUTE_US),
                )
            )  # fmt: skip
        fairness.append(
            row(
                FAIRNESS, window_start=at, window_s=60, queue=QUEUE, n_keys=len(CUSTOMERS),
                jain=0.99 if hour not in FLOODED else 0.91, max_lag_us=MINUTE_US // 2,
                max_lag_key=FLOOD, starved_keys=0,
            )
        )  # fmt: skip
    for hour in range(HOURS):
        at = begin + timedelta(hours=hour)
        for number, key in enumerate(CUSTOMERS):
            seconds = 0.4 + 0.1 * number + (900 if hour in FLOODED and key == FLOOD else 0)
            for spread, runs in ((0.5, 30), (1.0, 50), (2.0, 19), (6.0, 1)):
                waited = timedelta(seconds=seconds * spread)
                attempts += [
                    attempt(
                        queue=QUEUE, name=TASK, fairness_key=key, submitted_at=at - waited,
                        started_at=at,
                    )
                    for _ in range(runs)
                ]  # fmt: skip
                buckets[at, math.ceil(math.log(waited / MICROSECOND) / math.log(GROWTH))] += runs
    waits = [
        row(
            LATENCY_HIST, hour=hour, queue=QUEUE, name=TASK, fairness_key="*", measure="pickup",
            n=n, max_us=round(GROWTH**bucket), bucket=bucket,
        )
        for (hour, bucket), n in buckets.items()
    ]  # fmt: skip
    flood = row(
        INCIDENTS, incident_id="flood-globex", kind="flood", queue=QUEUE, subject=FLOOD,
        start_at=begin + timedelta(hours=FLOODED.start),
        end_at=begin + timedelta(hours=FLOODED.stop), is_over=True, keys_hit=len(CUSTOMERS),
        tasks_delayed=6_120, extra_wait_us=5_400 * MINUTE_US,
    )  # fmt: skip
    costs = [
        row(
            COST, day=begin.replace(hour=0), queue=QUEUE, fairness_key=key,
            amount=Decimal(30 + 4 * number), busy_us=3_600 * MINUTE_US // 60,
        )
        for number, key in enumerate(CUSTOMERS)
    ]  # fmt: skip
    lake = lake_in(folder)
    for table, rows in (
        (SERVICE, service),
        (TENANT_SHARE, shares),
        (FAIRNESS, fairness),
        (LATENCY_HIST, waits),
        (ATTEMPTS, attempts),
        (INCIDENTS, [flood]),
        (COST, costs),
    ):
        put(lake, table, rows)


def _demand(number: int, step: int) -> float:
    """Return how many workers a customer could keep busy: more in the day than at night."""
    return 0.7 + 0.15 * number + 0.6 * math.sin(2 * math.pi * (step - 40 + 5 * number) / 144)


def _shared(demand: dict[str, float]) -> dict[str, float]:
    """Return the workers of each customer, as equal as their demands allow."""
    left, got = float(WORKERS), {}
    for number, (key, wanted) in enumerate(sorted(demand.items(), key=lambda pair: pair[1])):
        got[key] = min(max(wanted, 0.1), left / (len(demand) - number))
        left -= got[key]
    return got
